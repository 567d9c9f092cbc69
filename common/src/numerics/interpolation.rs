//! Interpolation through points.

/// Linear interpolation: `a` at `t` = 0, `b` at `t` = 1.
#[must_use]
pub fn lerp(a: f64, b: f64, t: f64) -> f64 {
    a + t * (b - a)
}

/// How a [`MonotoneCubic`] chooses its slope at the first and at the last point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndSlopes {
    /// The slope of the line to the neighbouring point.
    Secant,
    /// A three-point estimate, limited so that the curve stays monotone; as in PCHIP.
    ThreePoint,
}

/// Monotone piecewise cubic interpolation (PCHIP): smooth, and between two points never outside the
/// range of their values. Constant beyond the first and the last point.
///
/// At an inner point the slope is the weighted harmonic mean of the two neighbouring secants, or
/// zero where they differ in sign (Fritsch and Butland, SIAM J. Sci. Stat. Comput. 5, 1984).
#[derive(Clone, Debug, PartialEq)]
pub struct MonotoneCubic {
    x: Vec<f64>,
    y: Vec<f64>,
    slope: Vec<f64>,
}

impl MonotoneCubic {
    /// Interpolates `points`, whose x increase; `None` for no points, for x that do not increase,
    /// and for values that are not finite. One point gives a constant.
    #[must_use]
    pub fn new(points: &[(f64, f64)], ends: EndSlopes) -> Option<Self> {
        let finite = points.iter().all(|(x, y)| x.is_finite() && y.is_finite());
        if points.is_empty() || !finite || points.windows(2).any(|p| p[0].0 >= p[1].0) {
            return None;
        }
        let (x, y): (Vec<f64>, Vec<f64>) = points.iter().copied().unzip();
        let slope = slopes(&x, &y, ends);
        Some(Self { x, y, slope })
    }

    /// Value at `x`.
    #[must_use]
    pub fn at(&self, x: f64) -> f64 {
        let last = self.x.len() - 1;
        if x <= self.x[0] {
            return self.y[0];
        }
        if x >= self.x[last] {
            return self.y[last];
        }
        // Few points: a linear search is faster than a binary one.
        let mut right = 1;
        while self.x[right] < x {
            right += 1;
        }
        let left = right - 1;
        let h = self.x[right] - self.x[left];
        let t = (x - self.x[left]) / h;
        let (t2, u) = (t * t, 1.0 - t);
        let value = self.y[left] * (1.0 + 2.0 * t) * u * u
            + self.slope[left] * h * t * u * u
            + self.y[right] * t2 * (3.0 - 2.0 * t)
            - self.slope[right] * h * t2 * u;
        // Rounding may leave the range by a last digit.
        value.clamp(self.y[left].min(self.y[right]), self.y[left].max(self.y[right]))
    }

    /// First point.
    #[must_use]
    pub fn first(&self) -> (f64, f64) {
        (self.x[0], self.y[0])
    }

    /// Last point.
    #[must_use]
    pub fn last(&self) -> (f64, f64) {
        let last = self.x.len() - 1;
        (self.x[last], self.y[last])
    }
}

fn slopes(x: &[f64], y: &[f64], ends: EndSlopes) -> Vec<f64> {
    let last = x.len() - 1;
    if last == 0 {
        return vec![0.0];
    }
    let step: Vec<f64> = x.windows(2).map(|x| x[1] - x[0]).collect();
    let secant: Vec<f64> = y.windows(2).zip(&step).map(|(y, h)| (y[1] - y[0]) / h).collect();
    let mut slope = vec![0.0; x.len()];
    for i in 1..last {
        slope[i] = inner_slope(step[i - 1], step[i], secant[i - 1], secant[i]);
    }
    (slope[0], slope[last]) = (secant[0], secant[last - 1]);
    if ends == EndSlopes::ThreePoint && last > 1 {
        slope[0] = end_slope(step[0], step[1], secant[0], secant[1]);
        slope[last] = end_slope(step[last - 1], step[last - 2], secant[last - 1], secant[last - 2]);
    }
    slope
}

/// Slope between two pieces of these widths and secants.
fn inner_slope(h0: f64, h1: f64, s0: f64, s1: f64) -> f64 {
    if s0 * s1 <= 0.0 {
        return 0.0;
    }
    let (w0, w1) = (2.0 * h1 + h0, h1 + 2.0 * h0);
    (w0 + w1) / (w0 / s0 + w1 / s1)
}

/// Slope at an end: (h0, s0) is the piece at the end, (h1, s1) the next.
fn end_slope(h0: f64, h1: f64, s0: f64, s1: f64) -> f64 {
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
    fn parabola_is_approximated_between_its_points() {
        let points = [(0.0, 0.0), (1.0, 1.0), (2.0, 4.0), (3.0, 9.0)];
        let curve = MonotoneCubic::new(&points, EndSlopes::ThreePoint).unwrap();
        assert!((curve.at(1.5) - 2.25).abs() < 0.07, "{}", curve.at(1.5));
        assert!(curve.at(-5.0).abs() < 1e-12 && (curve.at(9.0) - 9.0).abs() < 1e-12);
        assert_eq!((curve.first(), curve.last()), ((0.0, 0.0), (3.0, 9.0)));
    }

    #[test]
    fn unusable_points_are_refused() {
        let new = |points: &[(f64, f64)]| MonotoneCubic::new(points, EndSlopes::Secant);
        assert_eq!(new(&[]), None);
        assert_eq!(new(&[(1.0, 1.0), (1.0, 2.0)]), None);
        assert_eq!(new(&[(1.0, f64::NAN)]), None);
        assert!((new(&[(1.0, 3.0)]).unwrap().at(7.0) - 3.0).abs() < 1e-12);
    }

    proptest! {
        #[test]
        fn curve_meets_its_points_and_stays_within_their_range(
            steps in prop::collection::vec((0.1f64..10.0, -5.0f64..5.0), 2..8),
            at in 0.0f64..1.0
        ) {
            let mut x = 0.0;
            let points: Vec<(f64, f64)> = steps.iter().map(|(h, y)| { x += h; (x, *y) }).collect();
            for ends in [EndSlopes::Secant, EndSlopes::ThreePoint] {
                let curve = MonotoneCubic::new(&points, ends).unwrap();
                for pair in points.windows(2) {
                    prop_assert!((curve.at(pair[0].0) - pair[0].1).abs() < 1e-9);
                    let between = curve.at(lerp(pair[0].0, pair[1].0, at));
                    let (low, high) = (pair[0].1.min(pair[1].1), pair[0].1.max(pair[1].1));
                    prop_assert!(between >= low - 1e-9 && between <= high + 1e-9);
                }
            }
        }
    }
}
