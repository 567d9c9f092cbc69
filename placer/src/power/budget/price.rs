//! The control law of the energy price.
//!
//! The logarithm of the price moves with the logarithm of power draw over allowed power: an exponentiated step on
//! the dual of "minimise completion time subject to the budget". It is the multiplicative form of dual mirror
//! descent for resources that must last over a horizon (Balseiro, Lu, Mirrokni, arXiv 2011.10124; adaptive pacing
//! of advertising budgets is the same, Balseiro and Gur 2019), with the rest of the budget over the rest of the
//! window in place of their constant rate, so that over- and underspending are compensated. In control terms it
//! is an integral controller on a logarithmic scale.
//!
//! * **Bounded.** The price lies between 0 and the highest price that changes a plan. One step responds to at most
//!   a factor `e` between power draw and allowed power.
//! * **No wind-up.** The position is clamped to its range, so it reverses at once.
//! * **Stable.** Over its entire range the price changes the power draw by a factor of two or three (measured: 2.1
//!   for PowerFlow and `wattle` on powerflow-16). So a loop that crosses its range in [`CROSSING`] of a window at
//!   an error of one closes with a time constant of about that. The power draw is smoothed over a quarter of it.
//!   Towards the window's end the loop is faster, since less time is left to compensate an error.
//! * **Quiet.** Rescaling jobs has a cost, so changes of less than [`STEP`] of the range are held back until they
//!   add up to more.

use std::time::Duration;

/// The share of a window in which the price crosses its range at an error of one: an hour of a day.
const CROSSING: f64 = 1.0 / 24.0;
/// Of the time left in a window, the share in which it may cross.
const CROSSING_LEFT: f64 = 0.25;
/// The part of the range by which the price must have moved to be published.
const STEP: f64 = 0.02;
/// The share of a window over which the power draw is smoothed.
const SMOOTHED: f64 = 1.0 / 96.0;

/// The prices between which a policy's plans change, in its own unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PriceRange {
    /// Below it energy has no influence.
    pub least: f64,
    /// Above it hardly any step that costs energy is taken.
    pub most: f64,
}

/// At position 1 every job must run at its minimum power, also where a step would save much time for little energy:
/// the price is this multiple of the greatest.
const BEYOND: f64 = 1e3;

impl PriceRange {
    /// The price at a position from 0 (energy is free) to 1 (every job at its minimum power).
    #[must_use]
    pub fn at(&self, position: f64) -> f64 {
        if position <= 0.0 {
            return 0.0;
        }
        if position >= 1.0 {
            return self.most * BEYOND;
        }
        self.least * (self.most / self.least).powf(position)
    }
}

/// The controller of the price.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Controller {
    window: Duration,
    /// From 0 (energy is free) to 1 (every job at its minimum power).
    position: f64,
    /// The published position.
    published: f64,
    /// The smoothed power draw, watts.
    drawn_w: Option<f64>,
}

impl Controller {
    /// A controller for windows of this length, from an earlier position (0 at first).
    #[must_use]
    pub fn new(window: Duration, position: f64) -> Self {
        let position = if position.is_finite() { position.clamp(0.0, 1.0) } else { 0.0 };
        Self { window, position, published: position, drawn_w: None }
    }

    /// The position of the price, 0 to 1, which is stored for a restart.
    #[must_use]
    pub const fn position(&self) -> f64 {
        self.position
    }

    /// The smoothed power draw, watts.
    #[must_use]
    pub const fn drawn_w(&self) -> Option<f64> {
        self.drawn_w
    }

    /// Records the mean power draw over `span`, watts.
    pub fn drew(&mut self, watts: f64, span: Duration) {
        if span.is_zero() || !watts.is_finite() {
            return;
        }
        let tau = self.window.as_secs_f64() * SMOOTHED;
        let kept = (-span.as_secs_f64() / tau).exp();
        let before = self.drawn_w.unwrap_or(watts);
        self.drawn_w = Some(kept * before + (1.0 - kept) * watts.max(0.0));
    }

    /// Moves the price after `span`, given the mean power that is allowed over the rest of the window; returns the
    /// published position.
    pub fn step(&mut self, allowed_w: f64, span: Duration, left: Duration) -> f64 {
        let Some(drawn_w) = self.drawn_w else { return self.published };
        // An exhausted budget is the greatest error.
        let error = if allowed_w > 0.0 { (drawn_w.max(1e-9) / allowed_w).ln() } else { 1.0 };
        let full = self.window.as_secs_f64() * CROSSING;
        let crosses = full.min(left.as_secs_f64() * CROSSING_LEFT).max(1e-9);
        // Rounded, so that equivalent budgets give equal prices.
        let moved = error.clamp(-1.0, 1.0) * (span.as_secs_f64() / crosses).min(0.5);
        self.position = ((self.position + moved).clamp(0.0, 1.0) * 1e9).round() / 1e9;
        let at_an_end = self.position <= 0.0 || self.position >= 1.0;
        if at_an_end || (self.position - self.published).abs() >= STEP {
            self.published = self.position;
        }
        self.published
    }
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "exact figures are meant")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DAY: Duration = Duration::from_secs(86_400);
    const STEP_S: Duration = Duration::from_secs(120);

    /// A cluster that draws `base` at price 0, and `base e^-slope` at the highest.
    fn plant(base: f64, slope: f64, position: f64) -> f64 {
        base * (-slope * position).exp()
    }

    /// A day under control: the share of the budget that was spent.
    fn day(base: impl Fn(u64) -> f64, slope: f64, budget_w: f64, mut position: f64) -> (f64, f64) {
        let mut controller = Controller::new(DAY, position);
        let (mut spent, steps) = (0.0, 720);
        for i in 0..steps {
            let watts = plant(base(i), slope, position);
            spent += watts * STEP_S.as_secs_f64();
            controller.drew(watts, STEP_S);
            let left = STEP_S * u32::try_from(steps - i).unwrap();
            let rest = budget_w * 86_400.0 - spent;
            position = controller.step(rest / left.as_secs_f64(), STEP_S, left);
        }
        (spent / (budget_w * 86_400.0), controller.position())
    }

    #[test]
    fn a_day_ends_on_its_budget_if_the_price_can_reach_it() {
        // Two thirds of the power draw at price 0, from price 0.
        let (share, position) = day(|_| 1_000.0, 0.9, 660.0, 0.0);
        assert!((0.98..=1.005).contains(&share), "spent {share} of the budget");
        assert!((0.3..0.7).contains(&position), "{position}");
        // With a night of half the demand.
        let (share, _) = day(|i| if i < 240 { 500.0 } else { 1_000.0 }, 0.9, 660.0, 0.0);
        assert!((0.97..=1.005).contains(&share), "spent {share} of the budget");
    }

    #[test]
    fn a_budget_above_demand_leads_to_price_zero() {
        let (share, position) = day(|_| 1_000.0, 0.9, 1_500.0, 0.8);
        assert!(share < 0.7 && position == 0.0, "{share} {position}");
    }

    #[test]
    fn the_position_reverses_at_once() {
        let mut controller = Controller::new(DAY, 1.0);
        // A day of far too much power draw has not wound it up.
        for _ in 0..720 {
            controller.drew(5_000.0, STEP_S);
            assert_eq!(controller.step(10.0, STEP_S, DAY), 1.0);
        }
        for _ in 0..20 {
            controller.drew(0.0, STEP_S);
        }
        let before = controller.position();
        controller.step(10_000.0, STEP_S, DAY);
        assert!(controller.position() < before);
    }

    #[test]
    fn small_changes_are_held_back() {
        let mut controller = Controller::new(DAY, 0.5);
        controller.drew(1_010.0, STEP_S);
        assert_eq!(controller.step(1_000.0, STEP_S, DAY), 0.5);
        assert!(controller.position() > 0.5);
    }

    #[test]
    fn a_price_spans_its_range_evenly_in_its_logarithm() {
        let range = PriceRange { least: 0.05, most: 5.0 };
        assert_eq!((range.at(0.0), range.at(1.0)), (0.0, 5_000.0));
        assert!(range.at(1.0 - 1e-9) < 5.0);
        assert!((range.at(0.5) - 0.5).abs() < 1e-12);
    }

    proptest! {
        /// The price stays in its range at any power, and a higher power draw never lowers it.
        #[test]
        fn the_price_is_bounded_and_monotone(
            drawn in 0.0f64..1e7, more in 0.0f64..1e7, allowed in -1e6f64..1e7,
            span in 0u64..100_000, left in 0u64..100_000, position in -1.0f64..2.0,
        ) {
            let step = |drawn: f64| {
                let mut controller = Controller::new(DAY, position);
                controller.drew(drawn, STEP_S);
                controller.step(allowed, Duration::from_secs(span), Duration::from_secs(left));
                controller.position()
            };
            prop_assert!((0.0..=1.0).contains(&step(drawn)));
            prop_assert!(step(drawn) <= step(drawn + more));
        }
    }
}
