//! Runs of policies by their names, those of the placer and the baselines.

use wattle_baselines::policy;
use wattle_placer::Reads;
use wattle_simulator::{
    Outcome, PolicyOutcome, RunOptions, Scenario, SimulationError, gather, run_with,
};
use wattle_world::World;

/// A run on predictions.
pub(crate) fn run_policy(
    world: &World,
    scenario: &Scenario,
    name: &str,
) -> Result<PolicyOutcome, SimulationError> {
    run_with(world, scenario, &*policy(name).unwrap(), &RunOptions::default())
}

/// A run with true surfaces from a job's arrival on. `None` for a policy that reads no surfaces, whose run
/// would be the same.
pub(crate) fn run_oracle(
    world: &World,
    scenario: &Scenario,
    name: &str,
) -> Result<Option<PolicyOutcome>, SimulationError> {
    let policy = policy(name).unwrap();
    if policy.capabilities().reads == Reads::Nothing {
        return Ok(None);
    }
    let options = RunOptions { oracle: true, ..RunOptions::default() };
    run_with(world, scenario, &*policy, &options).map(Some)
}

/// A run of each policy.
pub(crate) fn run(
    world: &World,
    scenario: &Scenario,
    names: &[&str],
) -> Result<Outcome, SimulationError> {
    let runs: Result<Vec<_>, _> =
        names.iter().map(|name| run_policy(world, scenario, name)).collect();
    Ok(gather(scenario, runs?))
}
