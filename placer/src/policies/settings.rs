//! Caps and clocks of jobs by a rule in place of the policy.

use std::collections::BTreeSet;

use wattle_common::job::GpuSetting;

use crate::plan::input::PlanningInput;
use crate::plan::reason::Reason;
use crate::plan::{Decision, Plan};
use crate::state::gpu_set::GpuSet;
use crate::state::job::{Job, State};

/// `plan` with the settings that `setting_for` states for a job on a number of GPUs of a type, for starting and
/// running jobs. Without a statement running jobs keep their setting and others start at the default. Settings
/// that the policy chose are replaced.
#[must_use]
pub fn override_settings(
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
