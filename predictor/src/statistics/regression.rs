//! Weighted Bayesian least squares, robust to outliers, solved through linfa.
//!
//! With rows `y = x' b + e`, `e ~ N(0, sd^2)`, and independent priors `b_i ~ N(mean_i, sd_i^2)`, the
//! posterior mean is an ordinary least-squares solution: each row is divided by its standard
//! deviation, and each prior becomes one more row, `b_i = mean_i` divided by `sd_i`. linfa's ordinary
//! least squares has neither weights nor a ridge penalty, and its elastic net does not converge for
//! a pure ridge; the additional rows give both exactly, and keep the system of full rank.
//!
//! Outliers are downweighted by iteratively reweighted least squares: Huber's weights first, which
//! approach a median, then Tukey's biweight, which excludes gross outliers. These iterations solve
//! the normal equations; the returned fit under the final weights is linfa's.

use std::ops::Range;

use linfa::DatasetBase;
use linfa::traits::Fit;
use linfa_linear::LinearRegression;
use ndarray::{Array1, Array2};
use serde::{Deserialize, Serialize};
use wattle_common::numerics::{Cholesky, cholesky, gauss_jordan, median_high};

/// Largest accepted number of parameters.
pub const PARAMETERS_MAX: usize = 32;

/// Iterations with Huber's and with Tukey's weights. A gross outlier among three readings needs six
/// Huber iterations until the median dominates; the others are a margin.
const HUBER_ROUNDS: usize = 8;
const TUKEY_ROUNDS: usize = 3;
/// Tuning constants of Huber's and Tukey's weights, in standard deviations: 95 % efficiency under
/// normal noise.
const HUBER_K: f64 = 1.345;
const TUKEY_C: f64 = 4.685;
/// Weight of the assumed noise, as a number of readings: with fewer readings the rows' own standard
/// deviations set the residual variance, with more the residuals do.
const NOISE_PRIOR_DOF: f64 = 4.0;

/// One equation: the inner product of the parameters and `x` is `y`, with standard deviation `sd`.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Features.
    pub x: Vec<f64>,
    /// Observed value.
    pub y: f64,
    /// Standard deviation of the observation, greater than zero.
    pub sd: f64,
}

/// Normal distribution of one quantity: a prior, or an estimate with its standard deviation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gaussian {
    /// Expected value.
    pub mean: f64,
    /// Standard deviation, greater than zero.
    pub sd: f64,
}

/// Normal posterior of the parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Posterior {
    mean: Vec<f64>,
    /// Covariance for a residual variance of 1.
    covariance: Vec<Vec<f64>>,
    /// Residual variance relative to the rows' stated variances.
    noise: f64,
    dof: f64,
}

impl Posterior {
    /// The priors, without any row.
    #[must_use]
    pub fn from_priors(priors: &[Gaussian]) -> Self {
        let mut covariance = vec![vec![0.0; priors.len()]; priors.len()];
        for (i, prior) in priors.iter().enumerate() {
            covariance[i][i] = prior.sd * prior.sd;
        }
        Self {
            mean: priors.iter().map(|b| b.mean).collect(),
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

    /// Marginal distribution of parameter `i`, as a prior for another fit.
    #[must_use]
    pub fn marginal(&self, i: usize) -> Gaussian {
        let variance = self.covariance[i][i] * self.noise;
        Gaussian { mean: self.mean[i], sd: variance.max(1e-12).sqrt() }
    }

    /// Marginal distribution of the parameters in `range`.
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

    /// Expected value at `x`, and its variance without the noise of a reading.
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

    /// Degrees of freedom of the residual variance.
    #[must_use]
    pub fn dof(&self) -> f64 {
        self.dof
    }

    /// Standard deviation of the residuals relative to the rows' stated standard deviations.
    #[must_use]
    pub fn noise_ratio(&self) -> f64 {
        self.noise.sqrt()
    }
}

/// Fits `rows` under `priors`, one for each parameter. Rows that are not finite are left out.
///
/// # Panics
/// If a row does not have one feature for each prior, or there are more than [`PARAMETERS_MAX`]
/// priors.
#[must_use]
pub fn fit(rows: &[Row], priors: &[Gaussian]) -> Posterior {
    assert!(priors.len() <= PARAMETERS_MAX, "{} parameters", priors.len());
    let rows: Vec<&Row> =
        rows.iter().filter(|r| r.y.is_finite() && r.sd.is_finite() && r.sd > 0.0).collect();
    if rows.is_empty() || priors.is_empty() {
        return Posterior::from_priors(priors);
    }
    let mut weights = vec![1.0; rows.len()];
    let mut residuals = standardised(&rows, &step(&rows, &weights, priors));
    if residuals.iter().any(|u| u.abs() > 2.0 * HUBER_K) {
        for _ in 0..HUBER_ROUNDS {
            for (w, u) in weights.iter_mut().zip(&residuals) {
                *w = if u.abs() <= HUBER_K { 1.0 } else { HUBER_K / u.abs() };
            }
            residuals = standardised(&rows, &step(&rows, &weights, priors));
        }
        for _ in 0..TUKEY_ROUNDS {
            // Never below the stated deviations, so that data without outliers keeps full weight.
            let scale =
                (1.4826 * median_high(residuals.iter().map(|u| u.abs())).unwrap_or(0.0)).max(1.0);
            for (w, u) in weights.iter_mut().zip(&residuals) {
                let reach = u / (TUKEY_C * scale);
                *w = if reach.abs() < 1.0 { (1.0 - reach * reach).powi(2) } else { 0.0 };
            }
            residuals = standardised(&rows, &step(&rows, &weights, priors));
        }
    }
    let mean = solve(&rows, &weights, priors);
    let residuals = standardised(&rows, &mean);
    let counted: f64 = weights.iter().sum();
    let squares: f64 = weights.iter().zip(&residuals).map(|(w, u)| w * u * u).sum();
    let dof = NOISE_PRIOR_DOF + counted;
    Posterior {
        covariance: covariance(&rows, &weights, priors),
        mean,
        noise: (NOISE_PRIOR_DOF + squares) / dof,
        dof,
    }
}

/// Least squares of `rows` over `width` parameters: the parameters, and the sum of
/// squared standardised residuals. Every row has full weight; outliers are not downweighted.
///
/// # Panics
/// If a row does not have `width` features.
#[must_use]
pub fn least_squares(rows: &[Row], width: usize) -> (Vec<f64>, f64) {
    // Wide enough to matter only where the rows leave a parameter undetermined.
    let priors = vec![Gaussian { mean: 0.0, sd: 100.0 }; width];
    let rows: Vec<&Row> = rows.iter().collect();
    let found = solve(&rows, &vec![1.0; rows.len()], &priors);
    let squares = standardised(&rows, &found).iter().map(|u| u * u).sum();
    (found, squares)
}

/// Maximum a posteriori estimate with every row at full weight: one iteration of a nonlinear fit.
///
/// # Panics
/// As [`fit()`].
#[must_use]
pub fn map_estimate(rows: &[Row], priors: &[Gaussian]) -> Vec<f64> {
    assert!(priors.len() <= PARAMETERS_MAX, "{} parameters", priors.len());
    let rows: Vec<&Row> = rows.iter().collect();
    step(&rows, &vec![1.0; rows.len()], priors)
}

/// Residuals in units of each row's standard deviation.
fn standardised(rows: &[&Row], mean: &[f64]) -> Vec<f64> {
    rows.iter()
        .map(|r| (r.y - r.x.iter().zip(mean).map(|(a, b)| a * b).sum::<f64>()) / r.sd)
        .collect()
}

/// Posterior mean by linfa: ordinary least squares of the scaled rows and the priors as rows.
fn solve(rows: &[&Row], weights: &[f64], priors: &[Gaussian]) -> Vec<f64> {
    let width = priors.len();
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
    for (j, prior) in priors.iter().enumerate() {
        records[[rows.len() + j, j]] = 1.0 / prior.sd;
        targets[rows.len() + j] = prior.mean / prior.sd;
    }
    let data = DatasetBase::new(records, targets);
    match LinearRegression::new().with_intercept(false).fit(&data) {
        Ok(model) => model.params().to_vec(),
        // Only a system outside floating-point range fails; the prior means remain.
        Err(_) => priors.iter().map(|b| b.mean).collect(),
    }
}

/// Posterior mean by the normal equations and Cholesky: a dozen times cheaper than [`solve`] and
/// accurate to about eight digits, enough for reweighting and for the steps of a nonlinear fit.
fn step(rows: &[&Row], weights: &[f64], priors: &[Gaussian]) -> Vec<f64> {
    let n = priors.len();
    let mut information = vec![0.0; cholesky::row_start(n)];
    let mut y: Vec<f64> = Vec::with_capacity(n);
    for (i, prior) in priors.iter().enumerate() {
        let scale = 1.0 / (prior.sd * prior.sd);
        information[cholesky::row_start(i) + i] = scale;
        y.push(prior.mean * scale);
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
        return solve(rows, weights, priors);
    };
    factor.solve(&mut y);
    y
}

/// Posterior covariance: the inverse of the information matrix.
fn covariance(rows: &[&Row], weights: &[f64], priors: &[Gaussian]) -> Vec<Vec<f64>> {
    let n = priors.len();
    let mut left = vec![vec![0.0; n]; n];
    for (row, weight) in rows.iter().zip(weights) {
        let scale = weight / (row.sd * row.sd);
        for (line, a) in left.iter_mut().zip(&row.x).filter(|(_, a)| **a != 0.0) {
            for (cell, b) in line.iter_mut().zip(&row.x) {
                *cell += a * b * scale;
            }
        }
    }
    for (i, prior) in priors.iter().enumerate() {
        left[i][i] += 1.0 / (prior.sd * prior.sd);
    }
    gauss_jordan::inverse(left).unwrap_or_else(|| Posterior::from_priors(priors).covariance)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wattle_common::rng::Stream;

    const WIDE: Gaussian = Gaussian { mean: 0.0, sd: 100.0 };

    #[test]
    fn normal_equations_agree_with_linfa() {
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
            let priors = vec![Gaussian { mean: 0.3, sd: 3.0 }; width];
            let (quick, plain) = (step(&rows, &weights, &priors), solve(&rows, &weights, &priors));
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
    fn line_is_recovered() {
        let posterior = fit(&line(0.01, 30, 1), &[WIDE, WIDE]);
        assert!((posterior.mean(0) - 2.0).abs() < 0.02, "{posterior:?}");
        assert!((posterior.mean(1) + 3.0).abs() < 0.03, "{posterior:?}");
        assert!((posterior.noise_ratio() - 1.0).abs() < 0.4);
    }

    #[test]
    fn one_outlier_among_three_readings_is_rejected() {
        let rows: Vec<Row> = [1.00, 1.01, 2.1].map(|y| Row { x: vec![1.0], y, sd: 0.02 }).to_vec();
        let posterior = fit(&rows, &[WIDE]);
        assert!((posterior.mean(0) - 1.005).abs() < 0.02, "{posterior:?}");
    }

    #[test]
    fn prior_remains_without_rows_and_rows_narrow_it() {
        let prior = Gaussian { mean: 0.5, sd: 0.2 };
        assert_eq!(fit(&[], &[prior]).marginal(0), prior);
        let near = |n: usize| {
            let rows = vec![Row { x: vec![1.0], y: 0.7, sd: 0.2 }; n];
            fit(&rows, &[prior]).marginal(0)
        };
        // One reading as precise as the prior: the mean of both.
        assert!((near(1).mean - 0.6).abs() < 1e-9);
        assert!(near(4).sd < near(1).sd && near(1).sd < 0.2);
    }

    /// 90 % of the intervals of the expectation contain the truth, over many realisations of noise.
    #[test]
    fn intervals_have_their_nominal_coverage() {
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
        fn any_finite_rows_give_a_finite_posterior(
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
