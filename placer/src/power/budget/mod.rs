//! The budget controller: from measured energy to a price and to limits on new and running jobs.
//!
//! A [`BudgetController`] receives measurements and states how the next interval is planned: at which price
//! ([`price`]), with which forecast of the grid, and with which limits on the minimum power. It reads no clock
//! and makes no plan.
//!
//! As a window's budget runs out, the measures come in this order. The price rises. It saturates, and every job
//! whose setting a policy or the budget chooses runs at its minimum power. New jobs are held back. At last
//! running jobs are paused. To make the last measures rare, no more jobs start than the budget feeds at their
//! minimum power, in the rest of this window and in the next one, which begins with the jobs that run then.
//! What remains are a grid that is dirtier than forecast, and powers that were predicted too low.

pub mod forecast;
pub mod ledger;
pub mod price;
pub mod series;

use std::sync::Arc;
use std::time::Duration;

use wattle_common::{Budget, Power, Timestamp};

pub use crate::plan::input::GridForecast;
pub use forecast::{ForecastSource, Grid};
pub use ledger::{Ledger, Spent};
pub use price::{Controller, PriceRange};
pub use series::{Series, SeriesError, grams};

use series::KWH_J;

/// Steps of the price per window.
const STEPS: u32 = 720;
/// The shortest and the longest time between two steps.
const STEP_LEAST: Duration = Duration::from_secs(1);
const STEP_MOST: Duration = Duration::from_secs(600);
/// The reserve, as a share of a window's budget: half of the guaranteed greatest overrun, so that one step more
/// than planned is still within it.
const RESERVE: f64 = 0.005;
/// The share of a window for which the rest of its budget must have been too small before jobs are paused: a
/// quarter of an hour of a day, which it takes until every job is at its minimum power and unused nodes sleep.
/// The excess meanwhile is compensated if it is less than half of the reserve.
const SETTLING: f64 = 1.0 / 96.0;
/// In this many last steps of a window no job is paused: a restart would cost more.
const LAST_STEPS: f64 = 2.0;
/// Jobs that are held back are released when the budget feeds this multiple of the minimum power.
const RELEASE: f64 = 1.1;
/// The horizon of the grid's forecast and its resolution.
const HORIZON: Duration = Duration::from_secs(86_400);
const RESOLUTION: Duration = Duration::from_secs(1_800);

/// How the next interval is planned.
#[derive(Clone, Debug, PartialEq)]
pub struct ControlOutput {
    /// The energy price as a position in the policy's price range, 0 to 1.
    pub position: f64,
    /// The grid's intensity now over its mean in this window, past and forecast; 1 if unknown.
    pub carbon_ratio: f64,
    /// The minimum power above which no new job starts; absent: no limit.
    pub admission_limit: Option<Power>,
    /// The minimum power above which running jobs are paused; absent: no limit.
    pub preemption_limit: Option<Power>,
    /// The forecast of the grid, if its intensity is known.
    pub outlook: Option<Arc<GridForecast>>,
    /// When the next step is due.
    pub again_at: Timestamp,
}

/// Controls the price so that a budget is kept.
#[derive(Clone, Debug)]
pub struct BudgetController {
    budget: Budget,
    grid: Option<Grid>,
    ledger: Ledger,
    controller: Controller,
    /// The instant of the last step, the energy spent in all, and that at the last step, joules.
    stepped_at: Timestamp,
    joules: f64,
    joules_then: f64,
    /// Whether new jobs are held back.
    holds: bool,
    /// Since when the rest of the budget has been too small for the minimum power.
    short_since: Option<Timestamp>,
}

impl BudgetController {
    /// A budget whose first window begins at `from`.
    #[must_use]
    pub fn new(budget: Budget, grid: Option<Grid>, from: Timestamp) -> Self {
        let ledger = Ledger::new(from, budget.window());
        Self::with(budget, grid, ledger, 0.0, from)
    }

    /// Restores a controller: in a window with this energy spent, at this price.
    #[must_use]
    pub fn resumed(
        budget: Budget,
        grid: Option<Grid>,
        open: Spent,
        position: f64,
        now: Timestamp,
    ) -> Self {
        let ledger = Ledger::resumed(open, budget.window());
        Self::with(budget, grid, ledger, position, now)
    }

    fn with(
        budget: Budget,
        grid: Option<Grid>,
        ledger: Ledger,
        position: f64,
        now: Timestamp,
    ) -> Self {
        let controller = Controller::new(budget.window(), position);
        Self {
            budget,
            grid,
            ledger,
            controller,
            stepped_at: now,
            joules: 0.0,
            joules_then: 0.0,
            holds: false,
            short_since: None,
        }
    }

    /// The budget.
    #[must_use]
    pub const fn budget(&self) -> &Budget {
        &self.budget
    }

    /// The energy and carbon spent.
    #[must_use]
    pub const fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The position of the price, 0 to 1.
    #[must_use]
    pub const fn position(&self) -> f64 {
        self.controller.position()
    }

    /// Records energy that was spent evenly between two instants, joules.
    pub fn spent(&mut self, from: Timestamp, until: Timestamp, joules: f64) {
        self.ledger.add(from, until, joules, self.grid.as_ref());
        if joules.is_finite() {
            self.joules += joules.max(0.0);
        }
    }

    /// The next step, given the minimum power of the cluster.
    pub fn steer(&mut self, now: Timestamp, min_power: Power) -> ControlOutput {
        self.ledger.reach(now);
        let span = now.since(self.stepped_at);
        if !span.is_zero() {
            let drawn = (self.joules - self.joules_then) / span.as_secs_f64();
            self.controller.drew(drawn, span);
            (self.stepped_at, self.joules_then) = (now, self.joules);
        }
        let left = self.ledger.ends().since(now);
        let mut position = self.controller.position();
        let (mut admission_limit, mut preemption_limit) = (None, None);
        if let Some(allowed_w) = self.allowed_w(now) {
            position = self.controller.step(allowed_w, span, left);
            // The energy until the next step is subtracted. In the last steps an error is smaller than
            // the reserve.
            let (left_s, next_s) = (left.as_secs_f64(), self.step().as_secs_f64());
            let is_late = left_s <= LAST_STEPS * next_s;
            let seen_w = self.controller.drawn_w();
            let drawn_w = seen_w.unwrap_or(0.0).max(min_power.as_w());
            let then_w = if !is_late {
                (allowed_w * left_s - drawn_w * next_s) / (left_s - next_s)
            } else {
                allowed_w
            };
            // Hysteresis: jobs that are held back wait until the budget feeds a little more.
            let enough = if self.holds { RELEASE } else { 1.0 };
            self.holds = then_w <= min_power.as_w() * enough;
            if self.holds {
                position = 1.0;
            }
            // Jobs that run at a window's end also run in the next.
            let below = allowed_w.min(self.mean_w(now)).max(0.0);
            admission_limit = Some(Power::from_w_f64(below));
            // If the power draw is below the predicted minimum, the power draw counts.
            let needs_w = seen_w.unwrap_or(f64::INFINITY).min(min_power.as_w());
            let feeds_w = |reserve| self.allowed_w_with(reserve, now).map_or(0.0, |w| w.max(0.0));
            let settles = self.budget.window().mul_f64(SETTLING);
            let too_much_w = feeds_w(-0.5 * RESERVE * left_s / settles.as_secs_f64());
            let feeds_w = feeds_w(0.0);
            let since = self.short_since.filter(|_| needs_w > feeds_w).unwrap_or(now);
            self.short_since = (needs_w > feeds_w).then_some(since);
            if !is_late && (needs_w > too_much_w || now.since(since) >= settles) {
                let above_w = feeds_w * min_power.as_w() / needs_w;
                preemption_limit = Some(Power::from_w_f64(above_w));
            }
        }
        let outlook = self.grid.as_ref().map(|grid| Arc::new(outlook(grid, now)));
        ControlOutput {
            position,
            carbon_ratio: self.carbon_ratio(now),
            admission_limit,
            preemption_limit,
            again_at: self.again_at(now),
            outlook,
        }
    }

    /// The mean power that the budget allows until the window's end, watts, by the scarcer of energy and carbon;
    /// `None` without a budget per window.
    #[must_use]
    pub fn allowed_w(&self, now: Timestamp) -> Option<f64> {
        self.allowed_w_with(RESERVE, now)
    }

    /// The same with this share of the budget as reserve.
    fn allowed_w_with(&self, reserve: f64, now: Timestamp) -> Option<f64> {
        let (open, ends) = (self.ledger.open(), self.ledger.ends());
        let left_s = ends.since(now).as_secs_f64().max(1e-6);
        let energy = self
            .budget
            .energy_mj
            .map(|energy| (energy.as_j() * (1.0 - reserve) - open.energy_j) / left_s);
        let carbon = self.budget.carbon_ug.zip(self.grid.as_ref()).map(|(carbon, grid)| {
            let rest_g = carbon.as_g() * (1.0 - reserve) - open.carbon_g;
            let mean = grid.mean_expected(now, ends).max(1e-3);
            rest_g * (KWH_J / mean) / left_s
        });
        match (energy, carbon) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (one, other) => one.or(other),
        }
    }

    /// The mean power that the budget of an entire window allows, less the reserve, watts, by the scarcer of
    /// energy and carbon; infinite without a budget per window.
    #[must_use]
    pub fn mean_w(&self, now: Timestamp) -> f64 {
        let window_s = self.budget.window().as_secs_f64();
        let aim = (1.0 - RESERVE) / window_s;
        let energy = self.budget.energy_mj.map(|energy| energy.as_j() * aim);
        let carbon = self.budget.carbon_ug.zip(self.grid.as_ref());
        let carbon = carbon.map(|(carbon, grid)| {
            carbon.as_g() * aim * (KWH_J / self.dirty_mean(grid, now).max(1e-3))
        });
        energy.unwrap_or(f64::INFINITY).min(carbon.unwrap_or(f64::INFINITY))
    }

    /// The greater of the mean intensities of this window and the next one: a job that starts now may run
    /// through both.
    fn dirty_mean(&self, grid: &Grid, now: Timestamp) -> f64 {
        let (ends, window) = (self.ledger.ends(), self.budget.window());
        let until = |then: Timestamp| grid.mean_expected(now, then) * then.since(now).as_secs_f64();
        let next = (until(ends + window) - until(ends)) / window.as_secs_f64();
        self.window_mean(grid, now).max(next)
    }

    /// The mean intensity of this window, past and forecast, g/kWh.
    fn window_mean(&self, grid: &Grid, now: Timestamp) -> f64 {
        let (from, ends) = (self.ledger.open().from_us, self.ledger.ends());
        let (seen, ahead) = (now.since(from).as_secs_f64(), ends.since(now).as_secs_f64());
        let sum = grid.mean(from, now) * seen + grid.mean_expected(now, ends) * ahead;
        sum / (seen + ahead).max(1e-6)
    }

    /// The intensity now over its mean in this window.
    fn carbon_ratio(&self, now: Timestamp) -> f64 {
        let Some(grid) = &self.grid else { return 1.0 };
        let mean = self.window_mean(grid, now);
        // Rounded, so that a constant intensity gives exactly 1.
        if mean > 0.0 { (grid.at(now) / mean * 1e6).round() / 1e6 } else { 1.0 }
    }

    fn step(&self) -> Duration {
        (self.budget.window() / STEPS).clamp(STEP_LEAST, STEP_MOST)
    }

    fn again_at(&self, now: Timestamp) -> Timestamp {
        let grid = self.grid.as_ref().map(|grid| grid.changes_after(now));
        let steps = self.budget.has_window().then(|| now + self.step());
        let all = [Some(self.ledger.ends()), grid, steps];
        all.into_iter().flatten().min().unwrap_or(Timestamp::FOREVER)
    }

    /// The overrun of a window as a share of the budget, the greater of energy's and carbon's; 0 if the budget
    /// was kept or there is none.
    #[must_use]
    pub fn overrun(&self, window: &Spent) -> f64 {
        let beyond = |spent: f64, budget: f64| (spent / budget - 1.0).max(0.0);
        let energy = self.budget.energy_mj.map(|energy| beyond(window.energy_j, energy.as_j()));
        let carbon = self.budget.carbon_ug.map(|carbon| beyond(window.carbon_g, carbon.as_g()));
        energy.unwrap_or(0.0).max(carbon.unwrap_or(0.0))
    }
}

fn outlook(grid: &Grid, now: Timestamp) -> GridForecast {
    let looks = HORIZON.as_secs() / RESOLUTION.as_secs();
    let at = |i: u64| now + Duration::from_secs(i * RESOLUTION.as_secs());
    let expected = (0..looks).map(|i| (at(i), grid.expected(now, at(i)))).collect();
    // The forecast expires after 24 h.
    GridForecast { now: grid.at(now), until: now + HORIZON, expected }
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "exact figures are meant")]
mod tests;
