//! A run with its recording, for the details of a page.

use wattle_common::Power;
use wattle_placer::Policy;
use wattle_simulator::{
    PolicyOutcome, RecordedJob, Recording, RunOptions, Scenario, SimulationError, run_recorded,
};
use wattle_world::World;

use crate::aim_run::CompletedRun;

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
    /// The run without its recording, with the completion time of each job. The power after the last completion is
    /// not recorded, and 0 here.
    #[must_use]
    pub fn to_completed(&self) -> CompletedRun {
        let completion_s =
            |job: &RecordedJob| Some(job.finished_us?.saturating_sub(job.submit_us) as f64 / 1e6);
        CompletedRun {
            outcome: self.outcome.clone(),
            completion_s: self.recording.jobs.iter().map(completion_s).collect(),
            rest_w: 0.0,
        }
    }

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
