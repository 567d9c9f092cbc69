//! Any policy with one clock for all jobs, and the part that all rules about settings share.
//!
//! `NAME@MHZ`: the policy decides placements; the GPUs of every job are locked to that clock. A site without an
//! energy-aware scheduler saves energy this way, and each baseline of a comparison is swept over it. Settings
//! that the policy chose are replaced.

use std::collections::BTreeSet;

use wattle_common::Frequency;
use wattle_common::job::GpuSetting;

use crate::plan::input::PlanningInput;
use crate::plan::reason::Reason;
use crate::plan::{Decision, Plan};
use crate::policies::{Capabilities, Policy};
use crate::state::gpu_set::GpuSet;
use crate::state::job::{Job, State};

/// A policy with one clock for all jobs.
pub struct Clocked {
    name: String,
    inner: Box<dyn Policy>,
    setting: GpuSetting,
}

impl Clocked {
    /// `inner` with every GPU locked to `clock`.
    #[must_use]
    pub fn new(inner: Box<dyn Policy>, clock: Frequency) -> Self {
        let name = format!("{}@{}", inner.name(), clock.as_mhz());
        let setting = GpuSetting { clock_mhz_max: Some(clock), ..GpuSetting::DEFAULT };
        Self { name, inner, setting }
    }
}

impl Policy for Clocked {
    fn name(&self) -> &str {
        &self.name
    }

    // The clock does not depend on the price.
    fn capabilities(&self) -> Capabilities {
        let inner = self.inner.capabilities();
        Capabilities { sets_cards: true, prices: None, follows_grid: false, ..inner }
    }

    fn solve(&self, input: PlanningInput<'_>) -> Plan {
        override_settings(input, self.inner.solve(input), |_, _, _| Some(self.setting))
    }
}

/// `plan` with the settings that `setting_for` states for a job on a number of GPUs of a type, for starting and
/// running jobs. Without a statement running jobs keep their setting and others start at the default.
pub(crate) fn override_settings(
    input: PlanningInput<'_>,
    mut plan: Plan,
    setting_for: impl Fn(&Job, &str, u32) -> Option<GpuSetting>,
) -> Plan {
    plan.decisions.retain(|decision| !matches!(decision, Decision::Set { .. }));
    let of = |job: &Job, on: &GpuSet| {
        let gpu_type = &input.state.node(on.by_node.first()?.node).facts.gpu_type;
        setting_for(job, gpu_type, on.gpu_count())
    };
    let mut leaving = BTreeSet::new();
    for decision in &mut plan.decisions {
        match decision {
            Decision::Start { job, on, setting, .. } => {
                let known = input.state.job(*job);
                let chosen = known.and_then(|known| of(known, on));
                *setting = chosen.unwrap_or(GpuSetting::DEFAULT);
            }
            Decision::Stop { job, .. } | Decision::Undo { job, .. } => {
                leaving.insert(*job);
            }
            Decision::Set { .. } | Decision::Settle { .. } | Decision::Reject { .. } => {}
        }
    }
    for (key, job) in input.state.running() {
        let State::Running { on, setting: now, .. } = &job.state else { continue };
        let Some(setting) = of(job, on) else { continue };
        if setting != *now && !leaving.contains(&key) {
            let reason = Reason::Reset { setting };
            plan.decisions.push(Decision::Set { job: key, setting, reason });
        }
    }
    plan
}
