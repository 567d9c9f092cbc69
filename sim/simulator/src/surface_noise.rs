//! Errors of a known size on true surfaces, to measure a policy's sensitivity.
//!
//! Errors are drawn from the seed and equal for every policy. Speed and power have a factor
//! `exp(share * z)` each, with standard normal `z`; the factor is the same at every clock. With a
//! co-tenant the relative speed has a factor too, limited so that it does not exceed 1. Policies do
//! not know of the errors.

use wattle_common::rng::Stream;

/// Correlation of the errors of one workload over GPU counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Independent for each workload, number of GPUs and co-tenant.
    Independent,
    /// A level and a slope over the logarithm of the number of GPUs, per workload.
    Smooth,
}

/// Errors on surfaces.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SurfaceNoise {
    /// Their correlation.
    pub shape: Shape,
    /// Their relative standard deviation. Smooth errors have it at 1 and at 64 GPUs, and the root
    /// of a half of it in the middle.
    pub share: f64,
    /// The seed of the draws.
    pub seed: u64,
}

/// Range of a slope: doublings of the number of GPUs from 1 to 64.
const DOUBLINGS: f64 = 6.0;

impl SurfaceNoise {
    /// The factor on the quantity `what` of a workload on `gpus` GPUs, with the co-tenant `other`
    /// where not empty.
    pub(crate) fn factor(&self, what: &str, workload: &str, gpus: u32, other: &str) -> f64 {
        let draw = |at: &str| {
            Stream::new(self.seed, &format!("erring {what} {workload} {other} {at}")).normal()
        };
        let deviations = match self.shape {
            Shape::Independent => draw(&gpus.to_string()),
            Shape::Smooth => {
                let along = 2.0 * f64::from(gpus).log2() / DOUBLINGS - 1.0;
                (draw("level") + draw("slope") * along) / std::f64::consts::SQRT_2
            }
        };
        (self.share * deviations).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Standard deviation of the logarithm of many workloads' factors.
    fn deviation(shape: Shape, gpus: u32) -> f64 {
        let surface_noise = SurfaceNoise { shape, share: 0.1, seed: 3 };
        let logs: Vec<f64> = (0..4_000)
            .map(|i| surface_noise.factor("speed", &format!("w{i}"), gpus, "").ln())
            .collect();
        (logs.iter().map(|log| log * log).sum::<f64>() / logs.len() as f64).sqrt()
    }

    #[test]
    fn errors_have_the_given_size_and_correlation() {
        for (shape, gpus, expected) in [
            (Shape::Independent, 1, 0.1),
            (Shape::Independent, 64, 0.1),
            (Shape::Smooth, 1, 0.1),
            (Shape::Smooth, 8, 0.1 / std::f64::consts::SQRT_2),
            (Shape::Smooth, 64, 0.1),
        ] {
            let found = deviation(shape, gpus);
            assert!((found / expected - 1.0).abs() < 0.05, "{shape:?} on {gpus}: {found}");
        }
        let smooth = SurfaceNoise { shape: Shape::Smooth, share: 0.1, seed: 3 };
        let ln = |gpus| smooth.factor("speed", "w", gpus, "").ln();
        assert!((ln(8) - ln(4) - (ln(32) - ln(16))).abs() < 1e-12, "a straight line");
        let other = SurfaceNoise { seed: 4, ..smooth };
        assert!((other.factor("speed", "w", 8, "").ln() - ln(8)).abs() > 1e-6, "another seed");
    }
}
