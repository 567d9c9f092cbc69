//! Least squares, in the one place that solves them: weighted, with priors, robust, through linfa.
//!
//! linfa's ordinary least squares knows no weights and no ridge, and its elastic net does not
//! converge at a pure ridge. Both are had exactly by rows: a row divided by its deviation is a
//! weighted row, and a row that says "this parameter is m, give or take s" is a ridge towards m. So
//! the system always has full rank, and what linfa solves is the posterior mean.
//!
//! One wild reading among a few must not move the fit. Residuals are first weighted as Huber does
//! (nearly a median), then as Tukey does (a gross outlier counts nothing). The rounds only look for
//! weights, so they solve the normal equations; the fit under the weights found is linfa's.

use std::ops::Range;

use linfa::DatasetBase;
use linfa::traits::Fit;
use linfa_linear::LinearRegression;
use ndarray::{Array1, Array2};
use wattle_common::numerics::{Cholesky, cholesky, gauss_jordan, median_high};

/// Parameters of the largest system accepted.
pub const PARAMETERS_MAX: usize = 32;

/// Rounds of reweighting before and after outliers are cut off. A gross outlier among three
/// readings needs six Huber rounds until the median wins; the rest is margin.
const HUBER_ROUNDS: usize = 8;
const TUKEY_ROUNDS: usize = 3;
/// Where Huber's and Tukey's weights begin to fall, in deviations: the textbook constants for 95 %
/// efficiency under normal noise.
const HUBER_K: f64 = 1.345;
const TUKEY_C: f64 = 4.685;
/// How many readings the assumed noise itself counts for: with fewer, the deviations given with the
/// rows decide the width; with many, the residuals do.
const NOISE_PRIOR_DOF: f64 = 4.0;

/// One equation: the parameters dotted with `x` give `y`, give or take `sd`.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Features.
    pub x: Vec<f64>,
    /// What was observed.
    pub y: f64,
    /// Standard deviation of the observation, greater than zero.
    pub sd: f64,
}

/// What is believed of a parameter before any row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Belief {
    /// Expected value.
    pub mean: f64,
    /// Standard deviation, greater than zero.
    pub sd: f64,
}

/// What is believed of the parameters after the rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Posterior {
    mean: Vec<f64>,
    /// Covariance where the rows' deviations are taken at their word.
    covariance: Vec<Vec<f64>>,
    /// Residual variance relative to what the rows' deviations promised.
    noise: f64,
    dof: f64,
}

impl Posterior {
    /// What follows from `beliefs` alone.
    #[must_use]
    pub fn of_beliefs(beliefs: &[Belief]) -> Self {
        let mut covariance = vec![vec![0.0; beliefs.len()]; beliefs.len()];
        for (i, belief) in beliefs.iter().enumerate() {
            covariance[i][i] = belief.sd * belief.sd;
        }
        Self {
            mean: beliefs.iter().map(|b| b.mean).collect(),
            covariance,
            noise: 1.0,
            dof: NOISE_PRIOR_DOF,
        }
    }

    /// Expected value of parameter `i`.
    #[must_use]
    pub fn mean(&self, i: usize) -> f64 {
        self.mean[i]
    }

    /// Parameter `i` as a belief for another fit.
    #[must_use]
    pub fn belief(&self, i: usize) -> Belief {
        let variance = self.covariance[i][i] * self.noise;
        Belief { mean: self.mean[i], sd: variance.max(1e-12).sqrt() }
    }

    /// The parameters of `range` alone, whatever the others are.
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> Self {
        Self {
            mean: self.mean[range.clone()].to_vec(),
            covariance: self.covariance[range.clone()]
                .iter()
                .map(|row| row[range.clone()].to_vec())
                .collect(),
            noise: self.noise,
            dof: self.dof,
        }
    }

    /// The expected value at `x` and its variance (of the expectation, not of a reading).
    #[must_use]
    pub fn at(&self, x: &[f64]) -> (f64, f64) {
        let mean = x.iter().zip(&self.mean).map(|(a, b)| a * b).sum();
        let mut variance = 0.0;
        for (row, a) in self.covariance.iter().zip(x) {
            for (c, b) in row.iter().zip(x) {
                variance += a * c * b;
            }
        }
        (mean, (variance * self.noise).max(0.0))
    }

    /// Degrees of freedom its widths rest on.
    #[must_use]
    pub fn dof(&self) -> f64 {
        self.dof
    }

    /// How much noisier the rows were than they promised, as a ratio of deviations.
    #[must_use]
    pub fn noise_ratio(&self) -> f64 {
        self.noise.sqrt()
    }
}

/// Fits `rows` under `beliefs`, one for each parameter.
///
/// # Panics
/// Where a row has another number of features than there are beliefs, or there are more than
/// [`PARAMETERS_MAX`]: a bug of the caller, never a matter of data.
#[must_use]
pub fn fit(rows: &[Row], beliefs: &[Belief]) -> Posterior {
    assert!(beliefs.len() <= PARAMETERS_MAX, "{} parameters", beliefs.len());
    let rows: Vec<&Row> =
        rows.iter().filter(|r| r.y.is_finite() && r.sd.is_finite() && r.sd > 0.0).collect();
    if rows.is_empty() || beliefs.is_empty() {
        return Posterior::of_beliefs(beliefs);
    }
    let mut weights = vec![1.0; rows.len()];
    let mut residuals = standardised(&rows, &step(&rows, &weights, beliefs));
    if residuals.iter().any(|u| u.abs() > 2.0 * HUBER_K) {
        for _ in 0..HUBER_ROUNDS {
            for (w, u) in weights.iter_mut().zip(&residuals) {
                *w = if u.abs() <= HUBER_K { 1.0 } else { HUBER_K / u.abs() };
            }
            residuals = standardised(&rows, &step(&rows, &weights, beliefs));
        }
        for _ in 0..TUKEY_ROUNDS {
            // The scale never falls below what the rows promised, so tidy data loses nothing.
            let scale =
                (1.4826 * median_high(residuals.iter().map(|u| u.abs())).unwrap_or(0.0)).max(1.0);
            for (w, u) in weights.iter_mut().zip(&residuals) {
                let reach = u / (TUKEY_C * scale);
                *w = if reach.abs() < 1.0 { (1.0 - reach * reach).powi(2) } else { 0.0 };
            }
            residuals = standardised(&rows, &step(&rows, &weights, beliefs));
        }
    }
    let mean = solve(&rows, &weights, beliefs);
    let residuals = standardised(&rows, &mean);
    let counted: f64 = weights.iter().sum();
    let squares: f64 = weights.iter().zip(&residuals).map(|(w, u)| w * u * u).sum();
    let dof = NOISE_PRIOR_DOF + counted;
    Posterior {
        covariance: covariance(&rows, &weights, beliefs),
        mean,
        noise: (NOISE_PRIOR_DOF + squares) / dof,
        dof,
    }
}

/// Plain least squares of `rows` over `width` parameters of which nothing is believed: the
/// parameters, and the sum of squared residuals in units of each row's own deviation.
///
/// For forms with few points that are compared by how well they fit; no reading is doubted here.
///
/// # Panics
/// Where a row has another number of features than `width`: a bug of the caller.
#[must_use]
pub fn least_squares(rows: &[Row], width: usize) -> (Vec<f64>, f64) {
    // So wide that it only matters where the rows leave a parameter open.
    let beliefs = vec![Belief { mean: 0.0, sd: 100.0 }; width];
    let rows: Vec<&Row> = rows.iter().collect();
    let found = solve(&rows, &vec![1.0; rows.len()], &beliefs);
    let squares = standardised(&rows, &found).iter().map(|u| u * u).sum();
    (found, squares)
}

/// The posterior mean alone, every row taken at its word: a step of a nonlinear fit.
///
/// # Panics
/// As [`fit()`] does.
#[must_use]
pub fn believed_squares(rows: &[Row], beliefs: &[Belief]) -> Vec<f64> {
    assert!(beliefs.len() <= PARAMETERS_MAX, "{} parameters", beliefs.len());
    let rows: Vec<&Row> = rows.iter().collect();
    step(&rows, &vec![1.0; rows.len()], beliefs)
}

/// Residuals in units of each row's own deviation.
fn standardised(rows: &[&Row], mean: &[f64]) -> Vec<f64> {
    rows.iter()
        .map(|r| (r.y - r.x.iter().zip(mean).map(|(a, b)| a * b).sum::<f64>()) / r.sd)
        .collect()
}

/// The posterior mean: ordinary least squares of the scaled rows and the beliefs as rows.
fn solve(rows: &[&Row], weights: &[f64], beliefs: &[Belief]) -> Vec<f64> {
    let width = beliefs.len();
    let height = rows.len() + width;
    let mut records = Array2::<f64>::zeros((height, width));
    let mut targets = Array1::<f64>::zeros(height);
    for (i, (row, weight)) in rows.iter().zip(weights).enumerate() {
        assert_eq!(row.x.len(), width, "a row has one feature for each parameter");
        let scale = weight.sqrt() / row.sd;
        for (j, x) in row.x.iter().enumerate() {
            records[[i, j]] = x * scale;
        }
        targets[i] = row.y * scale;
    }
    for (j, belief) in beliefs.iter().enumerate() {
        records[[rows.len() + j, j]] = 1.0 / belief.sd;
        targets[rows.len() + j] = belief.mean / belief.sd;
    }
    let data = DatasetBase::new(records, targets);
    match LinearRegression::new().with_intercept(false).fit(&data) {
        Ok(model) => model.params().to_vec(),
        // Only a system beyond all floating-point range gets here; what was believed then stands.
        Err(_) => beliefs.iter().map(|b| b.mean).collect(),
    }
}

/// The same mean from the normal equations, by Cholesky: a dozen times cheaper, and good to some
/// eight digits, which is enough on the way to weights or to a nonlinear fit's next step. What is
/// given out as a fit is [`solve`]'s.
fn step(rows: &[&Row], weights: &[f64], beliefs: &[Belief]) -> Vec<f64> {
    let n = beliefs.len();
    let mut information = vec![0.0; cholesky::row_start(n)];
    let mut y: Vec<f64> = Vec::with_capacity(n);
    for (i, belief) in beliefs.iter().enumerate() {
        let scale = 1.0 / (belief.sd * belief.sd);
        information[cholesky::row_start(i) + i] = scale;
        y.push(belief.mean * scale);
    }
    for (row, weight) in rows.iter().zip(weights) {
        assert_eq!(row.x.len(), n, "a row has one feature for each parameter");
        let scale = weight / (row.sd * row.sd);
        // Most features of most rows are zero.
        for (i, a) in row.x.iter().enumerate().filter(|(_, a)| **a != 0.0) {
            let a = a * scale;
            y[i] += a * row.y;
            let start = cholesky::row_start(i);
            for (cell, b) in information[start..=start + i].iter_mut().zip(&row.x) {
                *cell += a * b;
            }
        }
    }
    let Some(factor) = Cholesky::factor(information, n) else {
        return solve(rows, weights, beliefs);
    };
    factor.solve(&mut y);
    y
}

/// The inverse of the information matrix, by Gauss-Jordan: it is small and positive definite.
fn covariance(rows: &[&Row], weights: &[f64], beliefs: &[Belief]) -> Vec<Vec<f64>> {
    let n = beliefs.len();
    let mut left = vec![vec![0.0; n]; n];
    for (row, weight) in rows.iter().zip(weights) {
        let scale = weight / (row.sd * row.sd);
        for (line, a) in left.iter_mut().zip(&row.x).filter(|(_, a)| **a != 0.0) {
            for (cell, b) in line.iter_mut().zip(&row.x) {
                *cell += a * b * scale;
            }
        }
    }
    for (i, belief) in beliefs.iter().enumerate() {
        left[i][i] += 1.0 / (belief.sd * belief.sd);
    }
    gauss_jordan::inverse(left).unwrap_or_else(|| Posterior::of_beliefs(beliefs).covariance)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wattle_common::rng::Stream;

    const WIDE: Belief = Belief { mean: 0.0, sd: 100.0 };

    #[test]
    fn a_step_is_what_linfa_solves() {
        let mut rng = Stream::new(11, "step");
        for width in [1, 2, 5, 14] {
            let rows: Vec<Row> = (0..3 * width)
                .map(|_| Row {
                    x: (0..width).map(|_| rng.normal()).collect(),
                    y: rng.normal(),
                    sd: 0.01,
                })
                .collect();
            let rows: Vec<&Row> = rows.iter().collect();
            let weights: Vec<f64> = (0..rows.len()).map(|i| 1.0 / (1 + i % 4) as f64).collect();
            let beliefs = vec![Belief { mean: 0.3, sd: 3.0 }; width];
            let (quick, plain) =
                (step(&rows, &weights, &beliefs), solve(&rows, &weights, &beliefs));
            for (a, b) in quick.iter().zip(&plain) {
                assert!((a - b).abs() < 1e-8, "{width}: {a} {b}");
            }
        }
    }

    fn line(noise: f64, n: usize, seed: u64) -> Vec<Row> {
        let mut rng = Stream::new(seed, "line");
        (0..n)
            .map(|i| {
                let t = i as f64 / n as f64;
                Row { x: vec![1.0, t], y: 2.0 - 3.0 * t + noise * rng.normal(), sd: noise }
            })
            .collect()
    }

    #[test]
    fn a_line_is_found_again() {
        let posterior = fit(&line(0.01, 30, 1), &[WIDE, WIDE]);
        assert!((posterior.mean(0) - 2.0).abs() < 0.02, "{posterior:?}");
        assert!((posterior.mean(1) + 3.0).abs() < 0.03, "{posterior:?}");
        assert!((posterior.noise_ratio() - 1.0).abs() < 0.4);
    }

    #[test]
    fn one_wild_reading_of_three_is_overruled() {
        let rows: Vec<Row> = [1.00, 1.01, 2.1].map(|y| Row { x: vec![1.0], y, sd: 0.02 }).to_vec();
        let posterior = fit(&rows, &[WIDE]);
        assert!((posterior.mean(0) - 1.005).abs() < 0.02, "{posterior:?}");
    }

    #[test]
    fn without_rows_the_belief_stands_and_rows_narrow_it() {
        let belief = Belief { mean: 0.5, sd: 0.2 };
        assert_eq!(fit(&[], &[belief]).belief(0), belief);
        let near = |n: usize| {
            let rows = vec![Row { x: vec![1.0], y: 0.7, sd: 0.2 }; n];
            fit(&rows, &[belief]).belief(0)
        };
        // One reading as sure as the belief: half way between them.
        assert!((near(1).mean - 0.6).abs() < 1e-9);
        assert!(near(4).sd < near(1).sd && near(1).sd < 0.2);
    }

    /// 90 % of the expectations' own intervals hold the truth, over many draws of the noise.
    #[test]
    fn widths_mean_what_they_say() {
        let covered = (0..300)
            .filter(|seed| {
                let posterior = fit(&line(0.05, 8, 100 + seed), &[WIDE, WIDE]);
                let (mean, variance) = posterior.at(&[1.0, 0.5]);
                let half = wattle_common::numerics::student::percentile_95(posterior.dof())
                    * variance.sqrt();
                (mean - 0.5).abs() <= half
            })
            .count();
        assert!((255..=295).contains(&covered), "{covered} of 300");
    }

    proptest! {
        #[test]
        fn no_rows_make_it_panic_or_lose_its_head(
            data in prop::collection::vec((-1e6f64..1e6, -1e6f64..1e6, 1e-3f64..1e3), 0..30)
        ) {
            let rows: Vec<Row> =
                data.iter().map(|(x, y, sd)| Row { x: vec![1.0, *x], y: *y, sd: *sd }).collect();
            let posterior = fit(&rows, &[WIDE, WIDE]);
            let (mean, variance) = posterior.at(&[1.0, 1.0]);
            prop_assert!(mean.is_finite() && variance.is_finite() && variance >= 0.0);
        }
    }
}
