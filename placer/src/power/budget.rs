//! Budget control: energy and carbon budgets per window.
//!
//! The [`BudgetController`] takes measured energy and sets the parameters of the next planning
//! interval: the energy price ([`price`]), the grid forecast, and the admission and preemption limits
//! on the minimum power of all jobs. It reads no clock and makes no plans.
//!
//! As the rest of the budget becomes scarce, the controller acts in this order: the price rises; at its
//! maximum, every job with adjustable settings runs at its minimum power; no new jobs are admitted;
//! running jobs are preempted. While no new jobs are admitted the price is at its maximum, without the rate
//! limit of the control law. To make preemption rare, a job is admitted only if the budget sustains
//! the minimum power of all jobs, both for the rest of this window and in the next window, which starts
//! with the jobs that run then. The remaining causes of preemption are a grid with a higher carbon
//! intensity than forecast, and underestimated power.

pub mod forecast;
pub mod ledger;
pub mod price;
pub mod series;

use std::sync::Arc;
use std::time::Duration;
use wattle_common::time::scaled;

use wattle_common::{Budget, Power, Timestamp};

pub use crate::plan::input::GridForecast;
pub use forecast::{ForecastSource, Grid};
pub use ledger::{Ledger, Spent};
pub use price::PriceController;
pub use series::{Series, SeriesError, grams};

use crate::power::model::MinimumPower;
use series::KWH_J;

/// Control steps per window.
const STEPS: u32 = 720;
/// Bounds of the time between two control steps.
const STEP_LEAST: Duration = Duration::from_secs(1);
const STEP_MOST: Duration = Duration::from_secs(600);
/// Reserve as a share of the window's budget: half of the permitted overrun of 1 %, so that one step
/// above the forecast stays within it.
const RESERVE: f64 = 0.005;
/// Time for which the budget must have been insufficient before jobs are preempted, as a share of a
/// window: a quarter of an hour of a day. Within this time jobs reach their minimum power, predictions of new
/// jobs become narrower and idle nodes go to sleep. It does not apply if the excess would certainly use more
/// than half of the reserve.
const PREEMPTION_DELAY: f64 = 1.0 / 96.0;
/// Minimum of the delay, itself at most this share of the window: new settings must be applied and metered.
const PREEMPTION_DELAY_LEAST: Duration = Duration::from_secs(300);
const PREEMPTION_DELAY_MOST: f64 = 1.0 / 12.0;
/// Number of last steps of a window in which no job is preempted, because it would soon restart.
const LAST_STEPS: f64 = 2.0;
/// Admission resumes when the sustainable power is this factor of the minimum power.
const RELEASE: f64 = 1.1;
/// Horizon and resolution of the grid forecast.
const FORECAST_HORIZON: Duration = Duration::from_secs(86_400);
const FORECAST_STEP: Duration = Duration::from_secs(1_800);

/// Parameters of the next planning interval.
#[derive(Clone, Debug, PartialEq)]
pub struct ControlOutput {
    /// Energy price as a position in the policy's range, 0 to 1.
    pub position: f64,
    /// Carbon intensity now over its mean in this window, measured and forecast; 1 if unknown.
    pub carbon_ratio: f64,
    /// Upper limit on the minimum power of all jobs for admissions; `None`: no limit.
    pub admission_limit: Option<Power>,
    /// Minimum power of all jobs above which jobs are preempted; `None`: no limit.
    pub preemption_limit: Option<Power>,
    /// Grid forecast, if an intensity is known.
    pub grid_forecast: Option<Arc<GridForecast>>,
    /// Time of the next control step.
    pub again_at: Timestamp,
}

/// Controller of one budget.
#[derive(Clone, Debug)]
pub struct BudgetController {
    budget: Budget,
    grid: Option<Grid>,
    ledger: Ledger,
    controller: PriceController,
    /// Time of the last control step.
    stepped_at: Timestamp,
    /// Total energy now and at the last control step, joules.
    joules: f64,
    joules_at_step: f64,
    /// Whether no jobs are admitted.
    holds: bool,
    /// Since when the budget does not sustain the minimum power of the running jobs.
    short_since: Option<Timestamp>,
}

impl BudgetController {
    /// A controller whose first window begins at `from`.
    #[must_use]
    pub fn new(budget: Budget, grid: Option<Grid>, from: Timestamp) -> Self {
        let ledger = Ledger::new(from, budget.window());
        Self::with(budget, grid, ledger, 0.0, from)
    }

    /// A controller restored from its persisted open window and price position.
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
        let controller = PriceController::new(budget.window(), position);
        Self {
            budget,
            grid,
            ledger,
            controller,
            stepped_at: now,
            joules: 0.0,
            joules_at_step: 0.0,
            holds: false,
            short_since: None,
        }
    }

    /// The budget.
    #[must_use]
    pub const fn budget(&self) -> &Budget {
        &self.budget
    }

    /// The ledger of energy and carbon spent.
    #[must_use]
    pub const fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Position of the price, 0 to 1.
    #[must_use]
    pub const fn position(&self) -> f64 {
        self.controller.position()
    }

    /// Replaces the carbon intensity. Energy that is already spent keeps its emissions.
    pub fn set_grid(&mut self, grid: Option<Grid>) {
        self.grid = grid;
    }

    /// Adds energy spent evenly between two instants, joules.
    pub fn spent(&mut self, from: Timestamp, until: Timestamp, joules: f64) {
        self.ledger.add(from, until, joules, self.grid.as_ref());
        if joules.is_finite() {
            self.joules += joules.max(0.0);
        }
    }

    /// Performs a control step. `minimum` is the minimum power of the cluster with its running jobs: its
    /// upper bound counts, the lower one only for preemption without delay.
    pub fn steer(&mut self, now: Timestamp, minimum: MinimumPower) -> ControlOutput {
        let (upper_w, lower_w) = (minimum.upper.as_w(), minimum.lower.as_w());
        self.ledger.close_until(now);
        let span = now.since(self.stepped_at);
        if !span.is_zero() {
            let drawn = (self.joules - self.joules_at_step) / span.as_secs_f64();
            self.controller.measured(drawn, span);
            (self.stepped_at, self.joules_at_step) = (now, self.joules);
        }
        let left = self.ledger.ends().since(now);
        let mut position = self.controller.position();
        let (mut admission_limit, mut preemption_limit) = (None, None);
        if let Some(allowed_w) = self.allowed_w(now) {
            position = self.controller.step(allowed_w, span, left, self.holds);
            // Sustainable power at the next step. In the last steps the error is less than the reserve.
            let (left_s, next_s) = (left.as_secs_f64(), self.step().as_secs_f64());
            let is_late = left_s <= LAST_STEPS * next_s;
            let measured_w = self.controller.drawn_w();
            let drawn_w = measured_w.unwrap_or(0.0).max(upper_w);
            let next_allowed_w = if !is_late {
                (allowed_w * left_s - drawn_w * next_s) / (left_s - next_s)
            } else {
                allowed_w
            };
            // Hysteresis: admission resumes with a margin.
            let margin = if self.holds { RELEASE } else { 1.0 };
            self.holds = next_allowed_w <= upper_w * margin;
            if self.holds {
                // The maximum at once: the control law alone would take part of the window to reach it.
                position = 1.0;
            }
            // Jobs that run at the end of a window also run in the next.
            let limit_w = allowed_w.min(self.mean_w(now)).max(0.0);
            admission_limit = Some(Power::from_w_f64(limit_w));
            // The measured draw counts if it is less than the estimated minimum power.
            let needed_w = measured_w.unwrap_or(f64::INFINITY).min(upper_w);
            let sustained_w =
                |reserve| self.allowed_w_with(reserve, now).map_or(0.0, |w| w.max(0.0));
            let delay = self.preemption_delay();
            let excessive_w = sustained_w(-0.5 * RESERVE * left_s / delay.as_secs_f64());
            let sustained_w = sustained_w(0.0);
            let since = self.short_since.filter(|_| needed_w > sustained_w).unwrap_or(now);
            self.short_since = (needed_w > sustained_w).then_some(since);
            if !is_late && (needed_w.min(lower_w) > excessive_w || now.since(since) >= delay) {
                let limit_w = sustained_w * upper_w / needed_w;
                preemption_limit = Some(Power::from_w_f64(limit_w));
            }
        }
        let grid_forecast = self.grid.as_ref().map(|grid| Arc::new(grid_forecast(grid, now)));
        ControlOutput {
            position,
            carbon_ratio: self.carbon_ratio(now),
            admission_limit,
            preemption_limit,
            again_at: self.again_at(now),
            grid_forecast,
        }
    }

    /// Sustainable mean power until the end of the window, watts: the lower of the energy and the carbon
    /// budget's. `None` without a budget per window.
    #[must_use]
    pub fn allowed_w(&self, now: Timestamp) -> Option<f64> {
        self.allowed_w_with(RESERVE, now)
    }

    /// The sustainable mean power with this share of the budget as reserve, watts.
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

    /// Sustainable mean power of a complete window less the reserve, watts: the lower of the energy and
    /// the carbon budget's. Infinite without a budget per window.
    #[must_use]
    pub fn mean_w(&self, now: Timestamp) -> f64 {
        let window_s = self.budget.window().as_secs_f64();
        let aim = (1.0 - RESERVE) / window_s;
        let energy = self.budget.energy_mj.map(|energy| energy.as_j() * aim);
        let carbon = self.budget.carbon_ug.zip(self.grid.as_ref());
        let carbon = carbon.map(|(carbon, grid)| {
            carbon.as_g() * aim * (KWH_J / self.higher_mean(grid, now).max(1e-3))
        });
        energy.unwrap_or(f64::INFINITY).min(carbon.unwrap_or(f64::INFINITY))
    }

    /// Mean intensity of this window or of the next one, whichever is higher, g/kWh: a job admitted now
    /// may run through both.
    fn higher_mean(&self, grid: &Grid, now: Timestamp) -> f64 {
        let (ends, window) = (self.ledger.ends(), self.budget.window());
        let until = |then: Timestamp| grid.mean_expected(now, then) * then.since(now).as_secs_f64();
        let next = (until(ends + window) - until(ends)) / window.as_secs_f64();
        self.window_mean(grid, now).max(next)
    }

    /// Mean intensity of this window, measured and forecast, g/kWh.
    fn window_mean(&self, grid: &Grid, now: Timestamp) -> f64 {
        let (from, ends) = (self.ledger.open().from_us, self.ledger.ends());
        let (past, ahead) = (now.since(from).as_secs_f64(), ends.since(now).as_secs_f64());
        let sum = grid.mean(from, now) * past + grid.mean_expected(now, ends) * ahead;
        sum / (past + ahead).max(1e-6)
    }

    /// Intensity now over its mean in this window.
    fn carbon_ratio(&self, now: Timestamp) -> f64 {
        let Some(grid) = &self.grid else { return 1.0 };
        let mean = self.window_mean(grid, now);
        // Rounded, so that the ratio is exactly 1 for a constant intensity.
        if mean > 0.0 { (grid.at(now) / mean * 1e6).round() / 1e6 } else { 1.0 }
    }

    fn step(&self) -> Duration {
        (self.budget.window() / STEPS).clamp(STEP_LEAST, STEP_MOST)
    }

    /// The delay before preemption.
    fn preemption_delay(&self) -> Duration {
        let window = self.budget.window();
        scaled(window, PREEMPTION_DELAY)
            .max(PREEMPTION_DELAY_LEAST.min(scaled(window, PREEMPTION_DELAY_MOST)))
    }

    fn again_at(&self, now: Timestamp) -> Timestamp {
        let grid = self.grid.as_ref().map(|grid| grid.changes_after(now));
        let steps = self.budget.has_window().then(|| now + self.step());
        let all = [Some(self.ledger.ends()), grid, steps];
        all.into_iter().flatten().min().unwrap_or(Timestamp::FOREVER)
    }

    /// Overrun of a window as a share of its budget, the larger of energy's and carbon's. 0 if the
    /// budget was kept or there is none.
    #[must_use]
    pub fn overrun(&self, window: &Spent) -> f64 {
        let beyond = |spent: f64, budget: f64| (spent / budget - 1.0).max(0.0);
        let energy = self.budget.energy_mj.map(|energy| beyond(window.energy_j, energy.as_j()));
        let carbon = self.budget.carbon_ug.map(|carbon| beyond(window.carbon_g, carbon.as_g()));
        energy.unwrap_or(0.0).max(carbon.unwrap_or(0.0))
    }
}

/// The forecast of the next day, valid for a day.
fn grid_forecast(grid: &Grid, now: Timestamp) -> GridForecast {
    let steps = FORECAST_HORIZON.as_secs() / FORECAST_STEP.as_secs();
    let at = |i: u64| now + Duration::from_secs(i * FORECAST_STEP.as_secs());
    let expected = (0..steps).map(|i| (at(i), grid.expected(now, at(i)))).collect();
    GridForecast { now: grid.at(now), until: now + FORECAST_HORIZON, expected }
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "exact figures are meant")]
mod tests;
