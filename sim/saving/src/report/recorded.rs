//! A run with its recording, for the details of a page.

use wattle_common::Power;
use wattle_placer::Policy;
use wattle_simulator::{
    PolicyOutcome, Recording, RunOptions, Scenario, SimulationError, run_recorded,
};
use wattle_world::World;

/// A run with its recording.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// The policy and its setting.
    pub name: String,
    /// The policy without its setting.
    pub family: String,
    /// The policy's index on the page, which determines its colour.
    pub slot: usize,
    /// The power limit that it was under, watts.
    pub power_limit_w: Option<f64>,
    /// The outcome.
    pub outcome: PolicyOutcome,
    /// The recording.
    pub recording: Recording,
}

impl Recorded {
    /// Simulates `scenario` under `policy`, with a recording; `slot` is the policy's index on the page.
    /// `progress` receives the numbers of ended jobs and of all jobs whenever a job ends.
    ///
    /// # Errors
    /// On an unknown workload, and if the policy violates a rule.
    pub fn run(
        world: &World,
        scenario: &Scenario,
        policy: &dyn Policy,
        slot: usize,
        options: &RunOptions,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self, SimulationError> {
        let (outcome, recording) = run_recorded(world, scenario, policy, options, progress)?;
        let name = policy.name().to_owned();
        let power_limit_w =
            options.budget.as_ref().and_then(|budget| budget.power_mw).map(Power::as_w);
        Ok(Self { family: name.clone(), name, slot, power_limit_w, outcome, recording })
    }
}
