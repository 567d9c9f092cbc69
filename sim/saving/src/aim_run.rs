//! Simulations under the energy aim: one policy at the price that [`crate::aim::least_energy`] finds.

use wattle_placer::Policy;
use wattle_simulator::{PolicyOutcome, RunOptions, Scenario, SimulationError, run_detailed};
use wattle_world::World;

use crate::aim::{AimOutcome, AimRun, AimSearch, least_energy};
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
/// `run` makes one simulation with the options that it receives, which have the price.
///
/// # Errors
/// The first error of `run`.
pub fn run_with_energy_aim<R: AimRun, E>(
    policy: &dyn Policy,
    options: &RunOptions,
    bound: Bound<'_>,
    mut run: impl FnMut(&RunOptions) -> Result<R, E>,
) -> Result<Option<AimOutcome<R>>, E> {
    let Some(prices) = policy.capabilities().prices else { return Ok(None) };
    let (search, reference) = match bound {
        Bound::OwnFastest(share) => (AimSearch::within(share, prices.least, prices.most), None),
        Bound::Schedule(reference, allowed) => {
            (AimSearch::to_baseline(allowed, prices.least, prices.most), Some(reference))
        }
    };
    let run_at_price = |price: f64| run(&RunOptions { price, ..options.clone() });
    least_energy(&search, reference, run_at_price).map(Some)
}
