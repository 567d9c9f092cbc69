//! Simulations under the energy aim: one policy at the price that [`crate::aim::least_energy`] finds.

use wattle_placer::Policy;
use wattle_simulator::{PolicyOutcome, RunOptions, Scenario, SimulationError, run_detailed};
use wattle_world::World;

use crate::aim::{AimOutcome, AimRun, AimSearch, least_energy};

/// A simulation of one policy at one price.
#[derive(Clone, Debug)]
pub struct PolicyRun {
    /// Its outcome.
    pub outcome: PolicyOutcome,
    completion_s: Vec<Option<f64>>,
    rest_w: f64,
}

impl AimRun for PolicyRun {
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

/// The run of a policy with the least energy whose mean completion time is within `max_slowdown`, a share, of
/// that of the same policy at price 0. `None` for a policy that reads no price. `progress` receives the
/// number of the run, from 1 on, and the numbers of ended jobs and of all jobs.
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
) -> Result<Option<AimOutcome<PolicyRun>>, SimulationError> {
    let Some(prices) = policy.capabilities().prices else { return Ok(None) };
    let mut made = 0;
    let run_at_price = |price: f64| {
        made += 1;
        let options = RunOptions { price, ..*options };
        let mut jobs = |ended: usize, of: usize| progress(made, ended, of);
        let (outcome, detail) = run_detailed(world, scenario, policy, &options, &mut jobs)?;
        let at_rest = |node: &wattle_simulator::NodeOutcome| {
            if options.nodes_sleep { node.asleep_w } else { node.awake_w }
        };
        Ok(PolicyRun {
            outcome,
            completion_s: detail
                .jobs
                .iter()
                .map(wattle_simulator::JobOutcome::completion_s)
                .collect(),
            rest_w: detail.nodes.iter().map(at_rest).sum(),
        })
    };
    let search = AimSearch::within(max_slowdown, prices.least, prices.most);
    least_energy(&search, run_at_price).map(Some)
}
