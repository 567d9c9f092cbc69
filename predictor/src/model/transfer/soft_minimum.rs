//! Soft minimum of a job's exclusive power and its cap: one curve for all caps of a GPU type.

use super::CapObservation;

/// Largest and smallest number of points of the fit.
const POINTS_MAX: usize = 128;
const POINTS_MIN: usize = 8;

/// Soft minimum of two powers, all three as natural logarithms.
pub(super) fn soft(a: f64, b: f64, k: f64) -> f64 {
    a.min(b) - (-k * (a - b).abs()).exp().ln_1p() / k
}

/// Least squares (c, k) over all caps, by grid search because the form is nonlinear.
pub(super) fn fit_soft_minimum(seen: &[CapObservation]) -> Option<(f64, f64)> {
    let points: Vec<(f64, f64, f64)> = seen
        .iter()
        .filter_map(|s| Some((s.ln_power, s.cap_w.ln(), s.ln_power + s.power?.0)))
        .collect();
    if points.len() < POINTS_MIN {
        return None;
    }
    let points: Vec<_> = points.iter().step_by(points.len().div_ceil(POINTS_MAX)).collect();
    let cost = |c: f64, k: f64| -> f64 {
        points.iter().map(|(own, cap, y)| (soft(*own, cap + c.ln(), k) - y).powi(2)).sum()
    };
    // A coarse grid, then a finer one around its best.
    let mut best = (f64::INFINITY, 0.95, 12.0);
    for (steps, wide_c, wide_k) in [(3, 0.15, 4.5f64), (2, 0.04, 1.5)] {
        let (_, c0, k0) = best;
        for i in -steps..=steps {
            for j in -steps..=steps {
                let part = |i: i32| f64::from(i) / f64::from(steps);
                let (c, k) = (c0 + wide_c * part(i), k0 * wide_k.powf(part(j)));
                let cost = cost(c, k);
                if cost < best.0 {
                    best = (cost, c, k);
                }
            }
        }
    }
    Some((best.1, best.2))
}
