//! One bound on the mean delay of a set of jobs, and the highest price at which it holds.

use std::time::Duration;

use crate::power::budget::PriceController;
use crate::power::slowdown::{HORIZON, POSITION_MAX};

/// Smallest bound, as a share, so that the permitted delay is positive.
const SLOWDOWN_LEAST: f64 = 1e-4;

/// A bound and its state.
#[derive(Clone, Debug)]
pub(super) struct Hold {
    /// How much later the jobs may complete on average, a share.
    bound: f64,
    price: PriceController,
    /// Time that the jobs have spent queued or running, job-seconds. Each second's weight decays
    /// exponentially with the time constant [`HORIZON`].
    pub(super) present_s: f64,
    /// Estimated delay of these jobs, job-seconds, with the same weights.
    pub(super) delay_s: f64,
}

/// The jobs of a bound at one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Accrual {
    /// Their number under the reference plus `delay`: that of [`super`]'s `N`.
    pub(super) jobs: f64,
    /// The delay that they accrue per second.
    pub(super) delay: f64,
}

impl Hold {
    /// A bound that continues from job-seconds and a position of the price.
    pub(super) fn new(bound: f64, present_s: f64, delay_s: f64, position: f64) -> Self {
        let finite = |value: f64| if value.is_finite() { value } else { 0.0 };
        Self {
            bound: bound.max(SLOWDOWN_LEAST),
            price: PriceController::new(HORIZON, 1.0 - position),
            present_s: finite(present_s).max(0.0),
            delay_s: finite(delay_s),
        }
    }

    /// Position of the price in its range, 0 to 1.
    pub(super) fn position(&self) -> f64 {
        (1.0 - self.price.position()).min(POSITION_MAX)
    }

    /// Counts the time `past` since the last step, of which `span` had these jobs, and returns the position of the price
    /// in force; `None` while there are no jobs.
    pub(super) fn step(&mut self, now: Accrual, past: Duration, span: Duration) -> Option<f64> {
        let dt = span.as_secs_f64();
        let kept = (-past.as_secs_f64() / HORIZON.as_secs_f64()).exp();
        self.present_s = self.present_s * kept + now.jobs * dt;
        self.delay_s = self.delay_s * kept + now.delay * dt;
        if now.jobs <= 0.0 {
            return None;
        }
        // The price rises where little delay accrues: the controller's own position is the price's complement.
        let share = self.bound / (1.0 + self.bound);
        let unused = (share * self.present_s - self.delay_s) / HORIZON.as_secs_f64();
        let permitted = share * now.jobs + unused;
        self.price.measured(now.delay, span);
        let published = self.price.step(permitted, span, HORIZON, false);
        Some((1.0 - published).min(POSITION_MAX))
    }

    /// A price above the one in force has had no effect: its position stays within `lead` above `in_force`, so that it
    /// falls at once when this bound is the one that decides.
    pub(super) fn follow(&mut self, in_force: f64, lead: f64) {
        self.price.at_least(1.0 - (in_force + lead).min(1.0));
    }
}
