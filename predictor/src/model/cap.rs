//! A job's speed and power under a power cap or a locked clock.
//!
//! With the power P0 (watts) its card draws at the default cap L0, under a cap L (watts) and a
//! locked highest clock f (MHz; f0 is the card's top):
//!
//! ```text
//! h(L) = 0.1 ln(1 + (P0 / 0.85 L)^10)                          a soft max(0, ln(P0 / 0.85 L))
//! z  = h(L) - h(L0)                                           how far the cap bites
//! c  = max(0, ln(f0 / f))                                     how far the clock is down
//! ln(t / t0) =  w1 z + w2 z^2 + w3 c
//! ln(p / p0) =  v1 z + v2 z^2 + v3 c
//! ```
//!
//! This is what is believed before jobs were seen under caps; [`super::transfer`] learns how a kind
//! of card differs from it, and a job's own readings move it further. The cap begins to bite at
//! 1.18 P0 because a job's power swings around its mean. Clocks act on speed through the core-bound share w3: the power law
//! f^w3 stands for `(1 - w3) + w3 f0 / f`, from which it differs by under 2 % down to 0.7 f0.
//!
//! Where the beliefs come from: w1, w2, v1, v2 from the A40, RTX 6000 and P100 curves of the Zeus
//! traces (ml-energy/zeus, Apache-2.0), fitted with this form; they differ from card to card (P100
//! is linear, A40 quadratic), hence the width. w3, v3 from the RTX 8000 core clock sweep of
//! blackjack2015/NV-DVFS-Benchmark: 0.82 of the top clock gives 0.90 of the speed at 0.73 of the
//! power.

use wattle_common::observation::Setting;

use super::constant::Constant;
use crate::fit::Belief;

/// Parameters of either half.
pub const WIDTH: usize = 3;

/// The share of a cap at which a job's mean power begins to feel it. Chosen on the P100 traces,
/// among 0.85, 0.9 and 1, as the corner below was.
pub const BITE: Constant = Constant::new("cap: BITE", 0.85);

/// How soft the corner is where a cap begins to bite: a job's power swings, so its peaks are cut
/// first. Chosen among 0.06, 0.1 and 0.15, which differ by 0.2 points of error.
pub const CORNER: Constant = Constant::new("cap: CORNER", 0.1);

/// What the widths of the beliefs below are multiplied with.
pub const BELIEF_WIDTH: Constant = Constant::new("cap: widths of the beliefs", 1.0);

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

/// The features (z, z^2, c) of a setting for a job that draws `power_w` at the default.
#[must_use]
pub fn features(card: &Card, power_w: f64, setting: Setting) -> [f64; WIDTH] {
    let bite = |cap: f64| {
        let over = (power_w / (BITE.get() * cap)).ln() / CORNER.get();
        // ln(1 + e^x), which for large x is x.
        CORNER.get() * if over > 30.0 { over } else { over.exp().ln_1p() }
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

    fn believed(x: [f64; WIDTH], beliefs: &[Belief; WIDTH]) -> f64 {
        x.iter().zip(beliefs).map(|(x, b)| x * b.mean).sum()
    }

    #[test]
    fn a_job_that_draws_little_feels_no_cap() {
        // An embedding model at 40 W under 100 W: measured at no loss on every card of the traces.
        let x = features(&CARD, 40.0, capped(100.0));
        assert!(believed(x, &TIME) < 0.001);
        assert!(is_free(&CARD, 40.0, capped(100.0)) && !is_free(&CARD, 99.0, capped(100.0)));
    }

    #[test]
    fn the_belief_is_near_what_other_cards_did() {
        // RTX 6000 of 260 W at 150 W: 0.83 of the speed, 143 W (Zeus traces).
        let card = Card { cap_default_w: 260.0, ..CARD };
        let x = features(&card, 0.92 * 260.0, capped(150.0));
        let speed = (-believed(x, &TIME)).exp();
        assert!((0.70..0.92).contains(&speed), "{speed}");
        let power = 0.92 * 260.0 * believed(x, &POWER).exp();
        assert!((power / 143.0 - 1.0).abs() < 0.06, "{power}");
    }
}
