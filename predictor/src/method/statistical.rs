//! Elastic-net regression on engineered features, over the readings of all jobs.
//!
//! For a quantity y (ln of steps/s, ln of watts) of job i at a place with features x:
//!
//! ```text
//! y - crude formula = a_i + x b
//! ```
//!
//! b is shared by all jobs on a GPU type: linfa's elastic net (half lasso, half ridge) on columns
//! scaled to unit root mean square, with the penalty among [`PENALTIES`] of least cross-validation
//! loss over jobs. The first fit uses deviations from each job's mean, so that levels of jobs do not
//! bias b. Then the intercepts a_i are shrunk towards the mean of their class and b is fitted again,
//! so that jobs of one class share information even with one configuration each.
//!
//! Intervals are conformal quantiles of cross-validation scores: a reading of a left-out job is
//! predicted from another reading of the job, and the error divided by the prior standard deviation
//! of the crude formula ([`Place::difference`]), for each combination of what differs. Prior scores
//! ([`PRIOR_SCORES`]) are added, which limits the influence of few measured ones.
//!
//! The method has no model of the hardware beyond the crude formula.

use std::collections::BTreeMap;

use linfa::DatasetBase;
use linfa::traits::Fit;
use linfa_elasticnet::ElasticNet;
use ndarray::{Array1, Array2};
use wattle_common::id::WorkloadId;
use wattle_common::numerics::mean;
use wattle_common::numerics::statistics::conformal_index;

use crate::method::crude::{Place, Quantity, Traits};
use crate::method::reading::{Reading, Readings, SeenJob};
use crate::method::{LogPrediction, log_normal};
use crate::statistics::interval::LogNormal;

/// Most rows of one fit; beyond, jobs are thinned evenly.
pub const ROWS_MAX: usize = 1_024;
/// Number of features.
const WIDTH: usize = 20;
/// Combinations of what differs between two places.
const MASKS: usize = 8;
/// Most scores of each combination.
const SCORES_MAX: usize = 512;
/// Candidate penalties, for residuals in natural logarithms.
const PENALTIES: [f64; 3] = [3e-4, 3e-3, 3e-2];
/// Penalty with too few jobs for cross-validation.
const PENALTY: f64 = 3e-3;
/// Number of folds, and of jobs with several readings from which cross-validation is used.
const FOLD_JOBS: usize = 3;
/// Share of the lasso penalty. Linfa's coordinate descent does not end for a pure ridge penalty.
const L1_RATIO: f64 = 0.5;
/// Iterations of shrinking intercepts and fitting.
const ROUNDS: usize = 2;
/// Least standard deviation between intercepts of one class.
const CLASS_SD: f64 = 0.03;
/// Half width of the central 90 % interval of a standard normal distribution.
const Z95: f64 = 1.6449;
/// Prior scores: quantiles of the absolute value of a standard normal variable at 1/16, 3/16, ... 15/16.
const PRIOR_SCORES: [f64; 8] = [0.078, 0.237, 0.402, 0.579, 0.776, 1.010, 1.318, 1.863];

type Features = [f64; WIDTH];

/// The engineered features of a place.
fn features(place: &Place, traits: &Traits) -> Features {
    let Place {
        ln_gpus: g,
        ln_nodes: n,
        cap_excess,
        clock_cut,
        neighbours,
        neighbours_busy: others_busy,
        ..
    } = *place;
    let apart = if n > 0.0 { 1.0 } else { 0.0 };
    [
        g,
        g * g,
        apart,
        n,
        place.ln_batch,
        place.ln_batch * g,
        place.ln_cap,
        cap_excess,
        cap_excess * cap_excess,
        cap_excess * traits.busy,
        clock_cut,
        clock_cut * clock_cut,
        clock_cut * traits.busy,
        neighbours,
        others_busy,
        place.busy_excess,
        place.busy_excess * place.busy_excess,
        traits.memory_busy * others_busy,
        neighbours * cap_excess,
        neighbours * g,
    ]
}

fn dot(a: &Features, b: &Features) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// One reading of one job.
struct Row {
    job: usize,
    x: Features,
    y: f64,
    place: Place,
}

/// One quantity's fit.
#[derive(Clone, Debug, PartialEq)]
struct Net {
    slopes: Features,
    /// For each combination of what differs: the 90 % quantile of scores.
    quantiles: [f64; MASKS],
    rows: usize,
}

impl Default for Net {
    fn default() -> Self {
        Self { slopes: [0.0; WIDTH], quantiles: [quantile(&[]); MASKS], rows: 0 }
    }
}

/// Fits of both quantities for a GPU type; by default the crude formula.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fitted {
    rate: Net,
    power: Net,
}

impl Fitted {
    /// Fits the readings of `jobs`.
    #[must_use]
    pub fn fit(jobs: &[&SeenJob]) -> Self {
        Self { rate: Net::fit(jobs, Quantity::Rate), power: Net::fit(jobs, Quantity::Power) }
    }

    /// Number of readings used.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rate.rows.max(self.power.rows)
    }

    fn of(&self, what: Quantity) -> &Net {
        match what {
            Quantity::Rate => &self.rate,
            Quantity::Power => &self.power,
        }
    }
}

impl Net {
    fn fit(jobs: &[&SeenJob], what: Quantity) -> Self {
        let all: usize = jobs.iter().map(|j| j.readings.len()).sum();
        let step = all.div_ceil(ROWS_MAX).max(1);
        // Jobs are thinned rather than readings, because b is fitted to differences within jobs.
        let rows: Vec<Row> = jobs
            .iter()
            .enumerate()
            .filter(|(i, _)| i % step == 0)
            .flat_map(|(job, seen)| {
                seen.readings.iter().filter_map(move |r| {
                    let y = r.residual(what).filter(|y| y.is_finite())?;
                    Some(Row { job, x: features(&r.place, &seen.traits), y, place: r.place })
                })
            })
            .take(ROWS_MAX)
            .collect();
        if rows.len() < 3 {
            return Self { rows: rows.len(), ..Self::default() };
        }
        let several = jobs.iter().filter(|j| j.readings.len() > 1).count();
        let (mut penalty, mut scores) = (PENALTY, Vec::new());
        if several >= FOLD_JOBS {
            let candidates = PENALTIES.map(|p| (p, cross_validation_scores(&rows, p, what)));
            let loss = |scores: &[(usize, f64)]| -> f64 {
                // Absolute and clipped, so that one outlier does not select the penalty.
                scores.iter().map(|(_, s)| s.abs().min(4.0)).sum()
            };
            let best = candidates.into_iter().min_by(|a, b| loss(&a.1).total_cmp(&loss(&b.1)));
            if let Some((p, s)) = best {
                (penalty, scores) = (p, s);
            }
        }
        let slopes = shrunk(&rows, jobs, penalty);
        let quantiles = std::array::from_fn(|mask| {
            let seen = scores.iter().filter(|(m, _)| *m == mask).map(|(_, s)| *s);
            quantile(&seen.take(SCORES_MAX).collect::<Vec<f64>>())
        });
        Self { slopes, quantiles, rows: rows.len() }
    }

    fn at(&self, place: &Place, traits: &Traits, what: Quantity) -> f64 {
        place.crude(what) + dot(&features(place, traits), &self.slopes)
    }

    /// Variance of the difference between two places, calibrated by the 90 % quantile of scores.
    fn variance(&self, from: &Place, to: &Place, what: Quantity) -> f64 {
        let (variance, mask) = from.difference(to, what);
        variance * (self.quantiles[mask] / Z95).powi(2)
    }
}

/// Conformal 90 % quantile of the absolute scores and [`PRIOR_SCORES`].
fn quantile(seen: &[f64]) -> f64 {
    let mut all: Vec<f64> = seen.iter().map(|s| s.abs()).chain(PRIOR_SCORES).collect();
    all.sort_by(f64::total_cmp);
    conformal_index(all.len(), 0.9).map_or(0.2, |rank| all[rank].max(0.2))
}

/// Slopes of the elastic net, with columns scaled to unit root mean square.
fn net(rows: &[(Features, f64)], penalty: f64) -> Features {
    let mut scale = [0.0; WIDTH];
    for (j, scale) in scale.iter_mut().enumerate() {
        let squares: f64 = rows.iter().map(|(x, _)| x[j] * x[j]).sum();
        *scale = (squares / rows.len().max(1) as f64).sqrt();
    }
    let mut records = Array2::<f64>::zeros((rows.len(), WIDTH));
    for (i, (x, _)) in rows.iter().enumerate() {
        for (j, x) in x.iter().enumerate() {
            // A constant column has no information.
            records[[i, j]] = if scale[j] > 1e-6 { x / scale[j] } else { 0.0 };
        }
    }
    let targets = Array1::from_iter(rows.iter().map(|(_, y)| *y));
    let model = ElasticNet::params()
        .penalty(penalty)
        .l1_ratio(L1_RATIO)
        .with_intercept(false)
        .tolerance(1e-4)
        .max_iterations(200)
        .fit(&DatasetBase::new(records, targets));
    let mut slopes = [0.0; WIDTH];
    if let Ok(model) = model {
        for (j, slope) in model.hyperplane().iter().enumerate() {
            if scale[j] > 1e-6 && slope.is_finite() {
                slopes[j] = slope / scale[j];
            }
        }
    }
    slopes
}

/// Rows by job.
fn by_job<'a>(rows: impl Iterator<Item = &'a Row>) -> BTreeMap<usize, Vec<&'a Row>> {
    let mut jobs: BTreeMap<usize, Vec<&Row>> = BTreeMap::new();
    for row in rows {
        jobs.entry(row.job).or_default().push(row);
    }
    jobs
}

/// Slopes fitted to deviations from each job's mean.
fn within<'a>(rows: impl Iterator<Item = &'a Row>, penalty: f64) -> Features {
    let mut centred = Vec::new();
    for rows in by_job(rows).values().filter(|rows| rows.len() > 1) {
        let n = rows.len() as f64;
        let y = rows.iter().map(|r| r.y).sum::<f64>() / n;
        let x: Features = std::array::from_fn(|j| rows.iter().map(|r| r.x[j]).sum::<f64>() / n);
        centred
            .extend(rows.iter().map(|r| (std::array::from_fn(|j| r.x[j] - x[j]), clip(r.y - y))));
    }
    if centred.is_empty() { [0.0; WIDTH] } else { net(&centred, penalty) }
}

/// Residual limited to a factor of e, so that outliers have bounded influence.
fn clip(y: f64) -> f64 {
    y.clamp(-1.0, 1.0)
}

/// Slopes fitted with intercepts shrunk towards the mean of their class.
fn shrunk(rows: &[Row], jobs: &[&SeenJob], penalty: f64) -> Features {
    let mut slopes = within(rows.iter(), penalty);
    for _ in 0..ROUNDS {
        // Mean residual and number of readings by job, and the pooled scatter.
        let (mut means, mut squares, mut freedom) = (BTreeMap::new(), 0.0, 0.0);
        for (job, rows) in by_job(rows.iter()) {
            let residuals: Vec<f64> = rows.iter().map(|r| r.y - dot(&r.x, &slopes)).collect();
            let n = residuals.len() as f64;
            let mean = residuals.iter().sum::<f64>() / n;
            squares += residuals.iter().map(|r| clip(r - mean).powi(2)).sum::<f64>();
            freedom += n - 1.0;
            means.insert(job, (mean, n));
        }
        let noise = if freedom > 0.0 { (squares / freedom).max(4e-4) } else { 0.01 };
        let mut classes: BTreeMap<&WorkloadId, Vec<f64>> = BTreeMap::new();
        for (job, (mean, _)) in &means {
            if let Some(class) = &jobs[*job].class {
                classes.entry(class).or_default().push(*mean);
            }
        }
        let intercept = |job: usize| {
            let (mean, n) = means[&job];
            let peers = jobs[job].class.as_ref().and_then(|c| classes.get(c));
            let Some(peers) = peers.filter(|peers| peers.len() > 1) else { return mean };
            let count = peers.len() as f64;
            let middle = peers.iter().sum::<f64>() / count;
            let spread = peers.iter().map(|m| (m - middle).powi(2)).sum::<f64>() / (count - 1.0);
            let between = (spread - noise / n).max(CLASS_SD * CLASS_SD);
            middle + (mean - middle) * between / (between + noise / n)
        };
        let centred: Vec<(Features, f64)> =
            rows.iter().map(|r| (r.x, clip(r.y - intercept(r.job)))).collect();
        slopes = net(&centred, penalty);
    }
    slopes
}

/// Scores of left-out jobs, for each pair of readings of a job: the mask of what differs, and the
/// error in prior standard deviations of the crude formula.
fn cross_validation_scores(rows: &[Row], penalty: f64, what: Quantity) -> Vec<(usize, f64)> {
    let mut order: Vec<usize> = rows.iter().map(|r| r.job).collect();
    order.dedup();
    let fold = |job: usize| order.binary_search(&job).unwrap_or(0) % FOLD_JOBS;
    let mut scores = Vec::new();
    for part in 0..FOLD_JOBS {
        let slopes = within(rows.iter().filter(|r| fold(r.job) != part), penalty);
        for rows in by_job(rows.iter().filter(|r| fold(r.job) == part)).values() {
            for (i, from) in rows.iter().enumerate() {
                for to in rows.iter().skip(i + 1) {
                    let error = (to.y - dot(&to.x, &slopes)) - (from.y - dot(&from.x, &slopes));
                    let (variance, mask) = from.place.difference(&to.place, what);
                    scores.push((mask, error / variance.sqrt()));
                }
            }
        }
    }
    scores
}

/// Predictions for one job.
#[derive(Debug)]
pub struct FittedJob<'a> {
    fitted: &'a Fitted,
    traits: &'a Traits,
    inferred: bool,
    rate: Anchors,
    power: Anchors,
}

/// Residuals of the job's own readings, or the expected level and variance of a job without readings.
#[derive(Debug, Default)]
struct Anchors {
    own: Vec<(Place, f64)>,
    unseen: Option<(f64, f64)>,
}

impl<'a> FittedJob<'a> {
    /// Prepares predictions for the job with the readings `seen`.
    #[must_use]
    pub fn new(fitted: &'a Fitted, readings: &Readings, gpu_type: &str, seen: &'a SeenJob) -> Self {
        let anchors = |what: Quantity| {
            let net = fitted.of(what);
            let residuals = |of: &SeenJob| -> Vec<(Place, f64)> {
                let one = |r: &Reading| {
                    Some((r.place, r.seen(what)? - net.at(&r.place, &of.traits, what)))
                };
                of.readings.iter().filter_map(one).collect()
            };
            let own = residuals(seen);
            let level = |of: &SeenJob| mean(residuals(of).into_iter().map(|(_, y)| y));
            let unseen = if own.is_empty() {
                readings.unseen(gpu_type, seen.class.as_ref(), what, level)
            } else {
                None
            };
            Anchors { own, unseen }
        };
        Self {
            fitted,
            traits: &seen.traits,
            inferred: seen.inferred && !seen.readings.is_empty(),
            rate: anchors(Quantity::Rate),
            power: anchors(Quantity::Power),
        }
    }

    /// The job's level at `place` by its anchors, and its variance.
    fn level(&self, place: &Place, reference: &Place, what: Quantity) -> Option<(f64, f64)> {
        let (net, anchors) = match what {
            Quantity::Rate => (&self.fitted.rate, &self.rate),
            Quantity::Power => (&self.fitted.power, &self.power),
        };
        if let Some((mean, variance)) = anchors.unseen {
            return Some((mean, variance + net.variance(reference, place, what)));
        }
        let (mut precision, mut sum, mut least) = (0.0, 0.0, f64::INFINITY);
        for (from, residual) in &anchors.own {
            let variance = net.variance(from, place, what);
            // Squared, because the error of a distant reading is bias rather than noise.
            let weight = 1.0 / (variance * variance);
            precision += weight;
            sum += residual * weight;
            least = least.min(variance);
        }
        // Errors of several readings are correlated, so the variance is that of the nearest.
        (precision > 0.0).then(|| (sum / precision, least))
    }

    /// Prediction at `place`; `reference` is the same GPUs without co-tenants at the default setting.
    #[must_use]
    pub fn predict(&self, place: &Place, reference: &Place) -> LogPrediction {
        let at = |place: &Place, what: Quantity| {
            let (level, variance) = self.level(place, reference, what)?;
            Some((level + self.fitted.of(what).at(place, self.traits, what), variance))
        };
        let (rate, exclusive) = (at(place, Quantity::Rate), at(reference, Quantity::Rate));
        let net = &self.fitted.rate;
        let direct = net.variance(reference, place, Quantity::Rate);
        let relative = match (rate, exclusive) {
            _ if place.is_reference() => (0.0, 0.0),
            (Some(rate), Some(exclusive)) => {
                (rate.0 - exclusive.0, direct.min(rate.1 + exclusive.1))
            }
            _ => {
                let f = |p: &Place| net.at(p, self.traits, Quantity::Rate);
                (f(place) - f(reference), direct)
            }
        };
        let most = exclusive.map_or(f64::INFINITY, |exclusive| exclusive.0);
        let rate = rate.filter(|_| !self.inferred).map(|(mean, v)| (mean.min(most), v));
        // Power is predicted even without a level.
        let power = at(place, Quantity::Power).unwrap_or((place.crude(Quantity::Power), 0.5));
        LogPrediction {
            rate: rate.map(log_normal),
            relative: LogNormal { dof: 1e6, ..log_normal(relative) },
            power: log_normal(power),
        }
    }
}
