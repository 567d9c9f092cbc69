//! Simulations under the energy aim: one policy at the price that [`crate::aim::least_energy`] finds.

use wattle_placer::Policy;
use wattle_simulator::{PolicyOutcome, RunOptions, Scenario, SimulationError, run_detailed};
use wattle_world::World;

use crate::aim::{AimOutcome, AimRun, AimSearch, FEW_JOBS, least_energy, search};
use crate::lateness::{Allowed, Reference};
use crate::schedule::{completions, rest_w};

/// The bound of an energy aim.
#[derive(Clone, Copy, Debug)]
pub enum Bound<'a> {
    /// Mean completion time relative to that of the same policy at price 0, minus 1.
    OwnFastest(f64),
    /// Lateness relative to another schedule of the same jobs.
    Schedule(&'a Reference, Allowed),
}

/// The jobs of a simulation in the search of a price.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchedJobs {
    /// All of the scenario.
    All,
    /// A sample of them.
    Sample,
}

/// A run with the completion time of each job.
#[derive(Clone, Debug, PartialEq)]
pub struct CompletedRun {
    /// Its outcome.
    pub outcome: PolicyOutcome,
    /// Completion time of each job in the order of the scenario, s.
    pub completion_s: Vec<Option<f64>>,
    /// Power of the cluster after the last completion, W.
    pub rest_w: f64,
}

impl AimRun for CompletedRun {
    fn energy_kwh(&self) -> f64 {
        self.outcome.energy_kwh
    }
    fn makespan_s(&self) -> f64 {
        self.outcome.makespan_s
    }
    fn rest_w(&self) -> f64 {
        self.rest_w
    }
    fn completion_s(&self) -> &[Option<f64>] {
        &self.completion_s
    }
}

/// One run. `progress` receives the numbers of ended jobs and of all jobs.
///
/// # Errors
/// On an unknown workload, and if the policy violates a rule.
pub fn run_completed(
    world: &World,
    scenario: &Scenario,
    policy: &dyn Policy,
    options: &RunOptions,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<CompletedRun, SimulationError> {
    let (outcome, detail) = run_detailed(world, scenario, policy, options, progress)?;
    let rest_w = rest_w(&detail, options.nodes_sleep);
    Ok(CompletedRun { outcome, completion_s: completions(&detail), rest_w })
}

/// The runs of a search for the least energy of a policy within a bound. `None` for a policy that reads no price.
/// `run` makes one simulation with the options that it receives, which have the price. Where it can do so for a sample of
/// the jobs, the search with all jobs begins at the price of the sample.
///
/// # Errors
/// The first error of `run`.
pub fn run_with_energy_aim<R: AimRun, E>(
    policy: &dyn Policy,
    options: &RunOptions,
    bound: Bound<'_>,
    has_sample: bool,
    mut run: impl FnMut(&RunOptions, SearchedJobs) -> Result<R, E>,
) -> Result<Option<AimOutcome<R>>, E> {
    let Some(prices) = policy.capabilities().prices else { return Ok(None) };
    let (mut aim, reference) = match bound {
        Bound::OwnFastest(share) => (AimSearch::within(share, prices.least, prices.most), None),
        Bound::Schedule(reference, allowed) => {
            let aim = AimSearch::to_baseline(allowed, prices.least, prices.most);
            let is_few = reference.completion_s.len() < FEW_JOBS;
            (if is_few { aim.of_few_jobs() } else { aim }, Some(reference))
        }
    };
    let mut at = |price: f64, jobs| run(&RunOptions { price, ..options.clone() }, jobs);
    let mut runs = Vec::new();
    if has_sample {
        let only_zero = AimSearch { runs_max: 1, ..aim };
        search(&only_zero, reference, &mut runs, |price| at(price, SearchedJobs::All))?;
        let at_zero = runs[0].lateness.filter(|lateness| aim.allowed.permits(*lateness));
        let sampled = at_zero.and_then(|at_zero| Some((aim.on_sample(at_zero)?, at_zero)));
        if let Some((sampled, at_zero)) = sampled {
            let found = least_energy(&sampled, None, |price| at(price, SearchedJobs::Sample))?;
            aim = aim.from_sample(&found, at_zero);
        }
    }
    search(&aim, reference, &mut runs, |price| at(price, SearchedJobs::All))?;
    Ok(Some(AimOutcome::select(runs, &aim)))
}
