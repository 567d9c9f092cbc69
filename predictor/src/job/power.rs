//! Exclusive power of one GPU at the default setting, over the number of GPUs of a job.
//!
//! Natural logarithm of one GPU's power (W) on g GPUs, g0 being the most observed number:
//!
//! ```text
//! ln p(g) = level + part w(g) + a piecewise linear random walk in ln g with knots at the observed
//!           numbers of GPUs
//! w(g)    = ln of what one GPU computes in a second on g GPUs, relative to g0
//! ```
//!
//! More GPUs wait longer for each other, and a waiting GPU draws less power. How long they wait follows
//! from the job's step rates (w), which are measured also where it shares its GPUs or has a low cap. The
//! part of power that waiting takes away is learned from jobs of the same class. One power for a class
//! on any number of GPUs would carry the power on one GPU over to sixteen, and with it the effect of a
//! cap.

use std::collections::BTreeMap;

use crate::statistics::regression::{Gaussian, Posterior, Row, fit};

/// Prior of the part: a waiting GPU draws between all of its power above idle, 0, and none of it, 0.8
/// where idle power is a fifth. No measurement is known.
const PART: Gaussian = Gaussian { mean: 0.4, sd: 0.2 };
/// w for each unit of ln(g / g0) where no step rate is known: speed-ups fall behind the GPUs as g^-0.2
/// to g^-0.5 (rates published with ElasticFlow, and strong scaling in general).
const WAITING: Gaussian = Gaussian { mean: -0.35, sd: 0.1 };
/// Standard deviation of the random walk for each root of ln g: power flattens where little is computed.
/// A guess; it matters only between and beyond observed numbers.
const WALK_SD: f64 = 0.05;
/// Largest number of knots.
const COUNTS_MAX: usize = 8;

/// A number of GPUs, with what one of them computes in a second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GpuWork {
    /// GPUs in all.
    pub(crate) gpus: u32,
    /// Natural logarithm of the work of one of them in a second, in a unit of the job's, and its variance;
    /// `None`: not known, for any number.
    pub(crate) ln_work: Option<(f64, f64)>,
}

/// Power on one number of GPUs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PowerReading {
    /// Its GPUs.
    pub(crate) on: GpuWork,
    /// Natural logarithm of one GPU's power, W.
    pub(crate) ln_watts: f64,
    /// Standard deviation of the logarithm.
    pub(crate) sd: f64,
}

/// The fitted curve.
#[derive(Clone, Debug)]
pub(crate) struct ExclusivePower {
    /// g0.
    from: GpuWork,
    /// Natural logarithms of the observed numbers of GPUs, ascending.
    bends: Vec<f64>,
    fitted: Posterior,
    /// Whether power at the default setting was observed, for this job or its class.
    pub(crate) is_seen: bool,
}

impl ExclusivePower {
    /// Fits the readings `seen`; `level` is the prior on the GPUs `from`.
    pub(crate) fn fit(
        from: GpuWork,
        level: Gaussian,
        seen: &[PowerReading],
        is_seen: bool,
    ) -> Self {
        let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
        for at in seen {
            *counts.entry(at.on.gpus.max(1)).or_default() += 1;
        }
        while counts.len() > COUNTS_MAX {
            let rarest = counts.iter().min_by_key(|(_, n)| **n).map(|(gpus, _)| *gpus);
            rarest.map(|gpus| counts.remove(&gpus));
        }
        let mut curve = Self {
            from,
            bends: counts.keys().map(|gpus| ln(*gpus)).collect(),
            fitted: Posterior::from_priors(&[]),
            is_seen,
        };
        let rows: Vec<Row> = seen
            .iter()
            .map(|at| {
                let open = curve.open(at.on);
                Row { x: curve.features(at.on), y: at.ln_watts, sd: (at.sd * at.sd + open).sqrt() }
            })
            .collect();
        let walk = curve
            .bends
            .windows(2)
            .map(|b| Gaussian { mean: 0.0, sd: WALK_SD * (b[1] - b[0]).sqrt() });
        let priors: Vec<Gaussian> = [level, PART].into_iter().chain(walk).collect();
        curve.fitted = fit(&rows, &priors);
        curve
    }

    /// Expected natural logarithm of one GPU's power on these GPUs (W), and its variance.
    pub(crate) fn ln_watts(&self, on: GpuWork) -> (f64, f64) {
        let (mean, variance) = self.fitted.at(&self.features(on));
        (mean, variance + self.open(on))
    }

    /// Estimate at g0.
    pub(crate) fn level(&self) -> Gaussian {
        self.fitted.marginal(0)
    }

    /// Standard deviation of the residuals relative to the stated one.
    pub(crate) fn noise_ratio(&self) -> f64 {
        self.fitted.noise_ratio()
    }

    /// Level, part, and the share of each piece between two knots that lies between g0 and these GPUs.
    fn features(&self, on: GpuWork) -> Vec<f64> {
        let (from, to) = (ln(self.from.gpus), ln(on.gpus));
        let share = |b: &[f64]| (to.clamp(b[0], b[1]) - from.clamp(b[0], b[1])) / (b[1] - b[0]);
        let walk = self.bends.windows(2).map(share);
        [1.0, self.work(on).0].into_iter().chain(walk).collect()
    }

    /// What one GPU computes relative to g0, and its variance.
    fn work(&self, on: GpuWork) -> (f64, f64) {
        match (on.ln_work, self.from.ln_work) {
            (Some((there, variance)), Some((here, _))) => (there - here, variance),
            _ => {
                let more = ln(on.gpus) - ln(self.from.gpus);
                (WAITING.mean * more, (WAITING.sd * more).powi(2))
            }
        }
    }

    /// Variance that no parameter represents: of what the GPUs compute, and of the walk.
    fn open(&self, on: GpuWork) -> f64 {
        PART.mean.powi(2) * self.work(on).1 + self.open_walk(ln(on.gpus))
    }

    /// Variance of the walk between two knots, and beyond the outer ones.
    fn open_walk(&self, at: f64) -> f64 {
        let (Some(first), Some(last)) = (self.bends.first(), self.bends.last()) else {
            return WALK_SD * WALK_SD * (at - ln(self.from.gpus)).abs();
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

    const fn on(gpus: u32) -> GpuWork {
        GpuWork { gpus, ln_work: None }
    }

    /// With a speed-up that falls behind the GPUs as g^-0.5.
    fn waiting(gpus: u32) -> GpuWork {
        GpuWork { gpus, ln_work: Some((-0.5 * f64::from(gpus).ln(), 1e-4)) }
    }

    fn seen(on: fn(u32) -> GpuWork, points: &[(u32, f64)]) -> Vec<PowerReading> {
        let one = |&(gpus, watts): &(u32, f64)| PowerReading {
            on: on(gpus),
            ln_watts: watts.ln(),
            sd: 0.02,
        };
        points.iter().map(one).collect()
    }

    /// Idle 60 W, 306 W more while computing, a third of that while waiting.
    fn truth(gpus: u32) -> f64 {
        60.0 + 306.0 * (0.35 + 0.65 * f64::from(gpus).powf(-0.5))
    }

    #[test]
    fn power_is_interpolated_over_the_number_of_gpus() {
        for on in [on, waiting] {
            let points: Vec<(u32, f64)> = [1, 4, 32].map(|g| (g, truth(g))).to_vec();
            let curve = ExclusivePower::fit(on(4), LEVEL, &seen(on, &points), true);
            for gpus in [1, 2, 4, 8, 16, 32] {
                let (ln_watts, variance) = curve.ln_watts(on(gpus));
                let off = ln_watts - truth(gpus).ln();
                assert!(off.abs() < 0.06, "{gpus}: off by {off}");
                assert!(off.abs() < 3.0 * variance.sqrt(), "{gpus}: {variance}");
            }
            assert!(curve.ln_watts(on(64)).1 > curve.ln_watts(on(32)).1, "beyond, less is known");
        }
    }

    #[test]
    fn the_part_keeps_its_prior_with_one_number_of_gpus() {
        for (on, expected) in [(on as fn(u32) -> GpuWork, WAITING.mean), (waiting, -0.5)] {
            let curve = ExclusivePower::fit(on(8), LEVEL, &seen(on, &[(8, 200.0)]), true);
            let eight = curve.ln_watts(on(8)).0;
            assert!((eight - 200.0f64.ln()).abs() < 0.01);
            let more = PART.mean * expected * 8.0f64.ln();
            assert!((curve.ln_watts(on(1)).0 - eight + more).abs() < 0.01);
            assert!(curve.ln_watts(on(1)).1.sqrt() > 0.1);
        }
    }

    /// GPUs that mostly wait draw little, whatever their number.
    #[test]
    fn power_follows_what_a_gpu_computes() {
        let poor =
            |gpus| GpuWork { gpus, ln_work: Some((if gpus > 1 { -2.5 } else { 0.0 }, 1e-4)) };
        let watts = |on: GpuWork| {
            let curve = ExclusivePower::fit(poor(1), LEVEL, &seen(poor, &[(1, 230.0)]), true);
            curve.ln_watts(on).0.exp()
        };
        assert!((80.0..95.0).contains(&watts(poor(16))), "{}", watts(poor(16)));
        let good = GpuWork { gpus: 16, ln_work: Some((-0.05, 1e-4)) };
        assert!(watts(good) > 220.0, "{}", watts(good));
    }
}
