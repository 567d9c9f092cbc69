//! Holds a budget: from what was spent to a price, and what else must be done to keep within it.
//!
//! A [`BudgetController`] is told what was measured, and says how the next stretch is to be planned: at which
//! price ([`price`]), with which view of the grid, and what everybody together may need at the
//! min_power before anything new is started. It reads no clock and plans nothing.
//!
//! Order of means as a window runs dry: the price rises; it saturates, and every job that a policy or
//! the budget can set goes to its min_power; nothing new starts; at last work that runs is paused.
//! So that it seldom comes to that, no more is started than the budget feeds at its min_power:
//! neither in what is left of this window nor in the next one, which begins with what runs then. What
//! is left is a grid that turns out dirtier than was expected, and powers that were foretold too low.

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

/// How often in a window the price is moved.
const STEPS: u32 = 720;
/// The least and the most time between two steps.
const STEP_LEAST: Duration = Duration::from_secs(1);
const STEP_MOST: Duration = Duration::from_secs(600);
/// What is kept in hand of a window's budget, as a share: half of the overrun that is reserved_power at
/// most, so that one step more than was foreseen is still within it.
const IN_HAND: f64 = 0.005;
/// The share of a window for which the rest of its budget must have been too little before work is
/// paused, a quarter of an hour of a day: so long it takes until everybody is at the min_power and
/// nodes that are left sleep. What is spent too much meanwhile is made up for, where it is less than
/// half of what is kept in hand.
const SETTLES: f64 = 1.0 / 96.0;
/// Before so many steps are left of a window nothing is paused: it would hardly be worth a restart.
const LAST_STEPS: f64 = 2.0;
/// New work that is held back is let go when what runs could draw so many times what it does.
const RELEASE: f64 = 1.1;
/// How far ahead the grid is looked at, and how finely.
const LOOKS_AHEAD: Duration = Duration::from_secs(86_400);
const LOOK: Duration = Duration::from_secs(1_800);

/// How the next stretch is to be planned.
#[derive(Clone, Debug, PartialEq)]
pub struct ControlOutput {
    /// What energy is worth, as a position in the policy's range, 0 to 1.
    pub position: f64,
    /// The grid's intensity now over its mean in this window, seen and expected; 1 where unknown.
    pub carbon_ratio: f64,
    /// What everybody together may draw at the min_power before anything new starts; absent: no
    /// matter.
    pub admission_limit: Option<Power>,
    /// What everybody together may draw at the min_power, beyond which work is paused; absent: no
    /// matter.
    pub preemption_limit: Option<Power>,
    /// The grid, where anything is known of it.
    pub outlook: Option<Arc<GridForecast>>,
    /// When to ask again.
    pub again_at: Timestamp,
}

/// Holds a budget.
#[derive(Clone, Debug)]
pub struct BudgetController {
    budget: Budget,
    grid: Option<Grid>,
    ledger: Ledger,
    controller: Controller,
    /// When it was last asked, and what had been spent by then in all, joules.
    asked_at: Timestamp,
    joules: f64,
    joules_then: f64,
    /// Whether new work is held back.
    holds: bool,
    /// Since when what is left has been too little for what runs at its min_power.
    short_since: Option<Timestamp>,
}

impl BudgetController {
    /// A budget whose first window begins at `from`.
    #[must_use]
    pub fn new(budget: Budget, grid: Option<Grid>, from: Timestamp) -> Self {
        let ledger = Ledger::new(from, budget.window());
        Self::with(budget, grid, ledger, 0.0, from)
    }

    /// Goes on where another left off: in a window of which so much was spent, at a price.
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
            asked_at: now,
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

    /// What was spent.
    #[must_use]
    pub const fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Where the price is, from 0 to 1.
    #[must_use]
    pub const fn position(&self) -> f64 {
        self.controller.position()
    }

    /// So many joules were spent evenly between two instants.
    pub fn spent(&mut self, from: Timestamp, until: Timestamp, joules: f64) {
        self.ledger.add(from, until, joules, self.grid.as_ref());
        if joules.is_finite() {
            self.joules += joules.max(0.0);
        }
    }

    /// How the next stretch is to be planned, if what runs now needs `min_power` at its min_power.
    pub fn steer(&mut self, now: Timestamp, min_power: Power) -> ControlOutput {
        self.ledger.reach(now);
        let span = now.since(self.asked_at);
        if !span.is_zero() {
            let drawn = (self.joules - self.joules_then) / span.as_secs_f64();
            self.controller.drew(drawn, span);
            (self.asked_at, self.joules_then) = (now, self.joules);
        }
        let left = self.ledger.ends().since(now);
        let mut position = self.controller.position();
        let (mut admission_limit, mut preemption_limit) = (None, None);
        if let Some(allowed_w) = self.allowed_w(now) {
            position = self.controller.step(allowed_w, span, left);
            // What is drawn until the next step is no longer there then. In the last two steps an
            // error is less than what is kept in hand.
            let (left_s, next_s) = (left.as_secs_f64(), self.step().as_secs_f64());
            let is_late = left_s <= LAST_STEPS * next_s;
            let seen_w = self.controller.drawn_w();
            let drawn_w = seen_w.unwrap_or(0.0).max(min_power.as_w());
            let then_w = if !is_late {
                (allowed_w * left_s - drawn_w * next_s) / (left_s - next_s)
            } else {
                allowed_w
            };
            // Once held back, new work waits until there is a little more than enough.
            let enough = if self.holds { RELEASE } else { 1.0 };
            self.holds = then_w <= min_power.as_w() * enough;
            if self.holds {
                position = 1.0;
            }
            // What runs at a window's end also runs in the next.
            let below = allowed_w.min(self.mean_w(now)).max(0.0);
            admission_limit = Some(Power::from_w_f64(below));
            // Where less is drawn than was foretold of the min_power, what is drawn counts.
            let needs_w = seen_w.unwrap_or(f64::INFINITY).min(min_power.as_w());
            let feeds_w = |in_hand| self.allowed_w_but(in_hand, now).map_or(0.0, |w| w.max(0.0));
            let settles = self.budget.window().mul_f64(SETTLES);
            let too_much_w = feeds_w(-0.5 * IN_HAND * left_s / settles.as_secs_f64());
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

    /// What may be drawn in the mean until the window's end, watts; `None` where nothing is limited
    /// over a window. Of energy and carbon, the scarcer.
    #[must_use]
    pub fn allowed_w(&self, now: Timestamp) -> Option<f64> {
        self.allowed_w_but(IN_HAND, now)
    }

    /// The same with this share of the budget kept in hand.
    fn allowed_w_but(&self, in_hand: f64, now: Timestamp) -> Option<f64> {
        let (open, ends) = (self.ledger.open(), self.ledger.ends());
        let left_s = ends.since(now).as_secs_f64().max(1e-6);
        let energy = self
            .budget
            .energy_mj
            .map(|energy| (energy.as_j() * (1.0 - in_hand) - open.energy_j) / left_s);
        let carbon = self.budget.carbon_ug.zip(self.grid.as_ref()).map(|(carbon, grid)| {
            let rest_g = carbon.as_g() * (1.0 - in_hand) - open.carbon_g;
            let mean = grid.mean_expected(now, ends).max(1e-3);
            rest_g * (KWH_J / mean) / left_s
        });
        match (energy, carbon) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (one, other) => one.or(other),
        }
    }

    /// What a whole window's budget feeds in the mean, watts, but for what is kept in hand; infinite
    /// where nothing is limited over a window. Of energy and carbon, the scarcer.
    #[must_use]
    pub fn mean_w(&self, now: Timestamp) -> f64 {
        let window_s = self.budget.window().as_secs_f64();
        let aim = (1.0 - IN_HAND) / window_s;
        let energy = self.budget.energy_mj.map(|energy| energy.as_j() * aim);
        let carbon = self.budget.carbon_ug.zip(self.grid.as_ref());
        let carbon = carbon.map(|(carbon, grid)| {
            carbon.as_g() * aim * (KWH_J / self.dirty_mean(grid, now).max(1e-3))
        });
        energy.unwrap_or(f64::INFINITY).min(carbon.unwrap_or(f64::INFINITY))
    }

    /// The mean intensity of this window or of the next one, whichever is more: what is started now may
    /// run through both.
    fn dirty_mean(&self, grid: &Grid, now: Timestamp) -> f64 {
        let (ends, window) = (self.ledger.ends(), self.budget.window());
        let until = |then: Timestamp| grid.mean_expected(now, then) * then.since(now).as_secs_f64();
        let next = (until(ends + window) - until(ends)) / window.as_secs_f64();
        self.window_mean(grid, now).max(next)
    }

    /// The mean intensity of this window, as far as it was seen and as it is expected, g/kWh.
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
        // Rounded: where the intensity never changes it is one, to the last bit.
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

    /// Spent beyond the budget in a window, as a share of it; the greater of energy's and carbon's.
    /// 0 where it was kept, or nothing is limited.
    #[must_use]
    pub fn overrun(&self, window: &Spent) -> f64 {
        let beyond = |spent: f64, budget: f64| (spent / budget - 1.0).max(0.0);
        let energy = self.budget.energy_mj.map(|energy| beyond(window.energy_j, energy.as_j()));
        let carbon = self.budget.carbon_ug.map(|carbon| beyond(window.carbon_g, carbon.as_g()));
        energy.unwrap_or(0.0).max(carbon.unwrap_or(0.0))
    }
}

fn outlook(grid: &Grid, now: Timestamp) -> GridForecast {
    let looks = LOOKS_AHEAD.as_secs() / LOOK.as_secs();
    let at = |i: u64| now + Duration::from_secs(i * LOOK.as_secs());
    let expected = (0..looks).map(|i| (at(i), grid.expected(now, at(i)))).collect();
    // Whoever is not told anew for a day knows nothing any more.
    GridForecast { now: grid.at(now), until: now + LOOKS_AHEAD, expected }
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "exact figures are meant")]
mod tests;
