//! A policy as a specification selects it: under the specification's name, and with `@MHZ` at one clock.
//!
//! `NAME@MHZ` locks the GPUs of every job to one clock: a site without an energy-aware scheduler saves energy
//! this way. The clock is a property of the policy, so that its capabilities state what the plan finally sets;
//! the stage of [`settings`](crate::policies::settings) sets it.

use wattle_common::Frequency;
use wattle_common::job::GpuSetting;

use crate::plan::Plan;
use crate::plan::input::PlanningInput;
use crate::policies::{Capabilities, Policy};
use crate::state::job::Job;

/// A policy under the name of its specification.
pub(super) struct SelectedPolicy {
    name: String,
    policy: Box<dyn Policy>,
    /// One clock for all jobs, in place of the policy's settings.
    clock: Option<Frequency>,
}

impl SelectedPolicy {
    /// The policy called `name`, at one clock for all jobs if there is one.
    pub(super) fn new(name: &str, policy: Box<dyn Policy>, clock: Option<Frequency>) -> Self {
        let suffix = clock.map_or(String::new(), |clock| format!("@{}", clock.as_mhz()));
        Self { name: format!("{name}{suffix}"), policy, clock }
    }
}

impl Policy for SelectedPolicy {
    fn name(&self) -> &str {
        &self.name
    }

    fn capabilities(&self) -> Capabilities {
        let policy = self.policy.capabilities();
        if self.clock.is_some() { policy.with_fixed_settings() } else { policy }
    }

    fn solve(&self, input: PlanningInput<'_>) -> Plan {
        self.policy.solve(input)
    }

    fn fixed_setting(&self, job: &Job, gpu_type: &str, gpus: u32) -> Option<GpuSetting> {
        match self.clock {
            Some(clock) => Some(GpuSetting { clock_mhz_max: Some(clock), ..GpuSetting::DEFAULT }),
            None => self.policy.fixed_setting(job, gpu_type, gpus),
        }
    }
}
