//! The regressions of one cap, with a kernel smoother of power over jobs of similar power.

use super::super::ridge::WIDTH;
use super::CapObservation;
use super::spread::Group;
use crate::statistics::regression::{Gaussian, Posterior, Row, fit};

/// Kernel widths beyond which a point has no weight.
const KERNEL_REACH: f64 = 4.0;
/// Grid of u on which the smoother is tabulated.
const GRID_STEP: f64 = 0.02;
const GRID: usize = 61;
/// Weight of the ridge regression in the smoother, in points: it decides where no point is near.
const KERNEL_RIDGE: f64 = 0.02;
/// Residual standard deviation where no family could be left out.
const ALONE_SD: f64 = 0.05;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Bin {
    pub(super) cap_w: f64,
    pub(super) slow: Posterior,
    pub(super) power: Posterior,
    /// ln slowdown of a job that draws the default cap.
    pub(super) full: f64,
    /// Smoothed ln(p / p0) over u.
    smooth: Vec<f64>,
}

impl Bin {
    /// Fits the observations under one cap, with each quantity's ridge penalty and residual.
    pub(super) fn fit(
        group: &Group<'_>,
        cap_default_w: f64,
        slow: (f64, Option<f64>),
        power: (f64, Option<f64>),
    ) -> Self {
        let (seen, cap_w) = (group.seen, group.cap_w);
        let half = |of: fn(&CapObservation) -> Option<(f64, f64)>,
                    (penalty, left): (f64, Option<f64>)| {
            let left = left.unwrap_or(ALONE_SD).max(1e-3);
            let row = |s: &CapObservation| {
                let (y, sd) = of(s)?;
                let x = features(s.ln_power.exp(), cap_w, cap_default_w).to_vec();
                // The residual includes the reading's own noise.
                Some(Row { x, y, sd: left.max(sd) })
            };
            let rows: Vec<Row> = seen.iter().filter_map(row).collect();
            fit(&rows, &[Gaussian { mean: 0.0, sd: left / penalty.sqrt() }; WIDTH])
        };
        let (slow, power) = (half(|s| s.slow, slow), half(|s| s.power, power));
        let full = slow.at(&features(cap_default_w, cap_w, cap_default_w)).0;
        let mut bin = Self { cap_w, slow, power, full, smooth: Vec::new() };
        let points: Vec<(f64, f64)> = seen
            .iter()
            .filter_map(|s| Some((s.ln_power.exp() / cap_default_w, s.power?.0)))
            .collect();
        let width = silverman(points.iter().map(|p| p.0)).max(GRID_STEP);
        bin.smooth = (0..GRID)
            .map(|i| {
                let u = GRID_STEP * i as f64;
                let ridge = bin.power.at(&features(u * cap_default_w, cap_w, cap_default_w)).0;
                let (mut weights, mut sum) = (KERNEL_RIDGE, KERNEL_RIDGE * ridge);
                for (at, y) in &points {
                    let far = (u - at) / width;
                    if far.abs() > KERNEL_REACH {
                        continue;
                    }
                    let weight = (-0.5 * far * far).exp();
                    weights += weight;
                    sum += weight * y;
                }
                sum / weights
            })
            .collect();
        bin
    }

    pub(super) fn smooth_at(&self, u: f64) -> f64 {
        let at = (u / GRID_STEP).clamp(0.0, (GRID - 1) as f64);
        let i = (at as usize).min(GRID - 2);
        let share = at - i as f64;
        self.smooth[i] + share * (self.smooth[i + 1] - self.smooth[i])
    }
}

pub(super) fn features(power_w: f64, cap_w: f64, cap_default_w: f64) -> [f64; WIDTH] {
    let z = (power_w / cap_w).ln().max(0.0);
    let u = power_w / cap_default_w;
    [1.0, z, z * z, u, (0.8 - u).max(0.0)]
}

/// Silverman's width of a Gaussian kernel: 0.9 min(sd, interquartile range / 1.34) n^(-1/5).
fn silverman(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len() as f64;
    if sorted.len() < 2 {
        return 0.0;
    }
    let mean = sorted.iter().sum::<f64>() / n;
    let sd = (sorted.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / (n - 1.0)).sqrt();
    let quartiles = (sorted[3 * sorted.len() / 4] - sorted[sorted.len() / 4]) / 1.34;
    let least = if quartiles > 0.0 { sd.min(quartiles) } else { sd };
    0.9 * least * n.powf(-0.2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_width_follows_silverman() {
        // 0.9 x 28.9 (the standard deviation; the quartiles give 37) x 100^(-1/5).
        let even = silverman((0..100).map(f64::from));
        assert!((even - 0.9 * 29.011 * 0.398_107).abs() < 1e-3, "{even}");
        assert!(silverman([1.0].into_iter()).abs() < 1e-12);
    }
}
