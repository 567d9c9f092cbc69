//! Monotone interpolation of measured points.
//!
//! Points are first made monotone (pool adjacent violators), because single measurements are noisy.
//! Interpolation is piecewise cubic with the limited slopes of Fritsch and Carlson, so it stays
//! within the interval of the two adjacent points: power never exceeds the measurements, and speed
//! never falls with a higher cap.

/// A non-decreasing function through points with increasing `x`; constant outside them.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    x: Vec<f64>,
    y: Vec<f64>,
    slope: Vec<f64>,
}

impl Curve {
    /// The curve through `points`, with `y` made non-decreasing.
    ///
    /// `None` without points, with a value that is not finite, or if `x` does not increase.
    #[must_use]
    pub fn through(points: &[(f64, f64)]) -> Option<Self> {
        let finite = points.iter().all(|(x, y)| x.is_finite() && y.is_finite());
        if points.is_empty() || !finite || points.windows(2).any(|w| w[0].0 >= w[1].0) {
            return None;
        }
        let x: Vec<f64> = points.iter().map(|p| p.0).collect();
        let y = non_decreasing(points.iter().map(|p| p.1));
        let slope = slopes(&x, &y);
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
        // Curves have few points: linear search is faster than bisection.
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
        value.clamp(self.y[left], self.y[right])
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

/// Isotonic regression: the least-squares non-decreasing sequence.
pub(crate) fn non_decreasing(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut blocks: Vec<(f64, usize)> = Vec::new();
    for value in values {
        blocks.push((value, 1));
        while let [.., (a, n), (b, m)] = blocks[..]
            && a > b
        {
            blocks.truncate(blocks.len() - 2);
            blocks.push(((a * n as f64 + b * m as f64) / (n + m) as f64, n + m));
        }
    }
    blocks.into_iter().flat_map(|(value, n)| std::iter::repeat_n(value, n)).collect()
}

/// Slopes that keep every segment monotone (Fritsch and Carlson 1980, in the harmonic
/// form of Fritsch and Butland 1984).
fn slopes(x: &[f64], y: &[f64]) -> Vec<f64> {
    let n = x.len();
    if n == 1 {
        return vec![0.0];
    }
    let h: Vec<f64> = x.windows(2).map(|w| w[1] - w[0]).collect();
    let d: Vec<f64> = y.windows(2).zip(&h).map(|(w, h)| (w[1] - w[0]) / h).collect();
    let mut slope = vec![0.0; n];
    for i in 1..n - 1 {
        if d[i - 1] > 0.0 && d[i] > 0.0 {
            let (a, b) = (2.0 * h[i] + h[i - 1], h[i] + 2.0 * h[i - 1]);
            slope[i] = (a + b) / (a / d[i - 1] + b / d[i]);
        }
    }
    slope[0] = d[0];
    slope[n - 1] = d[n - 2];
    slope
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
        assert_eq!(non_decreasing([1.0, 3.0, 2.0, 4.0].into_iter()), [1.0, 2.5, 2.5, 4.0]);
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
