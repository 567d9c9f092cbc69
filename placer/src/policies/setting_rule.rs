//! Rules that choose the caps and clocks of jobs in place of the policy.
//!
//! * `NAME@MHZ`: the GPUs of every job are locked to one clock. A site without an energy-aware scheduler saves
//!   energy this way, and each baseline of a comparison is swept over it.
//! * `NAME+zeus`: Zeus's cap for each job ([`super::zeus`]).
//!
//! Settings that the policy chose are replaced.

use std::collections::BTreeSet;

use wattle_common::Frequency;
use wattle_common::job::GpuSetting;

use crate::plan::input::PlanningInput;
use crate::plan::reason::Reason;
use crate::plan::{Decision, Plan};
use crate::policies::zeus::least_cost;
use crate::policies::{Capabilities, Reads};
use crate::state::gpu_set::GpuSet;
use crate::state::job::{Job, State};

/// The choice of caps and clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SettingRule {
    /// The policy's own choice.
    Policy,
    /// One clock for all jobs.
    Clock(Frequency),
    /// Zeus's cap or clock for each job, with this weight of energy against time.
    Zeus {
        /// The weight of energy, 0 to 1.
        eta: f64,
    },
}

impl SettingRule {
    /// The suffix of the policy's name.
    pub(crate) fn suffix(self) -> String {
        match self {
            Self::Policy => String::new(),
            Self::Clock(clock) => format!("@{}", clock.as_mhz()),
            Self::Zeus { .. } => "+zeus".to_owned(),
        }
    }

    /// The capabilities of a policy under this rule. Clocks and caps then do not depend on the energy price.
    pub(crate) fn capabilities(self, policy: Capabilities) -> Capabilities {
        let fixed = Capabilities { sets_gpus: true, prices: None, follows_grid: false, ..policy };
        match self {
            Self::Policy => policy,
            Self::Clock(_) => fixed,
            Self::Zeus { .. } => Capabilities { reads: Reads::All, ..fixed },
        }
    }

    /// The plan with the settings of this rule.
    pub(crate) fn apply(self, input: PlanningInput<'_>, plan: Plan) -> Plan {
        match self {
            Self::Policy => plan,
            Self::Clock(clock) => {
                let setting = GpuSetting { clock_mhz_max: Some(clock), ..GpuSetting::DEFAULT };
                override_settings(input, plan, |_, _, _| Some(setting))
            }
            Self::Zeus { eta } => override_settings(input, plan, |job, gpu_type, gpus| {
                job.operating_points_on(gpu_type).and_then(|points| least_cost(points, gpus, eta))
            }),
        }
    }
}

/// `plan` with the settings that `setting_for` states for a job on a number of GPUs of a type, for starting and
/// running jobs. Without a statement running jobs keep their setting and others start at the default.
fn override_settings(
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
