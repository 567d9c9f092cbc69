//! Exclusive power of one GPU at the default setting, over the number of GPUs of a job.
//!
//! Natural logarithm of one GPU's power (W) on g GPUs, g0 being the most observed number:
//!
//! ```text
//! ln p(g) = level + slope ln(g / g0) + a piecewise linear random walk in ln g with knots at the
//!           observed numbers of GPUs
//! ```
//!
//! More GPUs wait longer for each other, and a waiting GPU draws less power. The slope is learned from
//! jobs of the same class. One power for a class on any number of GPUs would carry the power on eight
//! GPUs over to one, and with it the effect of a cap.

use std::collections::BTreeMap;

use crate::statistics::regression::{Gaussian, Posterior, Row, fit};

/// Prior of the slope. Speed-ups fall behind the GPUs as g^-0.2 to g^-0.5 (rates published with
/// ElasticFlow, and strong scaling in general), and a waiting GPU draws between all and none of its
/// dynamic power, for which no measurement is known: hence 0 to -0.25.
const SLOPE: Gaussian = Gaussian { mean: -0.12, sd: 0.08 };
/// Standard deviation of the random walk for each root of ln g: power flattens where little is computed.
/// A guess; it matters only between and beyond observed numbers.
const WALK_SD: f64 = 0.05;
/// Largest number of knots.
const COUNTS_MAX: usize = 8;

/// Power on one number of GPUs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PowerReading {
    /// GPUs in all.
    pub(crate) gpus: u32,
    /// Natural logarithm of one GPU's power, W.
    pub(crate) ln_watts: f64,
    /// Standard deviation of the logarithm.
    pub(crate) sd: f64,
}

/// The fitted curve.
#[derive(Clone, Debug)]
pub(crate) struct ExclusivePower {
    /// Natural logarithm of g0.
    from: f64,
    /// Natural logarithms of the observed numbers of GPUs, ascending.
    bends: Vec<f64>,
    fitted: Posterior,
    /// Whether power at the default setting was observed, for this job or its class.
    pub(crate) is_seen: bool,
}

impl ExclusivePower {
    /// Fits the readings `seen`; `level` is the prior on `gpus` GPUs.
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

    /// Expected natural logarithm of one GPU's power on `gpus` GPUs (W), and its variance.
    pub(crate) fn ln_watts(&self, gpus: u32) -> (f64, f64) {
        let (mean, variance) = self.fitted.at(&self.features(gpus));
        (mean, variance + self.open(ln(gpus)))
    }

    /// Estimate at g0.
    pub(crate) fn level(&self) -> Gaussian {
        self.fitted.marginal(0)
    }

    /// Standard deviation of the residuals relative to the stated one.
    pub(crate) fn noise_ratio(&self) -> f64 {
        self.fitted.noise_ratio()
    }

    /// Level, slope, and the share of each piece between two knots that lies between g0 and `gpus`.
    fn features(&self, gpus: u32) -> Vec<f64> {
        let to = ln(gpus);
        let share =
            |b: &[f64]| (to.clamp(b[0], b[1]) - self.from.clamp(b[0], b[1])) / (b[1] - b[0]);
        let walk = self.bends.windows(2).map(share);
        [1.0, to - self.from].into_iter().chain(walk).collect()
    }

    /// Variance of the walk that no parameter represents: between two knots, and beyond the outer ones.
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
    fn power_is_interpolated_over_the_number_of_gpus() {
        // Idle 60 W, 306 W more while computing, a third of that while waiting.
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
    fn slope_keeps_its_prior_with_one_number_of_gpus() {
        let curve = ExclusivePower::fit(8, LEVEL, &seen(&[(8, 200.0)]), true);
        assert!((curve.ln_watts(8).0 - 200.0f64.ln()).abs() < 0.01);
        assert!(
            (curve.ln_watts(1).0 - curve.ln_watts(8).0 + SLOPE.mean * 8.0f64.ln()).abs() < 0.01
        );
        assert!(curve.ln_watts(1).1.sqrt() > 0.1);
    }
}
