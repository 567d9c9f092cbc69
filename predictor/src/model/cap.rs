//! A job's speed and power under a power cap or a locked clock.
//!
//! With the power P0 (watts) its card draws at the default cap L0, under a cap L (watts) and a
//! locked highest clock f (MHz; f0 is the card's top):
//!
//! ```text
//! h(L) = 0.1 ln(1 + (P0 / 0.85 L)^10)                          a soft max(0, ln(P0 / 0.85 L))
//! z  = h(L) - h(L0)                                           how far the cap bites
//! c  = max(0, ln(f0 / f))                                     how far the clock is down
//! ln(t / t0) =  w1 z + w2 z^2 + w3 c    never below 0, never falling as z grows
//! ln(p / p0) =  v1 z + v2 z^2 + v3 c
//! ```
//!
//! Linear in its parameters, so linfa fits it. The cap begins to bite at 1.18 P0 because a job's
//! power swings around its mean. Clocks act on speed through the core-bound share w3: the power law
//! f^w3 stands for `(1 - w3) + w3 f0 / f`, from which it differs by under 2 % down to 0.7 f0.
//!
//! Where the beliefs come from: w1, w2, v1, v2 from the A40, RTX 6000 and P100 curves of the Zeus
//! traces (ml-energy/zeus, Apache-2.0), fitted with this form; they differ from card to card (P100
//! is linear, A40 quadratic), hence the width. w3, v3 from the RTX 8000 core clock sweep of
//! blackjack2015/NV-DVFS-Benchmark: 0.82 of the top clock gives 0.90 of the speed at 0.73 of the
//! power.

use crate::fit::{Belief, Posterior, Row, fit};

/// Parameters of either half.
pub const WIDTH: usize = 3;

/// The share of a cap at which a job's mean power begins to feel it. Chosen on the P100 traces,
/// among 0.85, 0.9 and 1, as the corner below was.
const BITE: f64 = 0.85;

/// How soft the corner is where a cap begins to bite: a job's power swings, so its peaks are cut
/// first. Chosen among 0.06, 0.1 and 0.15, which differ by 0.2 points of error.
const CORNER: f64 = 0.1;

/// What the form itself is off by where a cap bites, as a deviation of the logarithm: intervals
/// calibrated on the Zeus traces' other caps (three known) are 5 % wide to either side, of which
/// single readings' noise is the larger part.
const FORM_SD: f64 = 0.03;

/// Beliefs of (w1, w2, w3).
pub const TIME: [Belief; WIDTH] =
    [Belief { mean: 0.0, sd: 0.3 }, Belief { mean: 0.8, sd: 0.5 }, Belief { mean: 0.6, sd: 0.3 }];

/// Beliefs of (v1, v2, v3).
pub const POWER: [Belief; WIDTH] = [
    Belief { mean: -0.92, sd: 0.3 },
    Belief { mean: 0.0, sd: 0.5 },
    Belief { mean: -1.5, sd: 0.4 },
];

/// What a card is, as far as this model needs it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Card {
    /// Default cap, watts.
    pub cap_default_w: f64,
    /// Whether that is known, not guessed.
    pub cap_known: bool,
    /// Power with no job, watts.
    pub idle_w: f64,
    /// Top clock, MHz, where one was seen.
    pub clock_mhz_top: Option<f64>,
    /// Whether power priors come from other kinds of card than this one ([`crate::prior`]).
    pub power_carried: bool,
}

/// How a card is set.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Setting {
    /// Cap, watts; `None`: the default.
    pub cap_w: Option<f64>,
    /// Locked highest clock, MHz; `None`: not locked.
    pub clock_mhz_max: Option<f64>,
}

/// The features (z, z^2, c) of a setting for a job that draws `power_w` at the default.
#[must_use]
pub fn features(card: &Card, power_w: f64, setting: Setting) -> [f64; WIDTH] {
    let bite = |cap: f64| {
        let over = (power_w / (BITE * cap)).ln() / CORNER;
        // ln(1 + e^x), which for large x is x.
        CORNER * if over > 30.0 { over } else { over.exp().ln_1p() }
    };
    let z = match setting.cap_w {
        Some(cap) if cap < card.cap_default_w => bite(cap) - bite(card.cap_default_w),
        Some(_) | None => 0.0,
    };
    let c = match (setting.clock_mhz_max, card.clock_mhz_top) {
        (Some(clock), Some(top)) if clock < top => (top / clock).ln(),
        _ => 0.0,
    };
    [z, z * z, c]
}

/// Whether `setting` holds nothing back that the default would not.
#[must_use]
pub fn is_default(card: &Card, setting: Setting) -> bool {
    let locked =
        setting.clock_mhz_max.is_some_and(|f| card.clock_mhz_top.is_none_or(|top| f < top));
    !locked && setting.cap_w.is_none_or(|cap| cap >= 0.99 * card.cap_default_w)
}

/// Whether a reading of `power_w` under `setting` shows about what the job draws at the default.
#[must_use]
pub fn is_free(card: &Card, power_w: f64, setting: Setting) -> bool {
    let unlocked = Setting { clock_mhz_max: setting.clock_mhz_max, cap_w: None };
    is_default(card, setting)
        || (is_default(card, unlocked) && setting.cap_w.is_some_and(|cap| power_w < 0.85 * cap))
}

/// A fitted pair of curves.
#[derive(Clone, Debug, PartialEq)]
pub struct Curves {
    /// Over (w1, w2, w3).
    pub time: Posterior,
    /// Over (v1, v2, v3).
    pub power: Posterior,
}

impl Curves {
    /// The logarithm of the slow-down at `x` (zero or more) and its variance, where the power at
    /// the default is known to a variance of `power_variance` in its logarithm.
    #[must_use]
    pub fn slowdown(&self, x: [f64; WIDTH], power_variance: f64) -> (f64, f64) {
        let [z, _, c] = x;
        if z <= 0.0 && c <= 0.0 {
            return (0.0, 0.0);
        }
        let (w1, w2) = (self.time.mean(0), self.time.mean(1));
        // The parabola's running maximum: past its top it stays there.
        let reach = if w2 < 0.0 { z.min((-w1 / (2.0 * w2)).max(0.0)) } else { z };
        let cap = (w1 * reach + w2 * reach * reach).max(0.0);
        let clock = (self.time.mean(2) * c).max(0.0);
        let (_, variance) = self.time.at(&x);
        let slope = if z > 0.0 { (w1 + 2.0 * w2 * z).max(0.3) } else { 0.0 };
        (cap + clock, variance + slope * slope * power_variance + form_variance(z, c))
    }

    /// The logarithm of the power relative to that at the default (zero or less), and its variance.
    #[must_use]
    pub fn power(&self, x: [f64; WIDTH], power_variance: f64) -> (f64, f64) {
        let [z, _, c] = x;
        if z <= 0.0 && c <= 0.0 {
            return (0.0, power_variance);
        }
        let (mean, variance) = self.power.at(&x);
        // Where the cap bites, what is drawn follows the cap and no longer the demand.
        let slope = if z > 0.0 { (1.0 + self.power.mean(0)).abs() + 0.1 } else { 1.0 };
        (mean.min(0.0), variance + slope * slope * power_variance + form_variance(z, c))
    }
}

/// The form's own error is whole once a setting matters, and less before.
fn form_variance(z: f64, c: f64) -> f64 {
    (FORM_SD * (0.3 + (z + c) / 0.05).min(1.0)).powi(2)
}

/// Fits the power half: rows are (features, ln of power relative to the default, deviation).
#[must_use]
pub fn fit_power(rows: &[([f64; WIDTH], f64, f64)], beliefs: &[Belief; WIDTH]) -> Posterior {
    let rows: Vec<Row> =
        rows.iter().map(|(x, y, sd)| Row { x: x.to_vec(), y: *y, sd: *sd }).collect();
    fit(&rows, beliefs)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CARD: Card = Card {
        cap_default_w: 250.0,
        cap_known: true,
        idle_w: 35.0,
        clock_mhz_top: Some(1_380.0),
        power_carried: true,
    };

    fn capped(watts: f64) -> Setting {
        Setting { cap_w: Some(watts), clock_mhz_max: None }
    }

    fn believed() -> Curves {
        Curves { time: Posterior::of_beliefs(&TIME), power: Posterior::of_beliefs(&POWER) }
    }

    #[test]
    fn a_job_that_draws_little_feels_no_cap() {
        // An embedding model at 40 W under 100 W: measured at no loss on every card of the traces.
        let x = features(&CARD, 40.0, capped(100.0));
        let (slow, variance) = believed().slowdown(x, 0.01);
        assert!(slow < 0.001 && variance.sqrt() < 0.04, "{slow} {variance}");
        assert!(is_free(&CARD, 40.0, capped(100.0)) && !is_free(&CARD, 99.0, capped(100.0)));
    }

    #[test]
    fn the_belief_is_near_what_other_cards_did() {
        // RTX 6000 of 260 W at 150 W: 0.83 of the speed, 143 W (Zeus traces).
        let card = Card { cap_default_w: 260.0, ..CARD };
        let x = features(&card, 0.92 * 260.0, capped(150.0));
        let speed = (-believed().slowdown(x, 0.0).0).exp();
        assert!((0.70..0.92).contains(&speed), "{speed}");
        let power = 0.92 * 260.0 * believed().power(x, 0.0).0.exp();
        assert!((power / 143.0 - 1.0).abs() < 0.06, "{power}");
    }

    #[test]
    fn speed_never_rises_as_the_cap_falls() {
        let mut curves = believed();
        let belief = |mean| Belief { mean, sd: 0.05 };
        for (w1, w2) in [(0.0, 0.8), (0.5, -0.4), (-0.3, 1.0), (-0.2, -0.2)] {
            curves.time = Posterior::of_beliefs(&[belief(w1), belief(w2), belief(0.6)]);
            let mut last = 0.0;
            for cap in (60..=250).rev().step_by(5) {
                let x = features(&CARD, 240.0, capped(f64::from(cap)));
                let (slow, variance) = curves.slowdown(x, 0.01);
                assert!(slow >= last && variance >= 0.0, "{w1} {w2} at {cap} W");
                last = slow;
            }
        }
    }
}
