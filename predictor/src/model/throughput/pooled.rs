//! Priors of the scaling parameters, pooled over the jobs of one GPU type.
//!
//! Each job contributes estimates without its own prior ([`Constants`]), so a parameter that its readings
//! do not determine has no weight. The spread between jobs is poorly known when few were seen, so it is
//! integrated out under a flat prior (Gelman, "Prior distributions for variance parameters in hierarchical
//! models", Bayesian Analysis 2006); the next job's prior has the resulting mean and standard deviation.
//! There is no tuning parameter.
//!
//! The error of the form itself is estimated from the same jobs' residuals.

use serde::{Deserialize, Serialize};

use super::form::{self, Network, WIDTH};
use crate::statistics::regression::Gaussian;

/// Number of pooled parameters: all but the job's own two levels.
pub const POOLED: usize = WIDTH - OWN;
/// Number of parameters of a job's own.
const OWN: usize = 2;

/// Priors without observations: round figures, wide enough for what is physically possible. A job's own:
/// a step mostly computes, within a factor of four. A doubling beyond four GPUs costs the mean of the two
/// doublings inside, where 2 (g-1)/g grows by 1 and by 0.5: the latency of a tree or a ring. Across nodes:
/// two cost as much as the constant part within a factor of three, because networks differ; three and more
/// cost as much as two. Exponents of growth lie between 0 (a ring's traffic for each GPU) and 1 (all GPUs
/// share one link). Overlap lies between 1 and 10 as in Pollux (OSDI'21), uniformly in its logarithm.
const PRIOR: [Gaussian; WIDTH] = [
    Gaussian { mean: -1.609, sd: 1.5 }, // ln 0.2
    Gaussian { mean: -0.288, sd: 1.5 }, // ln 0.75
    Gaussian { mean: -1.204, sd: 2.0 }, // ln 0.3
    Gaussian { mean: -0.288, sd: 0.4 }, // ln 0.75
    Gaussian { mean: 0.0, sd: 1.2 },
    Gaussian { mean: 0.0, sd: 0.5 },
    Gaussian { mean: 0.5, sd: 0.3 },
    Gaussian { mean: 0.5, sd: 0.3 },
    Gaussian { mean: 0.5, sd: 0.3 },
    Gaussian { mean: 1.151, sd: 0.665 }, // between ln 1 and ln 10
];
/// Number of spreads between jobs in the numerical integration.
const SPREADS: usize = 16;

/// Prior standard deviation of the form's error in ln time: near (inside one node and up to four GPUs) as
/// single readings repeat, beyond a tenth. Its weight is that of one job.
const FORM_PRIOR: [f64; 2] = [0.03, 0.1];

/// Largest root mean square error of ln time across nodes with which the simpler flat form is used.
pub const FLAT_MAX: f64 = 0.1;

/// Parameter estimates of one job without its prior.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Constants {
    /// In the order of the form's parameters, from the third on.
    pub values: [Gaussian; POOLED],
    /// Mean square error of ln time of the flat form across nodes, if seen there.
    pub flat_off: Option<f64>,
    /// Error of the form, near and beyond.
    #[serde(default)]
    pub off: [FormError; 2],
}

/// Residuals of a job's readings beyond their own noise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FormError {
    /// Mean square of logarithms; negative where the readings vary less than stated.
    pub square: f64,
    /// Number of readings.
    pub readings: u32,
}

impl Constants {
    /// Whether every number is valid.
    #[must_use]
    pub fn is_sane(&self) -> bool {
        self.values.iter().all(|v| v.mean.is_finite() && v.sd.is_finite() && v.sd > 0.0)
            && self.flat_off.is_none_or(|off| off.is_finite() && off >= 0.0)
            && self.off.iter().all(|off| off.square.is_finite())
    }
}

/// Priors pooled over jobs.
#[derive(Clone, Debug, PartialEq)]
pub struct Pooled {
    pub(super) priors: [Gaussian; WIDTH],
    pub(super) network: Network,
    /// Standard deviation of the form's error in ln time, near and beyond.
    pub(super) form: [f64; 2],
}

impl Pooled {
    /// The priors without observations.
    #[must_use]
    pub fn prior() -> Self {
        Self { priors: PRIOR, network: Network::Steep, form: FORM_PRIOR }
    }

    /// Priors from the jobs seen on one GPU type.
    #[must_use]
    pub fn fit<'a>(jobs: impl Iterator<Item = &'a Constants> + Clone) -> Self {
        let mut pooled = Self::prior();
        if jobs.clone().next().is_none() {
            return pooled;
        }
        for (i, prior) in pooled.priors.iter_mut().enumerate().skip(form::INSIDE + 1) {
            *prior = between(*prior, jobs.clone().map(|j| j.values[i - OWN]));
        }
        for (i, form) in pooled.form.iter_mut().enumerate() {
            *form = form_error(*form, jobs.clone().map(|j| j.off[i]));
        }
        let off: Vec<f64> = jobs.filter_map(|j| j.flat_off).collect();
        let flat = off.iter().filter(|off| **off <= FLAT_MAX * FLAT_MAX).count();
        if 2 * flat > off.len() {
            pooled.network = Network::Flat;
        }
        pooled
    }
}

/// Mean and standard deviation of the next job's parameter. The prior variance is divided evenly between
/// the spread of jobs and their mean; the spread is uniform from zero up.
fn between(prior: Gaussian, seen: impl Iterator<Item = Gaussian> + Clone) -> Gaussian {
    let half = 0.5 * prior.sd * prior.sd;
    let widest = (3.0 * half).sqrt();
    let one = |k: usize| {
        let spread = (widest * (k as f64 + 0.5) / SPREADS as f64).powi(2);
        let (mut precision, mut sum, mut ln_likely, mut squares) = (1.0 / half, 0.0, 0.0, 0.0);
        for stored in seen.clone() {
            let weight = 1.0 / (spread + stored.sd * stored.sd);
            let off = stored.mean - prior.mean;
            precision += weight;
            sum += weight * off;
            squares += weight * off * off;
            ln_likely += 0.5 * weight.ln();
        }
        ln_likely -= 0.5 * (precision.ln() + squares - sum * sum / precision);
        (ln_likely, sum / precision, 1.0 / precision + spread)
    };
    let tried: [(f64, f64, f64); SPREADS] = std::array::from_fn(one);
    let most = tried.iter().map(|t| t.0).fold(f64::NEG_INFINITY, f64::max);
    let (mut whole, mut first, mut second) = (0.0, 0.0, 0.0);
    for (ln_likely, mean, variance) in tried {
        let weight = (ln_likely - most).exp();
        whole += weight;
        first += weight * mean;
        second += weight * (variance + mean * mean);
    }
    let mean = first / whole;
    Gaussian { mean: prior.mean + mean, sd: (second / whole - mean * mean).sqrt() }
}

/// Standard deviation of the form's error: weighted mean over jobs and the prior. A job's mean square has
/// a relative variance of two over its readings, and jobs differ by as much as one reading.
fn form_error(prior: f64, seen: impl Iterator<Item = FormError>) -> f64 {
    let (mut whole, mut sum) = (1.0, prior * prior);
    for off in seen.filter(|off| off.readings > 0) {
        let n = f64::from(off.readings);
        let weight = n / (n + 2.0);
        whole += weight;
        sum += weight * off.square;
    }
    // Readings that vary less than stated do not make the form exact.
    (sum / whole).max(1e-4).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn constants(mean: f64, sd: f64, flat_off: Option<f64>) -> Constants {
        Constants {
            values: [Gaussian { mean, sd }; POOLED],
            flat_off,
            off: [FormError::default(); 2],
        }
    }

    #[test]
    fn uninformative_jobs_leave_the_prior() {
        let silent = constants(40.0, 1e3, None);
        let pooled = Pooled::fit([&silent, &silent].into_iter());
        for (p, b) in pooled.priors.iter().zip(PRIOR) {
            assert!((p.mean - b.mean).abs() < 0.01 && (p.sd - b.sd).abs() < 0.01, "{p:?} {b:?}");
        }
        assert_eq!(Pooled::fit(std::iter::empty()), Pooled::prior());
    }

    #[test]
    fn form_error_is_estimated_from_jobs() {
        let with = |square, readings| {
            let off = [FormError::default(), FormError { square, readings }];
            Constants { off, ..constants(0.0, 1e3, None) }
        };
        let form = |jobs: &[Constants]| Pooled::fit(jobs.iter()).form[1];
        assert!((form(&[]) - FORM_PRIOR[1]).abs() < 1e-12);
        assert!((form(&vec![with(0.04 * 0.04, 48); 30]) - 0.04).abs() < 0.005);
        // A single reading has less weight than a table of them.
        assert!(form(&[with(0.0, 1)]) > form(&[with(0.0, 48)]));
        assert!(form(&vec![with(-1.0, 48); 3]) > 0.0);
    }

    #[test]
    fn agreeing_jobs_narrow_the_prior() {
        let like = constants(0.6, 0.02, Some(0.001));
        let pooled = Pooled::fit([&like; 12].into_iter());
        let pair = pooled.priors[form::GROWTH_PAIR];
        assert!((pair.mean - 0.6).abs() < 0.01 && pair.sd < 0.1, "{pair:?}");
        assert_eq!(pooled.network, Network::Flat);
        // One contradicting job keeps the mean and widens the prior.
        let other = constants(0.1, 0.02, Some(0.001));
        let wider = Pooled::fit([&like; 12].into_iter().chain([&other]));
        assert!(wider.priors[form::GROWTH_PAIR].sd > 1.5 * pair.sd);
        let steep = constants(0.6, 0.02, Some(0.2));
        assert_eq!(Pooled::fit([&steep; 3].into_iter()).network, Network::Steep);
    }
}
