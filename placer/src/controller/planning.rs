//! One round: plan, check, apply; and the cap and clock that each GPU gets.

use wattle_common::job::GpuSetting;

use crate::controller::{Controller, PolicyHandle};
use crate::pipeline::{self, Round};
use crate::plan::Plan;
use crate::plan::check::{Violation, check};
use crate::plan::violation_text::sentences;
use crate::power::model::enforced_cap;
use crate::state::gpu_set::NodeKey;
use crate::state::job::State;

impl<P: PolicyHandle> Controller<P> {
    /// The plan of this round, and what each stage changed in it. The controller stays as it is.
    #[must_use]
    pub fn plan(&self) -> Round {
        pipeline::solve(self.policy.policy(), self.input())
    }

    /// The rules that a plan breaks. A plan that breaks one must not be applied.
    #[must_use]
    pub fn check(&self, plan: &Plan) -> Vec<Violation> {
        check(self.input(), plan)
    }

    /// The findings of [`Controller::check`] as sentences, with the ids of jobs and nodes.
    #[must_use]
    pub fn sentences(&self, violations: &[Violation]) -> String {
        sentences(self.input().state, violations)
    }

    /// Applies a plan made from the present state. The caller carries it out.
    pub fn apply(&mut self, plan: &Plan) {
        self.note_decisions(plan);
        plan.apply_to(&mut self.state);
        self.cache.clone_from(&plan.cache);
        self.limit_cost.price_changed(self.state.now(), plan.power_price);
    }

    /// Whether GPUs may have other settings than the site's.
    #[must_use]
    pub fn sets_gpus(&self) -> bool {
        self.state.has_settings()
            || self.limits.is_power_limited()
            || !self.config.site_setting.is_default()
    }

    /// The cap and clock of one GPU: the lowest of the site's, its jobs', and of the cap that
    /// enforces the power limit. No cap stands for the GPU's default cap.
    #[must_use]
    pub fn gpu_setting(&self, node: NodeKey, gpu: u32) -> GpuSetting {
        let cap_mw = enforced_cap(self.input(), node, gpu);
        self.requested_setting(node, gpu).lower_of(GpuSetting { cap_mw, clock_mhz_max: None })
    }

    /// The setting that the site and the GPU's jobs request.
    fn requested_setting(&self, node: NodeKey, gpu: u32) -> GpuSetting {
        let mut setting = self.config.site_setting;
        for &key in self.state.node(node).tenants(gpu) {
            if let Some(own) = self.state.job(key).and_then(|job| setting_of(&job.state)) {
                setting = setting.lower_of(own);
            }
        }
        setting
    }
}

/// The setting of a job that holds GPUs.
fn setting_of(state: &State) -> Option<GpuSetting> {
    match state {
        State::Queued => None,
        State::Running { setting, .. } | State::Stopping { setting, .. } => Some(*setting),
    }
}
