//! The budget of a simulation: the cluster's meter in place of the live placer's energy ledger.

use std::collections::BTreeMap;

use wattle_common::Timestamp;
use wattle_placer::controller::{Controller, PolicyHandle};
use wattle_placer::power::budget::{BudgetController, ForecastSource, Grid};
use wattle_placer::{GpuPower, Policy};
use wattle_world::World;

use crate::engine::Engine;
use crate::scenario::Scenario;
use crate::simulation::{Forecast, RunOptions};

/// The meter's last reading: when, and its energy in joules.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    at_us: u64,
    joules: f64,
}

/// Puts the run's budget in force. Without one, a controller without limits follows the grid where
/// jobs may wait for it or the policy reads it; `None` where nothing is to be controlled.
pub(super) fn put_in_force(
    controller: &mut Controller<&dyn Policy>,
    world: &World,
    scenario: &Scenario,
    options: &RunOptions,
    first_us: u64,
) -> Option<Reading> {
    let has_grid = scenario.carbon.is_some();
    let may_wait =
        has_grid && !options.no_deferral && scenario.jobs.iter().any(|job| job.slack.is_some());
    let follows = has_grid && controller.capabilities().follows_grid;
    if options.budget.is_none() && !may_wait && !follows {
        return None;
    }
    let from = Timestamp::from_us(first_us);
    let budget = options.budget.unwrap_or_default();
    controller.set_budget(BudgetController::new(budget, grid(scenario, options), from), from);
    controller.events().gpu_power_known(gpu_power(world, scenario));
    Some(Reading { at_us: first_us, joules: 0.0 })
}

/// The power of each of the cluster's GPU types.
fn gpu_power(world: &World, scenario: &Scenario) -> BTreeMap<String, GpuPower> {
    let groups = scenario.cluster.groups().iter();
    let known = groups.filter_map(|group| {
        let gpu = world.gpu(&group.gpu_type)?;
        let power = GpuPower {
            idle: gpu.idle,
            most: gpu.cap_default,
            cap_min: Some(gpu.cap_min),
            host: world.host_power(gpu),
        };
        Some((group.gpu_type.clone(), power))
    });
    known.collect()
}

fn grid(scenario: &Scenario, options: &RunOptions) -> Option<Grid> {
    let actual = scenario.carbon.as_ref()?.to_series(Timestamp::EPOCH);
    let day_ahead = scenario.day_ahead.as_ref().map(|series| series.to_series(Timestamp::EPOCH));
    let source = match (options.forecast, day_ahead) {
        (Forecast::Perfect, _) => ForecastSource::Perfect,
        (Forecast::DayAhead, Some(series)) => ForecastSource::DayAhead(series),
        (Forecast::DayAhead | Forecast::Persistence, _) => ForecastSource::Persistence,
    };
    Some(Grid::new(actual, source, Timestamp::EPOCH))
}

/// Why no job starts on the empty cluster under the controller's budget, where the budget is why.
pub(super) fn starvation<P: PolicyHandle>(controller: &Controller<P>) -> Option<String> {
    let starved = controller.starved()?;
    let (baseline, supplied) = (starved.baseline.as_w() / 1e3, starved.supplied_w / 1e3);
    Some(if baseline >= supplied {
        format!(
            "with nobody on it the cluster draws {baseline:.2} kW, and the budget feeds \
             {supplied:.2} kW in the mean; a larger budget is needed, or nodes that sleep"
        )
    } else {
        format!(
            "with nobody on it the cluster draws {baseline:.2} kW, the budget feeds \
             {supplied:.2} kW in the mean, and each of them needs more than what is between"
        )
    })
}

impl Engine<'_> {
    /// Meters the energy since the last reading, and takes the budget's control step if one is due.
    /// Whether a plan may differ after it.
    pub(super) fn control(&mut self) -> bool {
        let now = self.now();
        if self.controller.control_at().is_none_or(|at| now < at) {
            return false;
        }
        self.read_meter(self.now_us, self.meter.energy_j());
        self.controller.control(now).plan_again
    }

    /// The run is over: meters the rest of its energy.
    pub(super) fn meter_the_rest(&mut self, until_us: u64) {
        self.read_meter(until_us, self.until_last.energy_j());
    }

    fn read_meter(&mut self, at_us: u64, joules: f64) {
        let Some(last) = &mut self.reading else { return };
        let (from, until) = (Timestamp::from_us(last.at_us), Timestamp::from_us(at_us));
        self.controller.metered(from, until, (joules - last.joules).max(0.0));
        *last = Reading { at_us, joules };
    }

    /// Gives these GPUs the caps and clocks that the controller decides.
    pub(super) fn set_gpus(&mut self, gpus: impl Iterator<Item = (wattle_placer::NodeKey, u32)>) {
        if self.controller.sets_gpus() {
            self.set_gpus_again(gpus);
        }
    }

    /// The same where the last of the settings may just have ended.
    pub(super) fn set_gpus_again(
        &mut self,
        gpus: impl Iterator<Item = (wattle_placer::NodeKey, u32)>,
    ) {
        for (node, gpu) in gpus {
            let default_cap = self.cards.model(node).cap_default;
            let setting = self.controller.gpu_setting_below(node, gpu, default_cap);
            self.cards.set(node, gpu, setting, &mut self.touched);
        }
    }

    /// Under a power limit every plan may change the cap of every GPU.
    pub(super) fn enforce_caps(&mut self) {
        if self.controller.limits().power_max.is_none() {
            return;
        }
        let nodes = self.controller.state().keyed_nodes();
        let gpus: Vec<_> =
            nodes.flat_map(|(key, node)| (0..node.facts.gpus).map(move |gpu| (key, gpu))).collect();
        self.set_gpus(gpus.into_iter());
    }
}
