//! Simple predictors for comparison: constant, nearest, linear. They know the same readings as the
//! predictor.

use wattle_common::numerics::gauss_jordan;

/// Geometric mean.
pub(crate) fn constant(values: impl Iterator<Item = f64>) -> Option<f64> {
    let logs: Vec<f64> = values.map(f64::ln).collect();
    (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / logs.len() as f64).exp())
}

/// Value at the known point nearest to `x`; of two equally near ones, the first.
pub(crate) fn nearest(known: &[(f64, f64)], x: f64) -> Option<f64> {
    known.iter().min_by(|a, b| (a.0 - x).abs().total_cmp(&(b.0 - x).abs())).map(|(_, y)| *y)
}

/// Piecewise linear interpolation, extrapolated from the last two points; `known` is in ascending order.
pub(crate) fn linear(known: &[(f64, f64)], x: f64) -> Option<f64> {
    let [first, rest @ ..] = known else { return None };
    if rest.is_empty() {
        return Some(first.1);
    }
    let right = known.partition_point(|k| k.0 < x).clamp(1, known.len() - 1);
    let ((x0, y0), (x1, y1)) = (known[right - 1], known[right]);
    Some(y0 + (y1 - y0) * (x - x0) / (x1 - x0))
}

/// All three over one axis; `known` is in ascending order and not empty.
pub(crate) fn simple(known: &[(f64, f64)], x: f64) -> Vec<(&'static str, f64)> {
    let of = [
        ("constant", constant(known.iter().map(|k| k.1))),
        ("nearest", nearest(known, x)),
        ("linear", linear(known, x)),
    ];
    of.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// Least squares of `y` over (1, features), with a small ridge penalty (1e-6 of each feature's own sum of
/// squares) against collinear features.
pub(crate) struct Plane(Vec<f64>);

impl Plane {
    pub(crate) fn fit(rows: &[(Vec<f64>, f64)]) -> Option<Self> {
        let width = rows.first()?.0.len() + 1;
        let mut system = vec![vec![0.0; width + 1]; width];
        for (x, y) in rows {
            let full = |i: usize| if i == 0 { 1.0 } else { x[i - 1] };
            for (i, line) in system.iter_mut().enumerate() {
                for (j, cell) in line[..width].iter_mut().enumerate() {
                    *cell += full(i) * full(j);
                }
                line[width] += full(i) * y;
            }
        }
        for (i, line) in system.iter_mut().enumerate() {
            line[i] += 1e-6 * line[i] + 1e-12;
        }
        gauss_jordan::solve(&mut system)?;
        let found: Vec<f64> = system.iter().map(|line| line[width]).collect();
        found.iter().all(|v| v.is_finite()).then_some(Self(found))
    }

    pub(crate) fn at(&self, x: &[f64]) -> f64 {
        self.0[0] + self.0[1..].iter().zip(x).map(|(w, x)| w * x).sum::<f64>()
    }
}

/// Additive model in logarithms, y = mean + row effect + column effect; each effect is shrunk as if by one
/// more reading without effect.
pub(crate) struct Additive {
    mean: f64,
    rows: Vec<f64>,
    columns: Vec<f64>,
}

impl Additive {
    pub(crate) fn fit(size: usize, cells: &[((usize, usize), f64)]) -> Self {
        let mean = cells.iter().map(|(_, y)| y.ln()).sum::<f64>() / cells.len().max(1) as f64;
        let mut fitted = Self { mean, rows: vec![0.0; size], columns: vec![0.0; size] };
        // Backfitting of a convex problem: a few dozen rounds suffice.
        for _ in 0..100 {
            let (mut sums, mut counts) = (vec![0.0; size], vec![1.0; size]);
            for ((i, j), y) in cells {
                sums[*i] += y.ln() - mean - fitted.columns[*j];
                counts[*i] += 1.0;
            }
            fitted.rows = sums.iter().zip(&counts).map(|(s, c)| s / c).collect();
            (sums, counts) = (vec![0.0; size], vec![1.0; size]);
            for ((i, j), y) in cells {
                sums[*j] += y.ln() - mean - fitted.rows[*i];
                counts[*j] += 1.0;
            }
            fitted.columns = sums.iter().zip(&counts).map(|(s, c)| s / c).collect();
        }
        fitted
    }

    pub(crate) fn at(&self, row: usize, column: usize) -> f64 {
        (self.mean + self.rows[row] + self.columns[column]).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interpolation_and_nearest_point() {
        let known = [(1.0, 10.0), (2.0, 20.0), (4.0, 0.0)];
        for (x, line, near) in
            [(1.5, 15.0, 10.0), (3.5, 5.0, 0.0), (5.0, -10.0, 0.0), (0.0, 0.0, 10.0)]
        {
            assert_eq!(linear(&known, x), Some(line), "{x}");
            assert_eq!(nearest(&known, x), Some(near), "{x}");
        }
        assert_eq!((linear(&known[..1], 9.0), linear(&[], 9.0)), (Some(10.0), None));
        assert!((constant([2.0, 8.0].into_iter()).unwrap() - 4.0).abs() < 1e-12);
        assert_eq!(constant(std::iter::empty()), None);
    }

    #[test]
    fn plane_and_additive_effects_are_recovered() {
        let rows: Vec<(Vec<f64>, f64)> = (0..9)
            .map(|i| (f64::from(i / 3), f64::from(i % 3)))
            .map(|(a, b)| (vec![a, b], 1.0 + 2.0 * a - 3.0 * b))
            .collect();
        assert!((Plane::fit(&rows).unwrap().at(&[5.0, 1.0]) - 8.0).abs() < 1e-3);
        assert!(Plane::fit(&rows[..1]).is_some() && Plane::fit(&[]).is_none());
        let cells: Vec<_> = (0..400)
            .map(|i| ((i / 20, i % 20), (0.1 * (i / 20) as f64 - 0.05 * (i % 20) as f64).exp()))
            .collect();
        let fitted = Additive::fit(20, &cells);
        assert!((fitted.at(3, 7) / (0.3f64 - 0.35).exp() - 1.0).abs() < 0.05);
    }
}
