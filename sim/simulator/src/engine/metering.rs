//! Budget control: the meter takes the place of the live energy ledger.

use std::collections::BTreeMap;

use wattle_common::Timestamp;
use wattle_placer::controller::{Controller, PolicyHandle};
use wattle_placer::power::budget::{BudgetController, ForecastSource, Grid};
use wattle_placer::{GpuPower, Policy};
use wattle_world::World;

use crate::engine::Engine;
use crate::scenario::Scenario;
use crate::simulation::{Forecast, RunOptions};

/// The meter's last reading: time and energy in joules.
#[derive(Clone, Copy, Debug)]
pub(super) struct MeterReading {
    at_us: u64,
    joules: f64,
}

/// Installs the budget of the run. Without one, a budget without limits provides the grid's state
/// to carbon deferral and to policies that read it. `None` if nothing is controlled.
pub(super) fn install_budget(
    controller: &mut Controller<&dyn Policy>,
    world: &World,
    scenario: &Scenario,
    options: &RunOptions,
    start_us: u64,
) -> Option<MeterReading> {
    let has_events = !options.events.is_empty();
    if options.budget.is_some() || has_events || controller.limits().is_power_limited() {
        controller.events().gpu_power_known(gpu_power(world, scenario));
    }
    let has_grid = scenario.carbon.is_some();
    let may_defer =
        has_grid && !options.no_deferral && scenario.jobs.iter().any(|job| job.slack.is_some());
    let follows = has_grid && controller.capabilities().follows_grid;
    if options.budget.is_none() && !may_defer && !follows {
        return None;
    }
    let from = Timestamp::from_us(start_us);
    let budget = options.budget.clone().unwrap_or_default();
    controller.set_budget(BudgetController::new(budget, grid(scenario, options), from), from);
    controller.events().gpu_power_known(gpu_power(world, scenario));
    Some(MeterReading { at_us: start_us, joules: 0.0 })
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

/// Why the budget does not suffice for any queued job on the idle cluster, if it is the cause.
pub(super) fn starvation<P: PolicyHandle>(controller: &Controller<P>) -> Option<String> {
    let starved = controller.starved()?;
    let (baseline, supplied) = (starved.baseline.as_w() / 1e3, starved.supplied_w / 1e3);
    Some(if baseline >= supplied {
        format!(
            "the idle cluster draws {baseline:.2} kW, and the budget sustains {supplied:.2} kW on \
             average; enlarge the budget or let nodes sleep"
        )
    } else {
        format!(
            "the idle cluster draws {baseline:.2} kW, the budget sustains {supplied:.2} kW on \
             average, and each queued job needs more than the difference; enlarge the budget"
        )
    })
}

impl Engine<'_> {
    /// Reports the energy since the last reading and executes the budget's control step if one is
    /// due. Returns whether a plan may differ after it.
    pub(super) fn control(&mut self) -> bool {
        let now = self.now();
        if self.controller.control_at().is_none_or(|at| now < at) {
            return false;
        }
        self.read_meter(self.now_us, self.hardware.meter.energy_j());
        self.controller.control(now).plan_again
    }

    /// Reports the energy up to the last completion.
    pub(super) fn read_final_meter(&mut self) {
        self.read_meter(self.totals.last_completion_us, self.totals.meter.energy_j());
    }

    fn read_meter(&mut self, at_us: u64, joules: f64) {
        let Some(last) = &mut self.budget.reading else { return };
        let (from, until) = (Timestamp::from_us(last.at_us), Timestamp::from_us(at_us));
        self.controller.metered(from, until, (joules - last.joules).max(0.0));
        *last = MeterReading { at_us, joules };
    }

    /// Applies the controller's caps and clocks to these GPUs, if it sets any.
    pub(super) fn set_gpus(&mut self, gpus: impl Iterator<Item = (wattle_placer::NodeKey, u32)>) {
        if self.controller.sets_gpus() {
            self.apply_gpu_settings(gpus);
        }
    }

    /// Applies the controller's caps and clocks to these GPUs, including the defaults after the
    /// last setting has ended.
    pub(super) fn apply_gpu_settings(
        &mut self,
        gpus: impl Iterator<Item = (wattle_placer::NodeKey, u32)>,
    ) {
        for (node, gpu) in gpus {
            let setting = self.controller.gpu_setting(node, gpu);
            self.hardware.gpus.set(node, gpu, setting, &mut self.hardware.changed);
        }
    }

    /// Applies the caps of all GPUs under a power limit, where every plan may change each of them.
    pub(super) fn enforce_caps(&mut self) {
        let was_limited = std::mem::replace(
            &mut self.budget.caps_enforced,
            self.controller.limits().is_power_limited(),
        );
        // After the limit the caps end.
        if !was_limited && !self.budget.caps_enforced {
            return;
        }
        let nodes = self.controller.state().keyed_nodes();
        let gpus: Vec<_> =
            nodes.flat_map(|(key, node)| (0..node.facts.gpus).map(move |gpu| (key, gpu))).collect();
        self.set_gpus(gpus.into_iter());
    }
}
