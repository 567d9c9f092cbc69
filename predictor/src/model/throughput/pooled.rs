//! What jobs of one kind of card have in common in how they scale, fitted from what each showed.
//!
//! Each job's constants come without what was believed of them (see `throughput::Constants`), so a
//! job that could not tell a constant says nothing of it. Mean and between-job deviation are where
//! expectation and maximisation settle for normally distributed constants (empirical Bayes).

use serde::{Deserialize, Serialize};

use super::form::{self, Network, WIDTH};
use crate::fit::Belief;
use crate::history::Stored;

/// Constants pooled: all but the job's own two levels.
pub const POOLED: usize = WIDTH - OWN;
/// Parameters that are a job's own.
const OWN: usize = 2;

/// What is believed before anything was seen. The job's two levels: a step mostly computes, give
/// or take a factor of four. A doubling beyond four GPUs costs the mean of the two inside, where
/// 2 (g-1)/g grows by 1 and by 0.5: a tree's or a ring's latency. Across nodes: two cost as much as
/// the fixed part, give or take a factor of three, for networks differ so; growth with an exponent
/// of 0.3 to 0.5 and an overlap of about 2, as fitted in Pollux's line (OSDI'21, petuum/adaptdl),
/// in round figures and wide.
const BELIEVED: [Belief; WIDTH] = [
    Belief { mean: -1.609, sd: 1.5 }, // ln 0.2
    Belief { mean: -0.288, sd: 1.5 }, // ln 0.75
    Belief { mean: -1.204, sd: 2.0 }, // ln 0.3
    Belief { mean: -0.288, sd: 0.4 }, // ln 0.75
    Belief { mean: 0.0, sd: 1.2 },
    Belief { mean: -0.15, sd: 0.4 },
    Belief { mean: 0.5, sd: 0.3 },
    Belief { mean: 0.4, sd: 0.2 },
    Belief { mean: 0.35, sd: 0.15 },
    Belief { mean: 0.693, sd: 0.3 }, // ln 2
];
/// How many jobs the beliefs count for.
const BELIEVED_JOBS: f64 = 2.0;
/// The part of a belief's variance that is believed to lie between jobs; the rest is that nobody
/// knows the mean.
const BETWEEN_SHARE: f64 = 0.25;
/// A job's own synchronisation inside a node is its own matter (parameters, message sizes): other
/// jobs narrow it no further than to this deviation.
const INSIDE_SD_MIN: f64 = 2.0;
const ROUNDS: usize = 8;

/// How far off the flat form may be across nodes, as a root mean square of logarithms, and still be
/// the one believed: the simpler form stands until it fails.
pub const FLAT_MAX: f64 = 0.1;

/// What one job showed of the constants, without what was believed before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Constants {
    /// In the order of the form's parameters from the third on.
    pub values: [Stored; POOLED],
    /// How far the flat form is off across nodes: the mean square of logarithms, where seen.
    pub flat_off: Option<f64>,
}

impl Constants {
    /// Whether every number in it is one.
    #[must_use]
    pub fn is_sane(&self) -> bool {
        self.values.iter().all(|v| v.mean.is_finite() && v.sd.is_finite() && v.sd > 0.0)
            && self.flat_off.is_none_or(|off| off.is_finite() && off >= 0.0)
    }
}

/// Pooled over jobs.
#[derive(Clone, Debug, PartialEq)]
pub struct Pooled {
    pub(super) beliefs: [Belief; WIDTH],
    pub(super) network: Network,
}

impl Pooled {
    /// What is believed before anything was seen.
    #[must_use]
    pub fn believed() -> Self {
        Self { beliefs: BELIEVED, network: Network::Steep }
    }

    /// What the jobs seen on one kind of card say.
    #[must_use]
    pub fn fit<'a>(jobs: impl Iterator<Item = &'a Constants> + Clone) -> Self {
        let mut pooled = Self::believed();
        for (i, belief) in pooled.beliefs.iter_mut().enumerate().skip(OWN) {
            *belief = between(*belief, jobs.clone().map(|j| j.values[i - OWN]));
        }
        let inside = &mut pooled.beliefs[form::INSIDE];
        inside.sd = inside.sd.max(INSIDE_SD_MIN);
        let off: Vec<f64> = jobs.filter_map(|j| j.flat_off).collect();
        let flat = off.iter().filter(|off| **off <= FLAT_MAX * FLAT_MAX).count();
        if 2 * flat > off.len() {
            pooled.network = Network::Flat;
        }
        pooled
    }
}

/// Mean and deviation of another job's constant, after what some showed of theirs.
fn between(believed: Belief, seen: impl Iterator<Item = Stored> + Clone) -> Belief {
    let whole = believed.sd * believed.sd;
    let (mut mean, mut spread) = (believed.mean, BETWEEN_SHARE * whole);
    for _ in 0..ROUNDS {
        let trust = |s: &Stored| spread / (spread + s.sd * s.sd);
        let counted = BELIEVED_JOBS + seen.clone().map(|s| trust(&s)).sum::<f64>();
        let sum: f64 = seen.clone().map(|s| trust(&s) * s.mean).sum();
        mean = (BELIEVED_JOBS * believed.mean + sum) / counted;
        let squares: f64 = seen.clone().map(|s| (trust(&s) * (s.mean - mean)).powi(2)).sum();
        spread = (BELIEVED_JOBS * BETWEEN_SHARE * whole + squares) / counted;
    }
    let told: f64 = seen.map(|s| 1.0 / (spread + s.sd * s.sd)).sum();
    let of_mean = 1.0 / (1.0 / ((1.0 - BETWEEN_SHARE) * whole) + told);
    Belief { mean, sd: (spread + of_mean).sqrt() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn constants(mean: f64, sd: f64, flat_off: Option<f64>) -> Constants {
        Constants { values: [Stored { mean, sd }; POOLED], flat_off }
    }

    #[test]
    fn who_tells_nothing_moves_nothing() {
        let silent = constants(40.0, 1e3, None);
        let pooled = Pooled::fit([&silent, &silent].into_iter());
        for (p, b) in pooled.beliefs.iter().zip(BELIEVED) {
            assert!((p.mean - b.mean).abs() < 0.01 && (p.sd - b.sd).abs() < 0.01, "{p:?} {b:?}");
        }
        assert_eq!(Pooled::fit(std::iter::empty()), Pooled::believed());
    }

    #[test]
    fn many_that_agree_are_believed() {
        let like = constants(0.6, 0.02, Some(0.001));
        let pooled = Pooled::fit([&like; 12].into_iter());
        let pair = pooled.beliefs[form::GROWTH_PAIR];
        assert!((pair.mean - 0.57).abs() < 0.02 && pair.sd < 0.15, "{pair:?}");
        assert_eq!(pooled.network, Network::Flat);
        let steep = constants(0.6, 0.02, Some(0.2));
        assert_eq!(Pooled::fit([&steep; 3].into_iter()).network, Network::Steep);
    }
}
