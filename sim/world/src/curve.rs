//! Monotone interpolation of measured points.
//!
//! Points are first made monotone by isotonic regression, because single measurements are noisy.
//! Monotone cubic interpolation then stays within the interval of the two adjacent points: power
//! never exceeds the measurements, and speed never falls with a higher cap.

use wattle_common::numerics::{EndSlopes, MonotoneCubic, non_decreasing};

/// A non-decreasing function through points with increasing `x`; constant outside them.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve(MonotoneCubic);

impl Curve {
    /// The curve through `points`, with `y` made non-decreasing.
    ///
    /// `None` without points, with a value that is not finite, or if `x` does not increase.
    #[must_use]
    pub fn through(points: &[(f64, f64)]) -> Option<Self> {
        if !points.iter().all(|(x, y)| x.is_finite() && y.is_finite()) {
            return None;
        }
        let y = monotone(points.iter().map(|p| p.1));
        let points: Vec<(f64, f64)> = points.iter().map(|p| p.0).zip(y).collect();
        MonotoneCubic::new(&points, EndSlopes::Secant).map(Self)
    }

    /// Value at `x`.
    #[must_use]
    pub fn at(&self, x: f64) -> f64 {
        self.0.at(x)
    }

    /// First point.
    #[must_use]
    pub fn first(&self) -> (f64, f64) {
        self.0.first()
    }

    /// Last point.
    #[must_use]
    pub fn last(&self) -> (f64, f64) {
        self.0.last()
    }
}

/// Isotonic regression with equal weights.
pub(crate) fn monotone(values: impl Iterator<Item = f64>) -> Vec<f64> {
    non_decreasing(values.map(|value| (value, 1.0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn curve_meets_its_points_and_is_constant_outside() {
        let curve = Curve::through(&[(100.0, 0.5), (150.0, 0.85), (250.0, 1.0)]).unwrap();
        for (x, y) in [(100.0, 0.5), (150.0, 0.85), (250.0, 1.0), (20.0, 0.5), (900.0, 1.0)] {
            assert!((curve.at(x) - y).abs() < 1e-12, "{x}");
        }
        assert_eq!(Curve::through(&[(1.0, 1.0), (1.0, 2.0)]), None);
        assert_eq!(Curve::through(&[(1.0, f64::NAN)]), None);
    }

    #[test]
    fn adjacent_violators_are_pooled() {
        assert_eq!(monotone([1.0, 3.0, 2.0, 4.0].into_iter()), [1.0, 2.5, 2.5, 4.0]);
    }

    proptest! {
        #[test]
        fn curve_is_non_decreasing(
            steps in prop::collection::vec((0.1f64..50.0, -1.0f64..5.0), 1..12),
            probes in prop::collection::vec(-10.0f64..400.0, 2..30),
        ) {
            let (mut x, mut y) = (0.0, 0.0);
            let points: Vec<(f64, f64)> = steps.iter().map(|(dx, dy)| { x += dx; y += dy; (x, y) }).collect();
            let curve = Curve::through(&points).unwrap();
            let mut probes = probes;
            probes.sort_by(f64::total_cmp);
            for pair in probes.windows(2) {
                prop_assert!(curve.at(pair[0]) <= curve.at(pair[1]) + 1e-9);
            }
        }
    }
}
