//! The law by which the price of energy follows what is spent.
//!
//! The price's logarithm moves with the logarithm of how much is drawn over how much may be: an
//! exponentiated step on the dual of "finish soon, spend no more than the budget". It is the
//! multiplicative form of dual mirror descent for resources that must last over a horizon (Balseiro,
//! Lu, Mirrokni, arXiv 2011.10124; adaptive pacing of advertising budgets is the same, Balseiro and
//! Gur 2019), with the rest of the budget over the rest of the window in the place of their constant
//! rate, so that what was spent too fast or too slow is made up for. In control's words: an integral
//! controller on a logarithmic scale.
//!
//! * **Bounded.** The price lies between 0 and the highest that changes anything. One step reacts to
//!   at most a factor `e` between what is drawn and what may be.
//! * **No wind-up.** The position is clamped to that range, so it turns round at once.
//! * **Stable.** Over its whole range the price changes what is drawn by a factor of two or three
//!   (measured: 2.1 for PowerFlow and `wattle` on powerflow-16), so a loop that crosses its range in
//!   [`CROSSES`] of a window at an error of one closes with a time constant of about that; what is
//!   drawn is smoothed over a quarter of it. Towards the window's end it is quicker, since less time
//!   is left to make up for an error.
//! * **Quiet.** Jobs are rescaled at a cost, so a change of less than [`STEP`] of the range is kept
//!   back until it is more.

use std::time::Duration;

/// The share of a window in which the price crosses its whole range, at an error of one: an hour of
/// a day.
const CROSSES: f64 = 1.0 / 24.0;
/// Of the time left in a window, the share in which it may cross.
const CROSSES_LEFT: f64 = 0.25;
/// The part of the range by which a price must have moved to be handed on.
const STEP: f64 = 0.02;
/// The share of a window over which what is drawn is smoothed.
const SMOOTHED: f64 = 1.0 / 96.0;

/// Between which prices a policy's answer changes, in its own unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PriceRange {
    /// Below it energy counts for nothing.
    pub least: f64,
    /// Above it hardly anybody takes a step that costs anything.
    pub most: f64,
}

/// Where everybody must be at the min_power, a step that wins much for hardly any energy is not
/// taken either: the price is so many times the highest.
const BEYOND: f64 = 1e3;

impl PriceRange {
    /// The price at a position from 0 (energy is free) to 1 (everybody is at its min_power).
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

/// Where the price is, and where it is going.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Controller {
    window: Duration,
    /// From 0, energy is free, to 1, everybody is at its min_power.
    position: f64,
    /// What was handed on.
    handed: f64,
    /// What is drawn, smoothed, watts.
    drawn_w: Option<f64>,
}

impl Controller {
    /// A controller for windows of this length, from a position that it had before (0 at first).
    #[must_use]
    pub fn new(window: Duration, position: f64) -> Self {
        let position = if position.is_finite() { position.clamp(0.0, 1.0) } else { 0.0 };
        Self { window, position, handed: position, drawn_w: None }
    }

    /// Where the price is, from 0 to 1: to be remembered over a restart.
    #[must_use]
    pub const fn position(&self) -> f64 {
        self.position
    }

    /// What is drawn, smoothed, watts.
    #[must_use]
    pub const fn drawn_w(&self) -> Option<f64> {
        self.drawn_w
    }

    /// So much was drawn in the mean over `span`.
    pub fn drew(&mut self, watts: f64, span: Duration) {
        if span.is_zero() || !watts.is_finite() {
            return;
        }
        let tau = self.window.as_secs_f64() * SMOOTHED;
        let kept = (-span.as_secs_f64() / tau).exp();
        let before = self.drawn_w.unwrap_or(watts);
        self.drawn_w = Some(kept * before + (1.0 - kept) * watts.max(0.0));
    }

    /// Moves the price after `span`, where `allowed_w` may be drawn in the mean over the `left` of
    /// the window; returns the position to act by.
    pub fn step(&mut self, allowed_w: f64, span: Duration, left: Duration) -> f64 {
        let Some(drawn_w) = self.drawn_w else { return self.handed };
        // Nothing left is as far beyond as it counts.
        let error = if allowed_w > 0.0 { (drawn_w.max(1e-9) / allowed_w).ln() } else { 1.0 };
        let whole = self.window.as_secs_f64() * CROSSES;
        let crosses = whole.min(left.as_secs_f64() * CROSSES_LEFT).max(1e-9);
        // Rounded, so that two ways to reckon one budget come to one price.
        let moved = error.clamp(-1.0, 1.0) * (span.as_secs_f64() / crosses).min(0.5);
        self.position = ((self.position + moved).clamp(0.0, 1.0) * 1e9).round() / 1e9;
        let at_an_end = self.position <= 0.0 || self.position >= 1.0;
        if at_an_end || (self.position - self.handed).abs() >= STEP {
            self.handed = self.position;
        }
        self.handed
    }
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "exact figures are meant")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DAY: Duration = Duration::from_secs(86_400);
    const STEP_S: Duration = Duration::from_secs(120);

    /// A cluster that draws `base` with energy free, and that over `e^-slope` at the dearest.
    fn plant(base: f64, slope: f64, position: f64) -> f64 {
        base * (-slope * position).exp()
    }

    /// A day under control: what was spent over the budget.
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
    fn a_day_ends_on_its_budget_where_the_price_reaches_it() {
        // Two thirds of what is drawn when energy is free, from no price at all.
        let (share, position) = day(|_| 1_000.0, 0.9, 660.0, 0.0);
        assert!((0.98..=1.005).contains(&share), "spent {share} of the budget");
        assert!((0.3..0.7).contains(&position), "{position}");
        // With a night in which half as much is asked for.
        let (share, _) = day(|i| if i < 240 { 500.0 } else { 1_000.0 }, 0.9, 660.0, 0.0);
        assert!((0.97..=1.005).contains(&share), "spent {share} of the budget");
    }

    #[test]
    fn more_than_is_asked_for_costs_nothing() {
        let (share, position) = day(|_| 1_000.0, 0.9, 1_500.0, 0.8);
        assert!(share < 0.7 && position == 0.0, "{share} {position}");
    }

    #[test]
    fn it_turns_round_at_once() {
        let mut controller = Controller::new(DAY, 1.0);
        // A day of far too much has not wound it up.
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
    fn small_changes_are_kept_back() {
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
        /// Whatever is drawn and allowed, the price stays in its range, and more drawn never lowers it.
        #[test]
        fn it_is_bounded_and_monotone(
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
