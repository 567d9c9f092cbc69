//! A policy with the stages that belong to its selection: the co-location trial, settling, the rules of the
//! site's scheduler, one clock for all jobs, and node sleep.
//!
//! `NAME@MHZ` locks the GPUs of every job to one clock: a site without an energy-aware scheduler saves energy
//! this way. These stages are inside the policy so that its capabilities state what the plan finally sets.

use wattle_common::Frequency;
use wattle_common::job::GpuSetting;

use crate::allocation::settling::{keep_settling_jobs, plan_when_settled};
use crate::allocation::site_rules;
use crate::plan::input::PlanningInput;
use crate::plan::reason::Reason;
use crate::plan::{Blocked, Plan};
use crate::policies::settings::override_settings;
use crate::policies::{Capabilities, Policy, colocation_trial};
use crate::power::node_sleep;

/// A policy with its stages.
pub(super) struct StagedPolicy {
    name: String,
    policy: Box<dyn Policy>,
    /// One clock for all jobs, in place of the policy's settings.
    clock: Option<Frequency>,
}

impl StagedPolicy {
    /// The policy called `name`, at one clock for all jobs if there is one.
    pub(super) fn new(name: &str, policy: Box<dyn Policy>, clock: Option<Frequency>) -> Self {
        let suffix = clock.map_or(String::new(), |clock| format!("@{}", clock.as_mhz()));
        Self { name: format!("{name}{suffix}"), policy, clock }
    }
}

impl Policy for StagedPolicy {
    fn name(&self) -> &str {
        &self.name
    }

    fn capabilities(&self) -> Capabilities {
        let policy = self.policy.capabilities();
        if self.clock.is_some() { policy.with_fixed_settings() } else { policy }
    }

    fn solve(&self, input: PlanningInput<'_>) -> Plan {
        let policy = self.policy.as_ref();
        let mut plan = if policy.capabilities().has_trials {
            colocation_trial::solve(policy, input)
        } else {
            policy.solve(input)
        };
        keep_settling_jobs(input, &mut plan);
        if matches!(&plan.blocked, Some(Blocked { reason: Reason::Awaits { .. }, .. })) {
            plan_when_settled(input, &mut plan);
        }
        site_rules::apply(input, &mut plan);
        plan.price = input.limits.price;
        if let Some(clock) = self.clock {
            let setting = GpuSetting { clock_mhz_max: Some(clock), ..GpuSetting::DEFAULT };
            plan = override_settings(input, plan, |_, _, _| Some(setting));
        }
        node_sleep::apply(input, &mut plan);
        plan
    }
}
