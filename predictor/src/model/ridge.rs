//! Ridge regression over rows grouped by family: its penalty, and its error for an unseen family, both
//! by leaving out each family in turn.
//!
//! ```text
//! w = argmin  sum (y - x w)^2 + l |w|^2
//! ```
//!
//! l is the decade with the least mean squared error over left-out families, each family with equal
//! weight. Everything follows from each family's sums of x x', x y and y^2, so leaving one out costs a
//! system of [`WIDTH`] equations and no pass over the rows.
//!
//! These are hundreds of systems for one penalty, so they are not solved by linfa, which solves the
//! regression with the chosen penalty (`docs/decisions.md, 10`).

use wattle_common::numerics::Cholesky;

/// Number of features.
pub const WIDTH: usize = 5;
/// Penalties tried, by decades: from negligible to the weight of one row.
const DECADES: [f64; 5] = [1e-4, 1e-3, 1e-2, 1e-1, 1.0];
/// Penalty with only one family, where none can be left out: the middle of the grid.
const ALONE: f64 = 1e-2;

/// Features and observed value.
pub type Point = ([f64; WIDTH], f64);

/// Sums of one family.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    xx: [[f64; WIDTH]; WIDTH],
    xy: [f64; WIDTH],
    yy: f64,
    n: f64,
}

/// Rows of one regression, as sums by family.
#[derive(Clone, Debug, Default)]
pub struct Families {
    sums: Vec<Sums>,
}

impl Sums {
    fn add(&mut self, (x, y): &Point) {
        for (line, a) in self.xx.iter_mut().zip(x) {
            for (cell, b) in line.iter_mut().zip(x) {
                *cell += a * b;
            }
        }
        for (cell, a) in self.xy.iter_mut().zip(x) {
            *cell += a * y;
        }
        self.yy += y * y;
        self.n += 1.0;
    }

    fn plus(&mut self, other: &Self, sign: f64) {
        for (line, more) in self.xx.iter_mut().zip(&other.xx) {
            for (cell, more) in line.iter_mut().zip(more) {
                *cell += sign * more;
            }
        }
        for (cell, more) in self.xy.iter_mut().zip(&other.xy) {
            *cell += sign * more;
        }
        self.n += sign * other.n;
    }

    /// Sum of squared residuals of its rows.
    fn squares(&self, w: &[f64; WIDTH]) -> f64 {
        let mut squares = self.yy;
        for ((line, xy), a) in self.xx.iter().zip(&self.xy).zip(w) {
            squares -= 2.0 * a * xy;
            squares += a * line.iter().zip(w).map(|(c, b)| c * b).sum::<f64>();
        }
        squares.max(0.0)
    }

    /// The factored normal matrix with the penalty; `None` where the sums overflowed.
    fn factor(&self, penalty: f64) -> Option<Cholesky> {
        let lower = (0..WIDTH).flat_map(|i| (0..=i).map(move |j| (i, j)));
        let penalised = |(i, j): (usize, usize)| self.xx[i][j] + if i == j { penalty } else { 0.0 };
        Cholesky::factor(lower.map(penalised).collect(), WIDTH)
    }

    /// The ridge's weights.
    fn weights(&self, penalty: f64) -> Option<[f64; WIDTH]> {
        let mut w = self.xy;
        self.factor(penalty)?.solve(&mut w);
        Some(w)
    }
}

/// Inner product of `x` and `w`.
#[must_use]
pub fn dot(x: &[f64; WIDTH], w: &[f64; WIDTH]) -> f64 {
    x.iter().zip(w).map(|(a, b)| a * b).sum()
}

impl Families {
    fn all(&self) -> Sums {
        let mut all = Sums::default();
        for sums in &self.sums {
            all.plus(sums, 1.0);
        }
        all
    }

    /// Leave-one-out predictions of `points`, which must be among the added rows: the residual over
    /// one minus the leverage `h = x' (X'X + l)^-1 x`. Empty where the sums overflowed.
    pub fn without_itself(&self, penalty: f64, points: &[Point]) -> Vec<f64> {
        let all = self.all();
        let (Some(factor), Some(w)) = (all.factor(penalty), all.weights(penalty)) else {
            return Vec::new();
        };
        let one = |(x, y): &Point| {
            let mut scaled = *x;
            factor.solve_lower(&mut scaled);
            let leverage: f64 = scaled.iter().map(|v| v * v).sum();
            y - (y - dot(x, &w)) / (1.0 - leverage).max(0.05)
        };
        points.iter().map(one).collect()
    }

    /// Adds a row of a family; families are numbered from 0.
    pub fn add(&mut self, family: usize, point: &Point) {
        if family >= self.sums.len() {
            self.sums.resize(family + 1, Sums::default());
        }
        self.sums[family].add(point);
    }

    /// Weights without each family, by family; `None` for a family without rows.
    #[must_use]
    pub fn without_each(&self, penalty: f64) -> Vec<Option<[f64; WIDTH]>> {
        let all = self.all();
        let without = |sums: &Sums| {
            let mut others = all;
            others.plus(sums, -1.0);
            (sums.n > 0.0 && others.n > 0.5).then(|| others.weights(penalty)).flatten()
        };
        self.sums.iter().map(without).collect()
    }

    /// Sum over left-out families of each one's mean squared error, and their number.
    fn error(&self, penalty: f64) -> (f64, f64) {
        let mut sum = (0.0, 0.0);
        for (sums, w) in self.sums.iter().zip(self.without_each(penalty)) {
            if let Some(w) = w {
                sum = (sum.0 + sums.squares(&w) / sums.n, sum.1 + 1.0);
            }
        }
        sum
    }
}

/// Penalty with the least error over the left-out families of all `bins`, and the root mean square of
/// that error; `None` where no family can be left out.
#[must_use]
pub fn penalty<'a>(bins: impl Iterator<Item = &'a Families> + Clone) -> (f64, Option<f64>) {
    let mut best: Option<(f64, f64)> = None;
    for penalty in DECADES {
        let mut total = (0.0, 0.0);
        for bin in bins.clone() {
            let (squares, families) = bin.error(penalty);
            total = (total.0 + squares, total.1 + families);
        }
        let error = total.0 / total.1;
        if total.1 > 0.0 && error.is_finite() && best.is_none_or(|(_, least)| error < least) {
            best = Some((penalty, error));
        }
    }
    best.map_or((ALONE, None), |(penalty, error)| (penalty, Some(error.sqrt())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wattle_common::rng::Stream;

    /// Families with rows of one law plus `noise`, each family with an offset of deviation `apart`.
    fn families(noise: f64, apart: f64) -> Families {
        let mut rng = Stream::new(5, "ridge");
        let mut found = Families::default();
        for family in 0..6 {
            let off = apart * rng.normal();
            for _ in 0..20 {
                let z: f64 = rng.normal();
                let x = [1.0, z, z * z, 0.0, 0.0];
                found.add(family, &(x, 0.3 * z + 0.1 * z * z + off + noise * rng.normal()));
            }
        }
        found
    }

    #[test]
    fn error_of_a_new_family_is_estimated() {
        let (_, alike) = penalty([families(0.02, 0.0)].iter());
        let (_, apart) = penalty([families(0.02, 0.1)].iter());
        let (alike, apart) = (alike.unwrap(), apart.unwrap());
        assert!((0.015..0.03).contains(&alike) && (0.05..0.25).contains(&apart), "{alike} {apart}");
        let mut one = Families::default();
        one.add(0, &([1.0; WIDTH], 0.5));
        assert_eq!(penalty([one].iter()), (ALONE, None));
        assert_eq!(penalty([].iter()), (ALONE, None));
    }

    #[test]
    fn weights_solve_the_penalised_equations() {
        let found = families(0.0, 0.0);
        let w = found.without_each(1e-4)[0].unwrap();
        assert!((w[1] - 0.3).abs() < 1e-3 && (w[2] - 0.1).abs() < 1e-3, "{w:?}");
    }

    #[test]
    fn leave_one_out_prediction_matches_a_refit() {
        let points: Vec<Point> =
            (0..8).map(|i| ([1.0, f64::from(i), 0.0, 0.0, 0.0], f64::from(i * i))).collect();
        let mut all = Families::default();
        points.iter().for_each(|p| all.add(0, p));
        let quick = all.without_itself(1e-2, &points);
        for (i, (x, _)) in points.iter().enumerate() {
            let mut others = Families::default();
            let rest = points.iter().enumerate().filter(|(k, _)| *k != i);
            rest.for_each(|(_, p)| others.add(0, p));
            let plain = dot(x, &others.all().weights(1e-2).unwrap());
            assert!((quick[i] - plain).abs() < 1e-6, "{i}: {} {plain}", quick[i]);
        }
    }
}
