//! Monotone cubic interpolation: a smooth curve through points that never overshoots between them.
//!
//! Slopes by Fritsch and Butland (SIAM J. Sci. Stat. Comput. 5, 1984): at an inner point the
//! weighted harmonic mean of the two neighbouring secants, zero where they disagree in sign; at the
//! ends a three-point estimate that is not let change the curve's direction. Beyond the ends the
//! curve stays at its last value: it does not extrapolate.

/// A curve through points.
#[derive(Clone, Debug, PartialEq)]
pub struct Pchip {
    x: Vec<f64>,
    y: Vec<f64>,
    slope: Vec<f64>,
}

impl Pchip {
    /// The curve through `points`, whose x ascend; `None` where there are fewer than two, or they
    /// do not ascend, or one is not a number.
    #[must_use]
    pub fn through(points: &[(f64, f64)]) -> Option<Self> {
        let finite = points.iter().all(|(x, y)| x.is_finite() && y.is_finite());
        if points.len() < 2 || !finite || points.windows(2).any(|p| p[0].0 >= p[1].0) {
            return None;
        }
        let (x, y): (Vec<f64>, Vec<f64>) = points.iter().copied().unzip();
        let step: Vec<f64> = x.windows(2).map(|x| x[1] - x[0]).collect();
        let secant: Vec<f64> = y.windows(2).zip(&step).map(|(y, h)| (y[1] - y[0]) / h).collect();
        let last = x.len() - 1;
        let mut slope = vec![secant[0]; x.len()];
        for i in 1..last {
            slope[i] = inner(step[i - 1], step[i], secant[i - 1], secant[i]);
        }
        slope[last] = secant[last - 1];
        if last > 1 {
            slope[0] = end(step[0], step[1], secant[0], secant[1]);
            slope[last] = end(step[last - 1], step[last - 2], secant[last - 1], secant[last - 2]);
        }
        Some(Self { x, y, slope })
    }

    /// Its value at `x`; the nearest end's beyond the ends.
    #[must_use]
    pub fn at(&self, x: f64) -> f64 {
        let last = self.x.len() - 1;
        let x = x.clamp(self.x[0], self.x[last]);
        let i = self.x.partition_point(|known| *known <= x).clamp(1, last) - 1;
        let h = self.x[i + 1] - self.x[i];
        let t = (x - self.x[i]) / h;
        let (t2, t3) = (t * t, t * t * t);
        (2.0 * t3 - 3.0 * t2 + 1.0) * self.y[i]
            + (t3 - 2.0 * t2 + t) * h * self.slope[i]
            + (3.0 * t2 - 2.0 * t3) * self.y[i + 1]
            + (t3 - t2) * h * self.slope[i + 1]
    }
}

/// The slope between two secants.
fn inner(h0: f64, h1: f64, s0: f64, s1: f64) -> f64 {
    if s0 * s1 <= 0.0 {
        return 0.0;
    }
    let (w0, w1) = (2.0 * h1 + h0, h1 + 2.0 * h0);
    (w0 + w1) / (w0 / s0 + w1 / s1)
}

/// The slope at an end, from its own secant `s0` and the next.
fn end(h0: f64, h1: f64, s0: f64, s1: f64) -> f64 {
    let slope = ((2.0 * h0 + h1) * s0 - h0 * s1) / (h0 + h1);
    if slope * s0 <= 0.0 {
        0.0
    } else if s0 * s1 <= 0.0 && slope.abs() > 3.0 * s0.abs() {
        3.0 * s0
    } else {
        slope
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_parabola_s_middle_is_met() {
        let curve = Pchip::through(&[(0.0, 0.0), (1.0, 1.0), (2.0, 4.0), (3.0, 9.0)]).unwrap();
        assert!((curve.at(1.5) - 2.25).abs() < 0.07, "{}", curve.at(1.5));
        assert!(curve.at(-5.0).abs() < 1e-12 && (curve.at(9.0) - 9.0).abs() < 1e-12);
        assert!(Pchip::through(&[(0.0, 1.0)]).is_none());
        assert!(Pchip::through(&[(1.0, 1.0), (1.0, 2.0)]).is_none());
    }

    proptest! {
        #[test]
        fn it_meets_its_points_and_never_leaves_their_range(
            steps in prop::collection::vec((0.1f64..10.0, -5.0f64..5.0), 2..8),
            at in 0.0f64..1.0
        ) {
            let mut x = 0.0;
            let points: Vec<(f64, f64)> = steps.iter().map(|(h, y)| { x += h; (x, *y) }).collect();
            let curve = Pchip::through(&points).unwrap();
            for pair in points.windows(2) {
                prop_assert!((curve.at(pair[0].0) - pair[0].1).abs() < 1e-9);
                let between = curve.at(pair[0].0 + at * (pair[1].0 - pair[0].0));
                let (low, high) = (pair[0].1.min(pair[1].1), pair[0].1.max(pair[1].1));
                prop_assert!(between >= low - 1e-9 && between <= high + 1e-9);
            }
        }
    }
}
