//! Caps and clocks of jobs by a rule in place of the policy: `@MHZ`, or that of an
//! [addition](crate::policies::Addition).

use std::collections::{BTreeMap, BTreeSet};

use wattle_common::job::GpuSetting;

use crate::plan::input::PlanningInput;
use crate::plan::reason::Reason;
use crate::plan::{Decision, Plan, SettingChange};
use crate::policies::Policy;
use crate::state::gpu_set::{GpuSet, JobKey};
use crate::state::job::{Job, State};

/// Replaces the settings in `plan` by those that the rule states for a job on a number of GPUs of a type, for
/// starting and running jobs. Without a statement running jobs keep their setting and others start at the
/// default. Settings that the policy chose are removed. Returns the changes.
pub(crate) fn fix(
    policy: &dyn Policy,
    input: PlanningInput<'_>,
    plan: &mut Plan,
) -> BTreeMap<JobKey, SettingChange> {
    let mut changes = BTreeMap::new();
    if !policy.capabilities().fixes_settings {
        return changes;
    }
    plan.decisions.retain(|decision| !matches!(decision, Decision::Set { .. }));
    let of = |job: &Job, on: &GpuSet| {
        let gpu_type = &input.state.node(on.by_node.first()?.node).facts.gpu_type;
        policy.fixed_setting(job, gpu_type, on.gpu_count())
    };
    let mut change = |job: JobKey, from: GpuSetting, to: GpuSetting| {
        let reason = Reason::Reset { setting: to };
        if from != to {
            changes.insert(job, SettingChange { from, to, reason: reason.clone() });
        }
        reason
    };
    let mut leaving = BTreeSet::new();
    for decision in &mut plan.decisions {
        match decision {
            Decision::Start { job, on, setting, .. } => {
                let known = input.state.job(*job);
                let chosen = known.and_then(|known| of(known, on)).unwrap_or(GpuSetting::DEFAULT);
                change(*job, *setting, chosen);
                *setting = chosen;
            }
            Decision::Stop { job, .. } | Decision::Undo { job, .. } => {
                leaving.insert(*job);
            }
            Decision::Set { .. } | Decision::Confirm { .. } | Decision::Reject { .. } => {}
        }
    }
    for (key, job) in input.state.running() {
        let State::Running { on, setting: now, .. } = &job.state else { continue };
        let Some(setting) = of(job, on) else { continue };
        if setting != *now && !leaving.contains(&key) {
            let reason = change(key, *now, setting);
            plan.decisions.push(Decision::Set { job: key, setting, reason });
        }
    }
    changes
}
