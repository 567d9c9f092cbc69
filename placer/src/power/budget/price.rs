//! The control law of the energy price.
//!
//! The logarithm of the price follows the logarithm of power draw over sustainable power. This is
//! multiplicative dual mirror descent on "minimise completion time within the budget", as for resources
//! that must last over a horizon (Balseiro, Lu, Mirrokni, arXiv 2011.10124; adaptive pacing of
//! advertising budgets is equivalent, Balseiro and Gur 2019). The sustainable power is the rest of the
//! budget over the rest of the window, in place of their constant rate, so past errors are compensated.
//! In terms of control it is an integral controller on a logarithmic scale.
//!
//! * **Bounded.** The price lies between 0 and the highest that changes a decision. One step reacts to
//!   at most a factor `e` between power draw and sustainable power.
//! * **No wind-up.** The position is clamped to its range, so the direction reverses at once. While admission is
//!   closed the position only rises: a draw above the sustainable power shows that the price must stay high,
//!   and a draw below it is that of the maximum price.
//! * **Stable.** Over its range the price changes the power draw by a factor of two or three
//!   (measured: 2.1 for PowerFlow and `wattle` on powerflow-16). With an error of one the price crosses
//!   its range in [`CROSSES`] of a window, which is about the time constant of the closed loop. Power
//!   draw is smoothed over a quarter of it. Towards the end of the window the controller is faster,
//!   because less time is left to correct an error.
//! * **Dead band.** Rescaling jobs has a cost, so a change of less than [`STEP`] of the range is not
//!   published.

use std::time::Duration;

/// Share of a window in which the price crosses its range at an error of one: an hour of a day.
const CROSSES: f64 = 1.0 / 24.0;
/// Upper limit of that time as a share of the time left in the window.
const CROSSES_LEFT: f64 = 0.25;
/// Smallest published change of the position.
const STEP: f64 = 0.02;
/// Time constant of the power draw's smoothing, as a share of a window.
const SMOOTHED: f64 = 1.0 / 96.0;

/// Integral controller of the price.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PriceController {
    window: Duration,
    /// From 0 (energy is free) to 1 (every job is at its minimum power).
    position: f64,
    /// The position in force, which follows `position` outside the dead band.
    published: f64,
    /// Smoothed power draw, watts.
    drawn_w: Option<f64>,
}

impl PriceController {
    /// A controller for windows of this length, starting from a persisted position (0 at first).
    #[must_use]
    pub fn new(window: Duration, position: f64) -> Self {
        let position = if position.is_finite() { position.clamp(0.0, 1.0) } else { 0.0 };
        Self { window, position, published: position, drawn_w: None }
    }

    /// Position of the price, 0 to 1; persisted across restarts.
    #[must_use]
    pub const fn position(&self) -> f64 {
        self.position
    }

    /// Raises the position to at least `position`.
    pub const fn at_least(&mut self, position: f64) {
        self.position = self.position.max(position);
        self.published = self.published.max(position);
    }

    /// Smoothed power draw, watts.
    #[must_use]
    pub const fn drawn_w(&self) -> Option<f64> {
        self.drawn_w
    }

    /// Adds a measurement: the mean power draw over `span`, watts.
    pub fn measured(&mut self, watts: f64, span: Duration) {
        if span.is_zero() || !watts.is_finite() {
            return;
        }
        let tau = self.window.as_secs_f64() * SMOOTHED;
        let kept = (-span.as_secs_f64() / tau).exp();
        let before = self.drawn_w.unwrap_or(watts);
        self.drawn_w = Some(kept * before + (1.0 - kept) * watts.max(0.0));
    }

    /// Moves the price after `span` and returns the position in force. `allowed_w` is the sustainable
    /// mean power over the time `left` in the window, watts. `is_saturated`: whether the price in force was the
    /// maximum during `span`.
    pub fn step(
        &mut self,
        allowed_w: f64,
        span: Duration,
        left: Duration,
        is_saturated: bool,
    ) -> f64 {
        let Some(drawn_w) = self.drawn_w else { return self.published };
        // An exhausted budget is the largest error.
        let error = if allowed_w > 0.0 { (drawn_w.max(1e-9) / allowed_w).ln() } else { 1.0 };
        let usual = self.window.as_secs_f64() * CROSSES;
        let crosses = usual.min(left.as_secs_f64() * CROSSES_LEFT).max(1e-9);
        // Rounded, so that equal budgets in energy and carbon give equal prices.
        let least = if is_saturated { 0.0 } else { -1.0 };
        let moved = error.clamp(least, 1.0) * (span.as_secs_f64() / crosses).min(0.5);
        self.position = ((self.position + moved).clamp(0.0, 1.0) * 1e9).round() / 1e9;
        let is_at_bound = self.position <= 0.0 || self.position >= 1.0;
        if is_at_bound || (self.position - self.published).abs() >= STEP {
            self.published = self.position;
        }
        self.published
    }
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "exact figures are meant")]
mod tests {
    use super::*;
    use crate::plan::capabilities::PriceRange;
    use proptest::prelude::*;

    const DAY: Duration = Duration::from_secs(86_400);
    const STEP_S: Duration = Duration::from_secs(120);

    /// Power draw of a cluster: `base` at price 0, a factor `e^-slope` of it at the highest price.
    fn plant(base: f64, slope: f64, position: f64) -> f64 {
        base * (-slope * position).exp()
    }

    /// One day of the closed loop: energy spent over the budget, and the final position.
    fn day(base: impl Fn(u64) -> f64, slope: f64, budget_w: f64, mut position: f64) -> (f64, f64) {
        let mut controller = PriceController::new(DAY, position);
        let (mut spent, steps) = (0.0, 720);
        for i in 0..steps {
            let watts = plant(base(i), slope, position);
            spent += watts * STEP_S.as_secs_f64();
            controller.measured(watts, STEP_S);
            let left = STEP_S * u32::try_from(steps - i).unwrap();
            let rest = budget_w * 86_400.0 - spent;
            position = controller.step(rest / left.as_secs_f64(), STEP_S, left, false);
        }
        (spent / (budget_w * 86_400.0), controller.position())
    }

    #[test]
    fn a_feasible_budget_is_used_and_kept() {
        // A budget of two thirds of the draw at price 0, starting at price 0.
        let (share, position) = day(|_| 1_000.0, 0.9, 660.0, 0.0);
        assert!((0.98..=1.005).contains(&share), "spent {share} of the budget");
        assert!((0.3..0.7).contains(&position), "{position}");
        // With half the demand in the night.
        let (share, _) = day(|i| if i < 240 { 500.0 } else { 1_000.0 }, 0.9, 660.0, 0.0);
        assert!((0.97..=1.005).contains(&share), "spent {share} of the budget");
    }

    #[test]
    fn the_price_falls_to_0_if_the_budget_exceeds_demand() {
        let (share, position) = day(|_| 1_000.0, 0.9, 1_500.0, 0.8);
        assert!(share < 0.7 && position == 0.0, "{share} {position}");
    }

    #[test]
    fn there_is_no_wind_up() {
        let mut controller = PriceController::new(DAY, 1.0);
        // A day far above the budget.
        for _ in 0..720 {
            controller.measured(5_000.0, STEP_S);
            assert_eq!(controller.step(10.0, STEP_S, DAY, false), 1.0);
        }
        for _ in 0..20 {
            controller.measured(0.0, STEP_S);
        }
        let before = controller.position();
        controller.step(10_000.0, STEP_S, DAY, true);
        assert_eq!(controller.position(), before, "at the maximum anyway");
        controller.step(10_000.0, STEP_S, DAY, false);
        assert!(controller.position() < before);
    }

    #[test]
    fn changes_within_the_dead_band_are_not_published() {
        let mut controller = PriceController::new(DAY, 0.5);
        controller.measured(1_010.0, STEP_S);
        assert_eq!(controller.step(1_000.0, STEP_S, DAY, false), 0.5);
        assert!(controller.position() > 0.5);
    }

    #[test]
    fn the_position_is_logarithmic_in_the_price() {
        let range = PriceRange { least: 0.05, most: 5.0 };
        assert_eq!((range.at(0.0), range.at(1.0)), (0.0, 5_000.0));
        assert!(range.at(1.0 - 1e-9) < 5.0);
        assert!((range.at(0.5) - 0.5).abs() < 1e-12);
    }

    proptest! {
        /// The position stays in its range and never falls as the power draw rises.
        #[test]
        fn the_position_is_bounded_and_monotone(
            drawn in 0.0f64..1e7, more in 0.0f64..1e7, allowed in -1e6f64..1e7,
            span in 0u64..100_000, left in 0u64..100_000, position in -1.0f64..2.0,
            saturated in any::<bool>(),
        ) {
            let step = |drawn: f64| {
                let mut controller = PriceController::new(DAY, position);
                controller.measured(drawn, STEP_S);
                controller.step(allowed, Duration::from_secs(span), Duration::from_secs(left), saturated);
                controller.position()
            };
            prop_assert!((0.0..=1.0).contains(&step(drawn)));
            prop_assert!(step(drawn) <= step(drawn + more));
        }
    }
}
