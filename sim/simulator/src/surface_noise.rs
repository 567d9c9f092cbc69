//! Surfaces that err: true ones with errors of a known size, to see what a policy makes of them.
//!
//! A predictor's errors come with its own history; these are drawn, the same for every policy, so
//! that "how wrong may it be" has an answer. An error is a factor on speed, another on power, each
//! `exp(share * z)` with `z` drawn from the seed; clocks keep their shape, as a size seen wrongly is
//! wrong at every clock. Beside a neighbour the relative speed errs too, and no more is expected of
//! it than of the job alone.
//!
//! It must not know what is done with the surfaces, and no policy that they err.

use wattle_common::rng::Stream;

/// How errors of different sizes of one workload hang together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Not at all: each workload, number of GPUs and neighbour is wrong for itself.
    Independent,
    /// Smoothly: each workload has a level and a slope over the logarithm of the number of GPUs.
    Smooth,
}

/// How surfaces err.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SurfaceNoise {
    /// How errors hang together.
    pub shape: Shape,
    /// Their deviation, as a share: 0.1 for a tenth. Smooth ones have it at 1 and at 64 GPUs, and
    /// the root of a half of it between.
    pub share: f64,
    /// They follow from it.
    pub seed: u64,
}

/// The number of GPUs, as a power of two, up to which a slope is told.
const DOUBLINGS: f64 = 6.0;

impl SurfaceNoise {
    /// The factor on `what` (a name) of a workload on so many GPUs, beside `other` where that is not
    /// empty.
    pub(crate) fn factor(&self, what: &str, workload: &str, gpus: u32, other: &str) -> f64 {
        let draw = |at: &str| {
            Stream::new(self.seed, &format!("surface_noise {what} {workload} {other} {at}"))
                .normal()
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

    /// Deviation of the logarithm of many workloads' factors on so many GPUs.
    fn deviation(shape: Shape, gpus: u32) -> f64 {
        let surface_noise = SurfaceNoise { shape, share: 0.1, seed: 3 };
        let logs: Vec<f64> = (0..4_000)
            .map(|i| surface_noise.factor("speed", &format!("w{i}"), gpus, "").ln())
            .collect();
        (logs.iter().map(|log| log * log).sum::<f64>() / logs.len() as f64).sqrt()
    }

    #[test]
    fn errors_are_as_large_as_asked_and_hang_together_as_asked() {
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
