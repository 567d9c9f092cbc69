//! A budget in a simulation: the meter is read, the placer's own steering asked, the problem told.
//!
//! What live is a stream of ledger entries is here the meter of the whole cluster. Nothing is
//! decided.

use std::collections::BTreeMap;
use wattle_common::{Budget, Timestamp};
use wattle_placer::policies::RELATIVE_PRICES;
use wattle_placer::power::budget::{BudgetController, ForecastSource, Grid};
use wattle_placer::power::model::{PowerEstimate, enforced_cap, min_power};
use wattle_placer::{CardPower, ClusterState, PlanningInput, PlanningLimits, Policy};
use wattle_world::World;

use crate::engine::Engine;
use crate::scenario::Scenario;
use crate::simulation::{Forecast, RunOptions};

/// A budget under way.
pub(super) struct Steered {
    pub(super) steering: BudgetController,
    /// When it is asked next.
    pub(super) next_us: u64,
    /// When the meter was last read, and what it showed, joules.
    read: (u64, f64),
    /// What stands: the price as a position, and whether new jobs are held back.
    pub(super) position: f64,
}

impl Steered {
    /// The steering of a run: where it has a budget, jobs that may wait, or a policy that follows
    /// the grid.
    pub(super) fn of(
        scenario: &Scenario,
        policy: &dyn Policy,
        options: &RunOptions,
        first_us: u64,
    ) -> Option<Self> {
        let has_grid = scenario.carbon.is_some();
        let may_wait =
            has_grid && !options.no_deferral && scenario.jobs.iter().any(|job| job.slack.is_some());
        let follows = has_grid && policy.capabilities().follows_grid;
        let budget = match options.budget {
            None if !may_wait && !follows => return None,
            budget => budget.unwrap_or_default(),
        };
        Some(Self {
            steering: BudgetController::new(
                budget,
                grid(scenario, options),
                Timestamp::from_us(first_us),
            ),
            next_us: first_us,
            read: (first_us, 0.0),
            position: 0.0,
        })
    }

    /// Why nothing ever starts under this budget, once nobody runs any more; `None` where it is not
    /// for want of energy.
    pub(super) fn starves(&self, input: PlanningInput<'_>) -> Option<String> {
        input.limits.admission_limit?;
        let empty = min_power(input, PowerEstimate::Fixed).as_w() / 1e3;
        // Not what is left of a window that is spent.
        let fed = self.steering.mean_w(input.now()) / 1e3;
        Some(if empty >= fed {
            format!(
                "with nobody on it the cluster draws {empty:.2} kW, and the budget feeds {fed:.2} \
                 kW in the mean; a larger budget is needed, or nodes that sleep"
            )
        } else {
            format!(
                "with nobody on it the cluster draws {empty:.2} kW, the budget feeds {fed:.2} kW \
                 in the mean, and each of them needs more than what is between"
            )
        })
    }

    /// What is known of cards, and what may be drawn of them.
    pub(super) fn prepare(
        &self,
        state: &mut ClusterState,
        limits: &mut PlanningLimits,
        world: &World,
        scenario: &Scenario,
    ) {
        limits.power_max = self.steering.budget().power_mw;
        limits.caps_enforced = limits.power_max.is_some();
        let mut gpu_power = BTreeMap::new();
        for group in scenario.cluster.groups() {
            if let Some(gpu) = world.gpu(&group.gpu_type) {
                let draw = CardPower {
                    idle: gpu.idle,
                    most: gpu.cap_default,
                    cap_least: Some(gpu.cap_min),
                    host: world.host_power(gpu),
                };
                gpu_power.insert(group.gpu_type.clone(), draw);
            }
        }
        state.gpu_power_known(gpu_power);
    }
}

fn grid(scenario: &Scenario, options: &RunOptions) -> Option<Grid> {
    let actual = scenario.carbon.as_ref()?.to_series(Timestamp::EPOCH);
    let day_ahead = scenario.day_ahead.as_ref().map(|series| series.to_series(Timestamp::EPOCH));
    let foreseen = match (options.forecast, day_ahead) {
        (Forecast::Perfect, _) => ForecastSource::Perfect,
        (Forecast::DayAhead, Some(series)) => ForecastSource::DayAhead(series),
        (Forecast::DayAhead | Forecast::Persistence, _) => ForecastSource::Persistence,
    };
    Some(Grid::new(actual, foreseen, Timestamp::EPOCH))
}

/// What a run without a budget is counted by.
pub(super) fn budget_of(steered: Option<&Steered>) -> Option<&Budget> {
    steered.map(|steered| steered.steering.budget())
}

impl Engine<'_> {
    /// Asks the steering, if its time has come; whether that changes what policies see.
    pub(super) fn steer(&mut self) -> bool {
        let now = self.now();
        let Some(steered) = &mut self.steered else { return false };
        if steered.next_us > self.now_us {
            return false;
        }
        let joules = self.meter.energy_j();
        let (from_us, before) = steered.read;
        steered.steering.spent(Timestamp::from_us(from_us), now, joules - before);
        steered.read = (self.now_us, joules);
        let prices = self.policy.capabilities().prices;
        let least = min_power(
            PlanningInput::new(&self.state, &self.limits),
            PowerEstimate::under(self.policy),
        );
        let orders = steered.steering.steer(now, least);
        steered.next_us = orders.again_at.as_us();
        steered.position = orders.position;

        let mut price = self.options.price;
        if steered.steering.budget().has_window() {
            price = price.max(prices.unwrap_or(RELATIVE_PRICES).at(orders.position));
            self.limits.price_sets_clocks = true;
        }
        let intensity = |grid: &Option<
            std::sync::Arc<wattle_placer::power::budget::GridForecast>,
        >| { grid.as_ref().map(|grid| grid.now) };
        let differs = |a: f64, b: f64| a.total_cmp(&b).is_ne();
        let changed = differs(price, self.limits.price)
            || differs(orders.carbon_ratio, self.limits.carbon_ratio)
            || (orders.admission_limit != self.limits.admission_limit
                && self.state.queue_len() > 0)
            || orders.preemption_limit.is_some()
            || intensity(&orders.outlook) != intensity(&self.limits.grid);
        self.limits.price = price;
        self.limits.carbon_ratio = orders.carbon_ratio;
        self.limits.admission_limit = orders.admission_limit;
        self.limits.preemption_limit = orders.preemption_limit;
        self.limits.grid = orders.outlook;
        changed
    }

    /// Under a power limit no card draws more than it was reserved_power to, whatever its jobs were
    /// expected to draw.
    pub(super) fn hold_cards(&mut self) {
        if self.limits.power_max.is_none() {
            return;
        }
        for (node, there) in self.state.keyed_nodes() {
            let most = self.cards.model(node).cap_default;
            for gpu in 0..there.facts.gpus {
                let to = enforced_cap(PlanningInput::new(&self.state, &self.limits), node, gpu)
                    .filter(|cap| *cap < most);
                self.cards.hold(node, gpu, to, &mut self.touched);
            }
        }
    }

    /// The run is over: the rest of what was spent is counted.
    pub(super) fn count_the_rest(&mut self, until_us: u64) {
        let joules = self.until_last.energy_j();
        let Some(steered) = &mut self.steered else { return };
        let (from_us, before) = steered.read;
        let (from, until) = (Timestamp::from_us(from_us), Timestamp::from_us(until_us));
        steered.steering.spent(from, until, (joules - before).max(0.0));
    }
}
