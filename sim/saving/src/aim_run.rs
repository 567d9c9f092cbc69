//! Simulations under the energy aim: one policy at the price that [`crate::aim::least_energy`] finds.

use wattle_placer::Policy;
use wattle_simulator::{RunOptions, Scenario, SimulationError, run_detailed};
use wattle_world::World;

use crate::aim::{AimOutcome, AimSearch, least_energy};
use crate::schedule::Schedule;

/// The run of a policy with the least energy whose mean completion time is within `max_slowdown`, a share, of
/// that of the same policy at price 0. `None` for a policy that reads no price. The schedules have no
/// jobs and nodes. `progress` receives the number of the run, from 1 on, and the numbers of ended jobs
/// and of all jobs.
///
/// # Errors
/// On an unknown workload, and if the policy violates a rule.
pub fn run_with_energy_aim(
    world: &World,
    scenario: &Scenario,
    policy: &dyn Policy,
    options: &RunOptions,
    max_slowdown: f64,
    progress: &mut dyn FnMut(usize, usize, usize),
) -> Result<Option<AimOutcome<Schedule>>, SimulationError> {
    let Some(prices) = policy.capabilities().prices else { return Ok(None) };
    let mut made = 0;
    let run_at_price = |price: f64| {
        made += 1;
        let options = RunOptions { price, ..options.clone() };
        let mut jobs = |ended: usize, of: usize| progress(made, ended, of);
        let (outcome, detail) = run_detailed(world, scenario, policy, &options, &mut jobs)?;
        Ok(Schedule::simulated(outcome, detail, options.nodes_sleep).without_detail())
    };
    let search = AimSearch::within(max_slowdown, prices.least, prices.most);
    least_energy(&search, run_at_price).map(Some)
}
