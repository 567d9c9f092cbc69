//! Purely statistical: an elastic net on engineered features, over the readings of all jobs.
//!
//! For a quantity y (ln of steps a second, ln of watts) of job i at a place with features x:
//!
//! ```text
//! y - crude formula = a_i + x b
//! ```
//!
//! b is shared by all jobs on a kind of card: linfa's elastic net (half lasso, half ridge) on
//! columns scaled to unit size, its penalty chosen among [`PENALTIES`] by leaving jobs out of the
//! training readings themselves. The first fit takes each job's mean off both sides, so that no
//! job's level bends b; then the intercepts a_i are shrunk towards their class's mean and b is
//! fitted again, so that jobs of one class teach each other even from one configuration each.
//!
//! Intervals are quantiles: readings of jobs left out, predicted from another reading of the same
//! job, scored in units of what the crude formula may be wrong by ([`Place::reach`]), for each
//! combination of what differs. Believed scores stand among them, so that few seen ones neither
//! promise nor forbid much.
//!
//! It knows nothing of hardware beyond the crude formula, and does not try to.

use std::collections::BTreeMap;

use linfa::DatasetBase;
use linfa::traits::Fit;
use linfa_elasticnet::ElasticNet;
use ndarray::{Array1, Array2};
use wattle_common::id::WorkloadId;

use crate::method::crude::{Place, Quantity, Traits};
use crate::method::reading::{Readings, SeenJob};
use crate::method::{Answer, log_normal};
use crate::statistics::interval::LogNormal;

/// Rows of one fit at most; of more, every so manieth is taken.
pub const ROWS_MAX: usize = 1_024;
/// Features.
const WIDTH: usize = 20;
/// Combinations of what differs between two places.
const MASKS: usize = 8;
/// Scores kept of each combination.
const SCORES_MAX: usize = 512;
/// The penalties that are tried, for residuals in natural logarithms.
const PENALTIES: [f64; 3] = [3e-4, 3e-3, 3e-2];
/// The penalty where too few jobs are there to be left out.
const PENALTY: f64 = 3e-3;
/// Jobs with several readings from which on jobs are left out, and into how many parts.
const FOLD_JOBS: usize = 3;
/// Not a pure ridge: linfa's coordinate descent never ends there.
const L1_RATIO: f64 = 0.5;
/// Rounds of shrinking intercepts and fitting again.
const ROUNDS: usize = 2;
/// Intercepts of one class are believed to differ by no less than this.
const CLASS_SD: f64 = 0.03;
/// Half a 90 % interval of a normal distribution, in deviations.
const Z95: f64 = 1.6449;
/// The sizes of eight draws from a normal distribution, at the middles of eight equal parts.
const BELIEVED: [f64; 8] = [0.078, 0.237, 0.402, 0.579, 0.776, 1.010, 1.318, 1.863];

type Features = [f64; WIDTH];

/// The engineered features of a place.
fn features(place: &Place, traits: &Traits) -> Features {
    let Place { ln_gpus: g, ln_nodes: n, bite, down, neighbours, beside_busy: beside, .. } = *place;
    let apart = if n > 0.0 { 1.0 } else { 0.0 };
    [
        g,
        g * g,
        apart,
        n,
        place.ln_batch,
        place.ln_batch * g,
        place.ln_cap,
        bite,
        bite * bite,
        bite * traits.busy,
        down,
        down * down,
        down * traits.busy,
        neighbours,
        beside,
        place.over,
        place.over * place.over,
        traits.memory_busy * beside,
        neighbours * bite,
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
    /// For each combination of what differs: the score that 90 % stay below.
    quantiles: [f64; MASKS],
    rows: usize,
}

impl Default for Net {
    fn default() -> Self {
        Self { slopes: [0.0; WIDTH], quantiles: [quantile(&[]); MASKS], rows: 0 }
    }
}

/// Both quantities' fits for a kind of card. The default knows nothing and answers with the crude
/// formula.
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

    /// Readings it rests on.
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
        // Whole jobs are taken, because it is their differences that teach.
        let rows: Vec<Row> = jobs
            .iter()
            .enumerate()
            .filter(|(i, _)| i % step == 0)
            .flat_map(|(job, seen)| {
                seen.readings.iter().filter_map(move |r| {
                    let y = r.left(what).filter(|y| y.is_finite())?;
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
            let tried = PENALTIES.map(|p| (p, left_out(&rows, p, what)));
            let loss = |scores: &[(usize, f64)]| -> f64 {
                // Large misses count singly: one wild reading must not choose the penalty.
                scores.iter().map(|(_, s)| s.abs().min(4.0)).sum()
            };
            let best = tried.into_iter().min_by(|a, b| loss(&a.1).total_cmp(&loss(&b.1)));
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

    /// Half a 90 % interval as a deviation, of the difference between two places.
    fn variance(&self, from: &Place, to: &Place, what: Quantity) -> f64 {
        let (variance, mask) = from.reach(to, what);
        variance * (self.quantiles[mask] / Z95).powi(2)
    }
}

/// The score that 90 % of later ones stay below: the believed ones among those seen, at conformal
/// prediction's rank.
fn quantile(seen: &[f64]) -> f64 {
    let mut all: Vec<f64> = seen.iter().map(|s| s.abs()).chain(BELIEVED).collect();
    all.sort_by(f64::total_cmp);
    let rank = (0.9 * (all.len() + 1) as f64).ceil() as usize;
    all[rank.clamp(1, all.len()) - 1].max(0.2)
}

/// Columns scaled to unit size, through linfa.
fn net(rows: &[(Features, f64)], penalty: f64) -> Features {
    let mut scale = [0.0; WIDTH];
    for (j, scale) in scale.iter_mut().enumerate() {
        let squares: f64 = rows.iter().map(|(x, _)| x[j] * x[j]).sum();
        *scale = (squares / rows.len().max(1) as f64).sqrt();
    }
    let mut records = Array2::<f64>::zeros((rows.len(), WIDTH));
    for (i, (x, _)) in rows.iter().enumerate() {
        for (j, x) in x.iter().enumerate() {
            // A column that never moves teaches nothing.
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

/// Readings of each job.
fn by_job<'a>(rows: impl Iterator<Item = &'a Row>) -> BTreeMap<usize, Vec<&'a Row>> {
    let mut jobs: BTreeMap<usize, Vec<&Row>> = BTreeMap::new();
    for row in rows {
        jobs.entry(row.job).or_default().push(row);
    }
    jobs
}

/// A fit to differences within jobs alone.
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

/// A residual of a factor of e is a wild reading, and counts as one that is just as far.
fn clip(y: f64) -> f64 {
    y.clamp(-1.0, 1.0)
}

/// The fit with intercepts shrunk towards their class.
fn shrunk(rows: &[Row], jobs: &[&SeenJob], penalty: f64) -> Features {
    let mut slopes = within(rows.iter(), penalty);
    for _ in 0..ROUNDS {
        // Each job's mean residual, how many readings it rests on, and their scatter.
        let (mut means, mut squares, mut freedom) = (BTreeMap::new(), 0.0, 0.0);
        for (job, rows) in by_job(rows.iter()) {
            let left: Vec<f64> = rows.iter().map(|r| r.y - dot(&r.x, &slopes)).collect();
            let n = left.len() as f64;
            let mean = left.iter().sum::<f64>() / n;
            squares += left.iter().map(|l| clip(l - mean).powi(2)).sum::<f64>();
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
            let kin = jobs[job].class.as_ref().and_then(|c| classes.get(c));
            let Some(kin) = kin.filter(|kin| kin.len() > 1) else { return mean };
            let count = kin.len() as f64;
            let middle = kin.iter().sum::<f64>() / count;
            let spread = kin.iter().map(|m| (m - middle).powi(2)).sum::<f64>() / (count - 1.0);
            let between = (spread - noise / n).max(CLASS_SD * CLASS_SD);
            middle + (mean - middle) * between / (between + noise / n)
        };
        let left: Vec<(Features, f64)> =
            rows.iter().map(|r| (r.x, clip(r.y - intercept(r.job)))).collect();
        slopes = net(&left, penalty);
    }
    slopes
}

/// Scores of jobs left out, each reading from another of its job: what differs, and the miss in
/// units of what the crude formula may be wrong by.
fn left_out(rows: &[Row], penalty: f64, what: Quantity) -> Vec<(usize, f64)> {
    let mut order: Vec<usize> = rows.iter().map(|r| r.job).collect();
    order.dedup();
    let fold = |job: usize| order.binary_search(&job).unwrap_or(0) % FOLD_JOBS;
    let mut scores = Vec::new();
    for part in 0..FOLD_JOBS {
        let slopes = within(rows.iter().filter(|r| fold(r.job) != part), penalty);
        for rows in by_job(rows.iter().filter(|r| fold(r.job) == part)).values() {
            for (i, from) in rows.iter().enumerate() {
                for to in rows.iter().skip(i + 1) {
                    let miss = (to.y - dot(&to.x, &slopes)) - (from.y - dot(&from.x, &slopes));
                    let (variance, mask) = from.place.reach(&to.place, what);
                    scores.push((mask, miss / variance.sqrt()));
                }
            }
        }
    }
    scores
}

/// Answers about one job.
#[derive(Debug)]
pub struct Statistician<'a> {
    fitted: &'a Fitted,
    traits: &'a Traits,
    inferred: bool,
    rate: Anchors,
    power: Anchors,
}

/// What a job's answers start from: its own readings, or what is expected of one unseen.
#[derive(Debug, Default)]
struct Anchors {
    own: Vec<(Place, f64)>,
    unseen: Option<(f64, f64)>,
}

impl<'a> Statistician<'a> {
    /// Questions about the job seen as `seen`.
    #[must_use]
    pub fn new(fitted: &'a Fitted, readings: &Readings, kind: &str, seen: &'a SeenJob) -> Self {
        let anchors = |what: Quantity| {
            let net = fitted.of(what);
            let left = |of: &SeenJob| -> Vec<(Place, f64)> {
                let one = |r: &crate::method::reading::Reading| {
                    Some((r.place, r.seen(what)? - net.at(&r.place, &of.traits, what)))
                };
                of.readings.iter().filter_map(one).collect()
            };
            let own = left(seen);
            let level = |of: &SeenJob| {
                let left = left(of);
                let n = left.len() as f64;
                (n > 0.0).then(|| left.iter().map(|(_, y)| y).sum::<f64>() / n)
            };
            let unseen = if own.is_empty() {
                readings.unseen(kind, seen.class.as_ref(), what, level)
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

    /// The level that the anchors give at `place`, and the variance of what is expected there.
    fn level(&self, place: &Place, reference: &Place, what: Quantity) -> Option<(f64, f64)> {
        let (net, anchors) = match what {
            Quantity::Rate => (&self.fitted.rate, &self.rate),
            Quantity::Power => (&self.fitted.power, &self.power),
        };
        if let Some((mean, variance)) = anchors.unseen {
            return Some((mean, variance + net.variance(reference, place, what)));
        }
        let (mut precision, mut sum, mut least) = (0.0, 0.0, f64::INFINITY);
        for (from, left) in &anchors.own {
            let variance = net.variance(from, place, what);
            // Squared: what a far reading says of this place is not noise but bias.
            let weight = 1.0 / (variance * variance);
            precision += weight;
            sum += left * weight;
            least = least.min(variance);
        }
        // What several readings are wrong by is mostly the same: no surer than the nearest.
        (precision > 0.0).then(|| (sum / precision, least))
    }

    /// The answer at `place`; `reference` is the same GPUs alone at the default.
    #[must_use]
    pub fn answer(&self, place: &Place, reference: &Place) -> Answer {
        let at = |place: &Place, what: Quantity| {
            let (level, variance) = self.level(place, reference, what)?;
            Some((level + self.fitted.of(what).at(place, self.traits, what), variance))
        };
        let (rate, alone) = (at(place, Quantity::Rate), at(reference, Quantity::Rate));
        let net = &self.fitted.rate;
        let direct = net.variance(reference, place, Quantity::Rate);
        let relative = match (rate, alone) {
            _ if place.is_reference() => (0.0, 0.0),
            (Some(rate), Some(alone)) => (rate.0 - alone.0, direct.min(rate.1 + alone.1)),
            _ => {
                let f = |p: &Place| net.at(p, self.traits, Quantity::Rate);
                (f(place) - f(reference), direct)
            }
        };
        let most = alone.map_or(f64::INFINITY, |alone| alone.0);
        let rate = rate.filter(|_| !self.inferred).map(|(mean, v)| (mean.min(most), v));
        // Under a cap or beside others a power is expected in any case.
        let power = at(place, Quantity::Power).unwrap_or((place.crude(Quantity::Power), 0.5));
        Answer {
            rate: rate.map(log_normal),
            relative: LogNormal { dof: 1e6, ..log_normal(relative) },
            power: log_normal(power),
        }
    }
}
