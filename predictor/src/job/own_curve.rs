//! A job's own curves over caps, between the default and the lowest observed cap.
//!
//! Used from two caps besides the default on. The forms are those of [`crate::model::cap_curve`],
//! fitted through the job's estimates at its observed caps.

use wattle_common::numerics::median_high;

use crate::model::cap_curve::{CapCurve, Known, Shares, power_between};
use crate::model::constant::{Constant, LEAST_SD};

/// Standard deviation of a curve between two observed settings, as a share of the gap between them.
pub(crate) const BETWEEN_SHARE: Constant = Constant::new("own_curve: BETWEEN_SHARE", 0.06);

/// A job's time curve between the default and its lowest cap.
pub(crate) struct OwnTimeCurve {
    shape: CapCurve,
    /// (ln cap, ln slowdown, residual of the curve), in descending order of caps, the default first.
    points: Vec<(f64, f64, f64)>,
}

impl OwnTimeCurve {
    /// Fits `caps`, in descending order: (effective cap in W, ln slowdown, its variance).
    pub(crate) fn fit(
        caps: &[(f64, f64, f64)],
        cap_default_w: f64,
        shares: &Shares,
    ) -> Option<Self> {
        // Half of the variance is noise of the default, which all caps have in common.
        let one = |(cap_w, ln_time, variance): &(f64, f64, f64)| Known {
            cap_w: *cap_w,
            ln_time: *ln_time,
            sd: (variance / 2.0).sqrt(),
        };
        let mut known: Vec<Known> = caps.iter().map(one).collect();
        let sd = median_high(known.iter().map(|k| k.sd)).unwrap_or(0.0);
        known.insert(0, Known { cap_w: cap_default_w, ln_time: 0.0, sd });
        let shape = CapCurve::fit(&known, cap_default_w, shares)?;
        let points = known
            .iter()
            .enumerate()
            .map(|(i, k)| {
                let off = k.ln_time - shape.at(k.cap_w).0;
                let noise = if i == 0 { 0.0 } else { k.sd * k.sd };
                let curve = LEAST_SD.get() * LEAST_SD.get();
                (k.cap_w.ln(), k.ln_time, off * curve / (curve + noise))
            })
            .collect();
        Some(Self { shape, points })
    }

    /// Natural logarithm of the slowdown, and the variance of the curve's form.
    pub(crate) fn at(&self, cap_w: f64) -> (f64, f64) {
        // Below the lowest effective cap the GPU is at its lowest clock.
        let cap_w = self.points.last().map_or(cap_w, |lowest| cap_w.max(lowest.0.exp()));
        let (shape, spread) = self.shape.at(cap_w);
        let (share, high, low) = between(&self.points, |p| p.0, cap_w.ln());
        let off = high.2 + share * (low.2 - high.2);
        (shape + off, spread + form_between(share, low.1 - high.1))
    }
}

/// Natural logarithm of power under `cap_w` relative to the default's power `top_w`, and the variance
/// of its form.
pub(super) fn own_power_at(points: &[(f64, f64)], cap_w: f64, top_w: f64) -> (f64, f64) {
    let watts = |p: &(f64, f64)| (p.0, top_w * p.1.exp());
    let (share, high, low) = between(points, |p| p.0, cap_w);
    let below = points.iter().find(|p| p.0 < low.0).map(watts);
    let power = power_between(cap_w, below, watts(low), watts(high), top_w);
    ((power / top_w).max(1e-3).ln(), form_between(share, low.1 - high.1))
}

/// The two points around `at`, in descending order, and the fraction of the way from the higher one.
fn between<P>(points: &[P], of: fn(&P) -> f64, at: f64) -> (f64, &P, &P) {
    let i = points.partition_point(|p| of(p) >= at).clamp(1, points.len() - 1);
    let (high, low) = (&points[i - 1], &points[i]);
    (((of(high) - at) / (of(high) - of(low))).clamp(0.0, 1.0), high, low)
}

/// Variance of a curve's form between two observed points, greatest in the middle.
fn form_between(share: f64, gap: f64) -> f64 {
    let middle = 4.0 * share * (1.0 - share);
    (middle * (LEAST_SD.get() + BETWEEN_SHARE.get() * gap.abs())).powi(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::cap_curve::EQUAL;

    #[test]
    fn curve_meets_precise_points_and_smooths_noisy_ones() {
        let caps = |sd: f64, odd: f64| {
            [(225.0, 0.02), (175.0, 0.10 + odd), (150.0, 0.17), (125.0, 0.29), (100.0, 0.52)]
                .map(|(cap, y)| (cap, y, 2.0 * sd * sd))
        };
        let at = |sd, odd, cap| OwnTimeCurve::fit(&caps(sd, odd), 250.0, &EQUAL).unwrap().at(cap);
        for (cap, y, _) in caps(0.001, 0.0) {
            assert!((at(0.001, 0.0, cap).0 - y).abs() < 0.003, "{cap}");
        }
        let (precise, smoothed) = (at(0.001, 0.05, 175.0).0, at(0.03, 0.05, 175.0).0);
        assert!((precise - 0.15).abs() < 0.005 && smoothed < 0.13, "{precise} {smoothed}");
        // Between observed caps the variance is larger than on them.
        assert!(at(0.001, 0.0, 112.0).1 > at(0.001, 0.0, 100.0).1);
        assert!(OwnTimeCurve::fit(&caps(0.01, 0.0)[..1], 250.0, &EQUAL).is_none());
    }
}
