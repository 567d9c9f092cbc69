//! A run with its recording, for the details of a page.

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
    /// The outcome.
    pub outcome: PolicyOutcome,
    /// The recording.
    pub recording: Recording,
}

impl Recorded {
    /// Simulates `scenario` under `policy`, with a recording; `slot` is the policy's index on the page. `progress` receives the numbers of ended jobs and of all jobs
    /// whenever a job ends.
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
        Ok(Self { family: name.clone(), name, slot, outcome, recording })
    }
}
