//! Any policy with one clock for everybody, and what all rules about settings share.
//!
//! `NAME@MHZ`: the policy decides who runs where; every job's cards are locked to that clock. It is
//! how a site without an energy-aware scheduler saves energy, and each baseline of a comparison is
//! swept over it. Settings that the policy itself chose are replaced.

use std::collections::BTreeSet;

use wattle_common::Frequency;
use wattle_common::job::GpuSetting;

use crate::plan::input::PlanningInput;
use crate::plan::reason::Reason;
use crate::plan::{Decision, Plan};
use crate::policies::{Capabilities, Policy};
use crate::state::gpu_set::GpuSet;
use crate::state::job::{Job, State};

/// A policy with one clock for everybody.
pub struct Clocked {
    name: String,
    inner: Box<dyn Policy>,
    setting: GpuSetting,
}

impl Clocked {
    /// `inner` with every card locked to `clock`.
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
        reset(input, self.inner.solve(input), |_, _, _| Some(self.setting))
    }
}

/// `plan` with the settings that `wanted` says for a job on so many GPUs of a kind, for those who start and
/// those who run; where it says nothing, those who run keep theirs and others start as the site
/// sets cards.
pub(crate) fn reset(
    input: PlanningInput<'_>,
    mut plan: Plan,
    wanted: impl Fn(&Job, &str, u32) -> Option<GpuSetting>,
) -> Plan {
    plan.decisions.retain(|decision| !matches!(decision, Decision::Set { .. }));
    let of = |job: &Job, on: &GpuSet| {
        let kind = &input.state.node(on.by_node.first()?.node).facts.gpu_type;
        wanted(job, kind, on.gpu_count())
    };
    let mut leaving = BTreeSet::new();
    for decision in &mut plan.decisions {
        match decision {
            Decision::Start { job, on, setting, .. } => {
                let known = input.state.job(*job);
                let wanted = known.and_then(|known| of(known, on));
                *setting = wanted.unwrap_or(GpuSetting::DEFAULT);
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
