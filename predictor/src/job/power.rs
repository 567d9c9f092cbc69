//! One card's power alone at the default, over the number of GPUs a job has.
//!
//! The logarithm of a card's watts on g GPUs, g0 being the count that most is known of:
//!
//! ```text
//! ln p(g) = level + slope ln(g / g0) + a walk in ln g, which bends at the counts that were seen
//! ```
//!
//! More GPUs wait more for each other, and a card that waits draws less: by how much, jobs of the
//! same class have shown on the counts they had. One number for a class, whatever its GPUs, takes
//! what a card drew on eight for what it draws on one, and with it how deep a cap bites.
//! It must not know what caps or neighbours do.

use std::collections::BTreeMap;

use crate::statistics::regression::{Gaussian, Posterior, Row, fit};

/// What is prior of the slope. Speed-ups fall behind the GPUs as g^-0.2 to g^-0.5 (the rates that
/// ElasticFlow published, as of strong scaling at large), and a card that waits draws between all
/// and none of its dynamic power, which nobody measured: anything between 0 and -0.25.
const SLOPE: Gaussian = Gaussian { mean: -0.12, sd: 0.08 };
/// How far it wanders from that line, as a deviation for each root of ln g: it flattens where hardly
/// anything is computed any more. A guess; it decides only between counts that were seen and beyond.
const WALK_SD: f64 = 0.05;
/// Counts with a bend of their own.
const COUNTS_MAX: usize = 8;

/// What is known of one number of GPUs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PowerReading {
    /// GPUs in all.
    pub(crate) gpus: u32,
    /// The logarithm of one card's watts there.
    pub(crate) ln_watts: f64,
    /// Its deviation.
    pub(crate) sd: f64,
}

/// The fitted curve.
#[derive(Clone, Debug)]
pub(crate) struct ExclusivePower {
    /// The logarithm of g0.
    from: f64,
    /// Logarithms of the counts that were seen, ascending.
    bends: Vec<f64>,
    fitted: Posterior,
    /// Whether any power at the default was seen, of this job or of its class.
    pub(crate) is_seen: bool,
}

impl ExclusivePower {
    /// Fits what was `seen`; `level` is prior on `gpus` GPUs.
    pub(crate) fn fit(gpus: u32, level: Gaussian, seen: &[PowerReading], is_seen: bool) -> Self {
        let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
        for at in seen {
            *counts.entry(at.gpus.max(1)).or_default() += 1;
        }
        while counts.len() > COUNTS_MAX {
            let rarest = counts.iter().min_by_key(|(_, n)| **n).map(|(gpus, _)| *gpus);
            rarest.map(|gpus| counts.remove(&gpus));
        }
        let mut curve = Self {
            from: ln(gpus),
            bends: counts.keys().map(|gpus| ln(*gpus)).collect(),
            fitted: Posterior::from_priors(&[]),
            is_seen,
        };
        let rows: Vec<Row> = seen
            .iter()
            .map(|at| {
                let open = curve.open(ln(at.gpus));
                Row {
                    x: curve.features(at.gpus),
                    y: at.ln_watts,
                    sd: (at.sd * at.sd + open).sqrt(),
                }
            })
            .collect();
        let walk = curve
            .bends
            .windows(2)
            .map(|b| Gaussian { mean: 0.0, sd: WALK_SD * (b[1] - b[0]).sqrt() });
        let priors: Vec<Gaussian> = [level, SLOPE].into_iter().chain(walk).collect();
        curve.fitted = fit(&rows, &priors);
        curve
    }

    /// The expected logarithm of one card's watts on so many GPUs, and its variance.
    pub(crate) fn ln_watts(&self, gpus: u32) -> (f64, f64) {
        let (mean, variance) = self.fitted.at(&self.features(gpus));
        (mean, variance + self.open(ln(gpus)))
    }

    /// What is known where most is.
    pub(crate) fn level(&self) -> Gaussian {
        self.fitted.marginal(0)
    }

    /// How much readings scatter beside what they promise, as a ratio of deviations.
    pub(crate) fn noise_ratio(&self) -> f64 {
        self.fitted.noise_ratio()
    }

    /// Level, slope, and the share of each stretch between bends that lies between g0 and here.
    fn features(&self, gpus: u32) -> Vec<f64> {
        let to = ln(gpus);
        let share =
            |b: &[f64]| (to.clamp(b[0], b[1]) - self.from.clamp(b[0], b[1])) / (b[1] - b[0]);
        let walk = self.bends.windows(2).map(share);
        [1.0, to - self.from].into_iter().chain(walk).collect()
    }

    /// The walk's variance that no parameter holds: between two bends, and beyond the last.
    fn open(&self, at: f64) -> f64 {
        let (Some(first), Some(last)) = (self.bends.first(), self.bends.last()) else {
            return WALK_SD * WALK_SD * (at - self.from).abs();
        };
        let above = self.bends.partition_point(|bend| *bend < at);
        let length = if at < *first {
            first - at
        } else if at > *last {
            at - last
        } else if above == 0 {
            0.0
        } else {
            let (low, high) = (self.bends[above - 1], self.bends[above]);
            (at - low) * (high - at) / (high - low)
        };
        WALK_SD * WALK_SD * length
    }
}

fn ln(gpus: u32) -> f64 {
    f64::from(gpus.max(1)).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEVEL: Gaussian = Gaussian { mean: 5.2, sd: 0.5 };

    fn seen(points: &[(u32, f64)]) -> Vec<PowerReading> {
        let one =
            |&(gpus, watts): &(u32, f64)| PowerReading { gpus, ln_watts: watts.ln(), sd: 0.02 };
        points.iter().map(one).collect()
    }

    #[test]
    fn what_cards_drew_on_some_counts_tells_of_those_between() {
        // Idle 60 W, 306 W more while computing, a third of that while waiting: it flattens.
        let truth = |gpus: f64| 60.0 + 306.0 * (0.35 + 0.65 * gpus.powf(-0.5));
        let points: Vec<(u32, f64)> = [1, 4, 32].map(|g| (g, truth(f64::from(g)))).to_vec();
        let curve = ExclusivePower::fit(4, LEVEL, &seen(&points), true);
        for gpus in [1, 2, 4, 8, 16, 32] {
            let (ln_watts, variance) = curve.ln_watts(gpus);
            let off = ln_watts - truth(f64::from(gpus)).ln();
            assert!(off.abs() < 0.06, "{gpus}: off by {off}");
            assert!(off.abs() < 3.0 * variance.sqrt(), "{gpus}: {variance}");
        }
        assert!(curve.ln_watts(64).1 > curve.ln_watts(32).1, "beyond, less is known");
    }

    #[test]
    fn one_count_leaves_the_slope_as_believed() {
        let curve = ExclusivePower::fit(8, LEVEL, &seen(&[(8, 200.0)]), true);
        assert!((curve.ln_watts(8).0 - 200.0f64.ln()).abs() < 0.01);
        assert!(
            (curve.ln_watts(1).0 - curve.ln_watts(8).0 + SLOPE.mean * 8.0f64.ln()).abs() < 0.01
        );
        assert!(curve.ln_watts(1).1.sqrt() > 0.1);
    }
}
