//! From metered energy to the price and the power limits of the next rounds.
//!
//! The caller meters energy and calls [`Controller::control`] when [`Controller::control_at`] is due.

use std::sync::Arc;
use std::time::Duration;

use wattle_common::bounds::OutOfBounds;
use wattle_common::event::{EventTargets, GridEvent};
use wattle_common::feeders::FeederLimit;
use wattle_common::{FeederId, LimitOverTime, NodeId, Power, Timestamp};

use crate::controller::{Controller, PolicyHandle};
use crate::plan::input::GridForecast;
use crate::policies::RELATIVE_PRICES;
use crate::power::budget::{BudgetController, Grid};
use crate::power::model::{PowerEstimate, min_power};

/// How long before its start a lower power limit is in force for plans: caps take seconds, and a checkpoint about a
/// minute.
pub(crate) const LIMIT_LEAD: Duration = Duration::from_secs(60);

/// The budget in force.
#[derive(Clone, Debug)]
pub struct ActiveBudget {
    controller: BudgetController,
    next: Timestamp,
    position: f64,
}

impl ActiveBudget {
    /// The feedback controller with its ledger.
    #[must_use]
    pub const fn controller(&self) -> &BudgetController {
        &self.controller
    }

    /// The price's position in the policy's range, from 0 to 1.
    #[must_use]
    pub const fn position(&self) -> f64 {
        self.position
    }
}

/// The changes of a control step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Controlled {
    /// Whether the limits changed at all.
    pub limits_changed: bool,
    /// Whether they changed so that a plan may differ.
    pub plan_again: bool,
}

impl<P: PolicyHandle> Controller<P> {
    /// Puts a budget in force.
    pub fn set_budget(&mut self, controller: BudgetController, now: Timestamp) {
        let position = controller.position();
        self.budget = Some(ActiveBudget { controller, next: now, position });
        self.merge_power_limits(now);
    }

    /// Checks that the feeder which an event names exists.
    ///
    /// # Errors
    /// The feeders that exist, or how to configure some.
    pub fn check_feeder_of(&self, event: &GridEvent) -> Result<(), OutOfBounds> {
        event.feeder.as_ref().map_or(Ok(()), |feeder| self.check_feeder(feeder))
    }

    /// Checks that an event may name a feeder.
    ///
    /// # Errors
    /// The feeders that exist, or how to configure some.
    pub fn check_feeder(&self, feeder: &FeederId) -> Result<(), OutOfBounds> {
        self.config.feeders.check_event(feeder)
    }

    /// Puts the targets of grid events in force, beside the budget and the limits of feeders.
    pub fn set_event_targets(&mut self, targets: EventTargets, now: Timestamp) -> Controlled {
        if targets == self.event_targets {
            return Controlled::default();
        }
        let feeders = targets.feeders.iter();
        let feeders = feeders.map(|(feeder, steps)| (feeder.clone(), steps.clone().into()));
        self.limits.feeders_over_time = Arc::new(feeders.collect());
        self.event_targets = targets;
        let mut controlled = self.merge_power_limits(now);
        controlled.plan_again = true;
        controlled
    }

    /// The targets of grid events over time.
    #[must_use]
    pub const fn event_targets(&self) -> &EventTargets {
        &self.event_targets
    }

    /// Puts the lower one of the budget's power limit and the targets of events in force.
    fn merge_power_limits(&mut self, now: Timestamp) -> Controlled {
        let budget = self.budget.as_ref().map(|budget| budget.controller.budget());
        let limit = LimitOverTime::new(budget, self.event_targets.site.clone()).map(Arc::new);
        let differs = self.limits.power_over_time != limit;
        self.limits.power_over_time = limit;
        let mut controlled = self.apply_power_limits(now);
        // Later changes of the limit concern jobs that cannot stop, and the bounds of caps.
        controlled.plan_again |= differs;
        controlled
    }

    /// Puts the steps of power limits over time in force that hold now or soon; without one of the site, the constant
    /// limit.
    fn apply_power_limits(&mut self, now: Timestamp) -> Controlled {
        let until = now + LIMIT_LEAD;
        let step = |limit: &LimitOverTime| limit.least(now, until + Duration::from_micros(1));
        let changes = self.limits.over_time().flat_map(|(_, limit)| {
            let later = limit.changes_after(until).map(|at| at - LIMIT_LEAD);
            limit.changes_after(now).into_iter().chain(later)
        });
        self.power_step_at = changes.min();
        let most = match &self.limits.power_over_time {
            Some(limit) => step(limit),
            None => self.budget.as_ref().and_then(|budget| budget.controller.budget().power_mw),
        };
        let of_feeders = self.limits.feeders_over_time.iter().filter_map(|(feeder, limit)| {
            Some((Arc::clone(self.limits.carried.on(feeder)?), step(limit)?))
        });
        let of_feeders: Vec<(Arc<FeederLimit>, Power)> = of_feeders.collect();
        let feeders_changed = self.limits.power_bounds.targets() != of_feeders;
        if feeders_changed {
            Arc::make_mut(&mut self.limits.power_bounds).set_targets(&of_feeders);
        }
        let changed = self.limits.power_max != most || feeders_changed;
        self.limits.power_max = most;
        self.limits.caps_enforced = self.limits.is_power_limited();
        Controlled { limits_changed: changed, plan_again: changed }
    }

    /// Replaces the carbon intensity of the budget in force; window, spending and price continue.
    pub fn set_grid(&mut self, grid: Option<Grid>, now: Timestamp) {
        if let Some(budget) = &mut self.budget {
            budget.controller.set_grid(grid);
            budget.next = now;
        }
    }

    /// A node reports the limit of the sum of its caps, or that it has none. Returns whether that is new.
    pub fn node_limit_known(&mut self, node: &NodeId, limit: Option<Power>) -> bool {
        if self.limits.power_bounds.of_node(node) == limit {
            return false;
        }
        Arc::make_mut(&mut self.limits.power_bounds).set_node(node, limit);
        self.limits.caps_enforced = self.limits.is_power_limited();
        true
    }

    /// The budget in force.
    #[must_use]
    pub const fn budget(&self) -> Option<&ActiveBudget> {
        self.budget.as_ref()
    }

    /// Energy was metered, spread evenly between two instants, joules.
    pub fn metered(&mut self, from: Timestamp, until: Timestamp, joules: f64) {
        if let Some(budget) = &mut self.budget {
            budget.controller.spent(from, until, joules);
        }
    }

    /// When the next control step of the budget or the energy aim is due.
    #[must_use]
    pub fn control_at(&self) -> Option<Timestamp> {
        let budget = self.budget.as_ref().map(|budget| budget.next);
        let steps = budget.into_iter().chain(self.aim_step_at()).chain(self.twin_step_at());
        steps.chain(self.power_step_at).min()
    }

    /// Makes the next control step due at once.
    pub const fn control_soon(&mut self, now: Timestamp) {
        if let Some(budget) = &mut self.budget {
            budget.next = now;
        }
    }

    /// Takes the control steps that are due: sets the price and the limits for the next rounds.
    pub fn control(&mut self, now: Timestamp) -> Controlled {
        if self.twin_step_at().is_some() {
            self.follow_twin(now);
        }
        let is_step = self.power_step_at.is_some_and(|at| at <= now);
        let power = if is_step { self.apply_power_limits(now) } else { Controlled::default() };
        let steps = [power, self.control_aim(now), self.control_budget(now)];
        Controlled {
            limits_changed: steps.iter().any(|step| step.limits_changed),
            plan_again: steps.iter().any(|step| step.plan_again),
        }
    }

    fn control_budget(&mut self, now: Timestamp) -> Controlled {
        if self.budget.as_ref().is_none_or(|budget| now < budget.next) {
            return Controlled::default();
        }
        let needed = min_power(self.input(), PowerEstimate::under(*self.capabilities()));
        let Some(budget) = &mut self.budget else { return Controlled::default() };
        let output = budget.controller.steer(now, needed);
        (budget.next, budget.position) = (output.again_at, output.position);
        let has_window = budget.controller.budget().has_window();
        let mut price = self.config.price;
        if has_window {
            let range = self.can.prices.unwrap_or(RELATIVE_PRICES);
            price = price.max(range.at(output.position));
        }
        let limits = &mut self.limits;
        let differs = |a: f64, b: f64| a.total_cmp(&b).is_ne();
        let intensity = |grid: &Option<Arc<GridForecast>>| grid.as_ref().map(|grid| grid.now);
        let admission_changed = output.admission_limit != limits.admission_limit;
        let others_changed = differs(price, limits.price)
            || differs(output.carbon_ratio, limits.carbon_ratio)
            || output.preemption_limit.is_some()
            || intensity(&output.grid_forecast) != intensity(&limits.grid);
        limits.price = price;
        limits.price_sets_clocks = has_window;
        limits.carbon_ratio = output.carbon_ratio;
        limits.admission_limit = output.admission_limit;
        limits.preemption_limit = output.preemption_limit;
        limits.grid = output.grid_forecast;
        Controlled {
            limits_changed: admission_changed || others_changed,
            plan_again: others_changed || (admission_changed && self.state.queue_len() > 0),
        }
    }

    /// Why no queued job ever starts under this budget on an empty cluster: the cluster's baseline
    /// power and the mean power that the budget supplies. `None` where the budget is not the cause.
    #[must_use]
    pub fn starved(&self) -> Option<Starved> {
        self.limits.admission_limit?;
        let controller = self.budget.as_ref()?.controller();
        Some(Starved {
            baseline: min_power(self.input(), PowerEstimate::Fixed).upper,
            // A full window's mean: the open window may be spent.
            supplied_w: controller.mean_w(self.state.now()),
        })
    }
}

/// A cluster on which the budget lets nothing start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Starved {
    /// The power of the cluster without jobs.
    pub baseline: Power,
    /// The mean power that a full window's budget supplies, watts.
    pub supplied_w: f64,
}
