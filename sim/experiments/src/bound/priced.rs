//! The tighter bound: GPUs are scarce, and their price changes with time.
//!
//! For each of some prices `mu` of energy (seconds per joule) a path of GPU prices is sought that
//! proves as much as it can; what a path proves, and why any path proves something valid, stands in
//! `dual.rs`. From `sum of flow times + mu * joules >= value` for all schedules follows
//! `mean completion time >= (value - mu * joules) / jobs`: a straight line over energy, and the
//! bound is the highest of all lines. The contention-free bound's lines are among them, since GPUs
//! may cost nothing, so this bound is never below that one.
//!
//! Where a joule counts differently at different times ([`priced_over`]), every schedule counts at
//! least its joules times the least weight of all, and what a path proves it proves of joules as they
//! count; so the lines and the least total are those, and a total below the mean may be reached by
//! waiting for cleaner hours, however long.
//!
//! The search is a sub-gradient ascent: where the jobs would take more GPUs than there are the price
//! rises, elsewhere it falls, each bucket by its own stride, which grows while the sign stays and
//! shrinks where it turns. A poor search makes the bound looser, never wrong. Few prices of energy
//! make it sag between their lines, likewise.

use super::contention_free::{self, Edges};
use super::dual::Dual;
use super::frontier::{BoundFrontier, Line};
use super::weights::Weights;
use super::{BoundError, BoundJob, Class, JOULES_PER_KWH, classes};

/// Step prices per class while searching; a path's final value is taken with the finer grid. On
/// 876 jobs the two differ by less than a part in a thousand, the finer one and any finer still by
/// less than one in ten thousand.
const COARSE: usize = 48;
const FINE: usize = 384;

/// Buckets at most; after them GPUs cost nothing, which is valid too.
const MOST_BUCKETS: usize = 100_000;

/// The stride of a price at the start and at most, in the price's natural unit; how it grows and
/// shrinks.
const FIRST_STRIDE: f64 = 0.1;
const LONGEST_STRIDE: f64 = 0.2;
const GROWTH: f64 = 1.2;
const SHRINKAGE: f64 = 0.6;

/// How hard to search. Every choice gives a valid bound; more work gives a tighter one.
#[derive(Debug, Clone, PartialEq)]
pub struct PricedSearch {
    /// How long a GPU price lasts, in seconds.
    pub bucket_s: f64,
    /// Sub-gradient steps for each price of energy.
    pub steps: usize,
    /// Prices of energy to try, besides zero, when none are named.
    pub energy_prices: usize,
    /// Prices of energy to try, in seconds per joule; empty: chosen from the jobs.
    pub mus_s_per_j: Vec<f64>,
    /// How long GPUs may cost something, in seconds from the first arrival; none: long enough for
    /// all arrivals and twice the time that the whole cluster needs for all work. After it a joule
    /// counts as the least it ever does.
    pub horizon_s: Option<f64>,
}

impl Default for PricedSearch {
    fn default() -> Self {
        let (bucket_s, steps, energy_prices) = (3_600.0, 100, 24);
        Self { bucket_s, steps, energy_prices, mus_s_per_j: Vec::new(), horizon_s: None }
    }
}

impl PricedSearch {
    fn check(&self) -> Result<(), BoundError> {
        let positive = "give a finite number above zero";
        let refuse = |what, value, remedy| Err(BoundError::Setting { what, value, remedy });
        if !(self.bucket_s.is_finite() && self.bucket_s > 0.0) {
            return refuse("the bucket of GPU prices in seconds", self.bucket_s, positive);
        }
        if let Some(horizon_s) = self.horizon_s
            && !(horizon_s.is_finite() && horizon_s > 0.0)
        {
            return refuse("the horizon of GPU prices in seconds", horizon_s, positive);
        }
        match self.mus_s_per_j.iter().find(|mu| !(mu.is_finite() && **mu >= 0.0)) {
            Some(&mu) => refuse(
                "a price of energy in seconds per joule",
                mu,
                "give finite numbers, not below zero",
            ),
            None => Ok(()),
        }
    }
}

/// What was found for one price of energy.
#[derive(Debug, Clone, PartialEq)]
pub struct PricePath {
    /// The price of energy, in seconds per joule.
    pub mu_s_per_j: f64,
    /// No schedule's sum of flow times + `mu_s_per_j` times what its joules count as is below this
    /// many seconds.
    pub value_s: f64,
    /// The GPU prices that prove it: seconds per GPU-second, one per bucket from the first arrival.
    pub prices: Vec<f64>,
}

/// The tighter bound and what proves it.
#[derive(Debug, Clone, PartialEq)]
pub struct Priced {
    /// The bound on the mean completion time over energy.
    pub frontier: BoundFrontier,
    /// One path per price of energy, dear energy first.
    pub paths: Vec<PricePath>,
}

/// The least mean completion time at each energy that GPU prices can prove for a cluster of `gpus`.
///
/// # Errors
/// As [`super::contention_free`], and when a setting is not a sensible number.
pub fn priced(jobs: &[BoundJob], gpus: u32, search: &PricedSearch) -> Result<Priced, BoundError> {
    proved(jobs, gpus, search, None)
}

/// The same where a joule counts as more or less than a joule: `weight` is the least that it counts
/// as between two instants, in seconds as arrivals are; the second may be infinite. With the grid's
/// intensity over its mean as weight, kWh times that mean are emissions.
///
/// # Errors
/// As [`priced`], and where a weight is not above zero.
pub fn priced_over(
    jobs: &[BoundJob],
    gpus: u32,
    search: &PricedSearch,
    weight: &dyn Fn(f64, f64) -> f64,
) -> Result<Priced, BoundError> {
    proved(jobs, gpus, search, Some(weight))
}

fn proved(
    jobs: &[BoundJob],
    gpus: u32,
    search: &PricedSearch,
    weight: Option<&dyn Fn(f64, f64) -> f64>,
) -> Result<Priced, BoundError> {
    search.check()?;
    let classes = classes(jobs, gpus)?;
    let edges = contention_free::of_classes(&classes);
    let alone = edges.frontier();

    let origin_s = jobs.iter().map(|job| job.arrival_s).fold(f64::INFINITY, f64::min);
    let horizon_s = search.horizon_s.unwrap_or_else(|| horizon_s(jobs, &classes, origin_s, gpus));
    let buckets = ((horizon_s / search.bucket_s).ceil() as usize).clamp(1, MOST_BUCKETS);
    let time = (origin_s, search.bucket_s);
    let weights = match weight {
        Some(weight) => Weights::over((origin_s, search.bucket_s, buckets), weight)?,
        None => Weights::one(buckets),
    };
    let mus = energy_prices(search, &edges, &weights);
    // A second of a job is worth one second; the fewest GPUs that any takes share it.
    let fewest = classes.iter().flat_map(|class| &class.options).map(|option| option.gpus).min();
    let unit = 1.0 / f64::from(fewest.unwrap_or(1));

    // So many joules, at the least they count as.
    let least = weights.least();
    let mut lines = edges.lines();
    lines.iter_mut().for_each(|line| line.slope /= least);
    let mut paths = Vec::with_capacity(mus.len());
    let mut prices = vec![0.0; buckets];
    for mu in mus {
        // From one price of energy to the next the GPU prices change little.
        let mut dual = Dual::new(&classes, gpus, mu, time, &weights);
        let path = ascend(&mut dual, prices, search.steps, f64::from(gpus), unit);
        prices = path.1.clone();
        let jobs = jobs.len() as f64;
        lines.push(Line { slope: -mu * JOULES_PER_KWH / jobs, intercept: path.0 / jobs });
        paths.push(PricePath { mu_s_per_j: mu, value_s: path.0, prices: path.1 });
    }
    Ok(Priced { frontier: BoundFrontier::from_lines(lines, alone.thriftiest().0 * least), paths })
}

/// The best path found from a starting one, and its value in seconds.
fn ascend(
    dual: &mut Dual<'_>,
    start: Vec<f64>,
    steps: usize,
    gpus: f64,
    unit: f64,
) -> (f64, Vec<f64>) {
    let mut path = start;
    let mut best = (f64::NEG_INFINITY, path.clone());
    let mut strides = vec![FIRST_STRIDE * unit; path.len()];
    let mut directions = vec![0.0; path.len()];
    for _ in 0..steps {
        let answer = dual.at(&path, COARSE);
        if answer.value_s > best.0 {
            best = (answer.value_s, path.clone());
        }
        let buckets = path.iter_mut().zip(&mut strides).zip(&mut directions).zip(&answer.demand);
        for (((price, stride), direction), demand) in buckets {
            let excess = demand / gpus - 1.0;
            *stride = if excess * *direction < 0.0 {
                *stride * SHRINKAGE
            } else {
                (*stride * GROWTH).min(LONGEST_STRIDE * unit)
            };
            *direction = excess;
            *price = (*price + excess * *stride).max(0.0);
        }
    }
    let found = dual.at(&best.1, FINE).value_s;
    let free = vec![0.0; best.1.len()];
    let alone = dual.at(&free, FINE).value_s;
    if alone > found { (alone, free) } else { (found, best.1) }
}

/// Prices of energy to try, the dearest first, and zero.
fn energy_prices(search: &PricedSearch, edges: &Edges, weights: &Weights) -> Vec<f64> {
    let mut mus = search.mus_s_per_j.clone();
    if mus.is_empty() {
        if let Some((low, high)) = edges.prices() {
            // Who waits for a clean hour weighs its time against what the others would cost.
            let (low, high) = (low / weights.most(), high / weights.least());
            let last = search.energy_prices.saturating_sub(1).max(1) as f64;
            let between = |i: usize| low * (high / low).powf(i as f64 / last);
            mus.extend((0..search.energy_prices).map(between));
        }
        mus.push(0.0);
    }
    mus.sort_by(|a, b| b.total_cmp(a));
    mus
}

fn horizon_s(jobs: &[BoundJob], classes: &[Class], origin_s: f64, gpus: u32) -> f64 {
    let last_s = jobs.iter().map(|job| job.arrival_s).fold(origin_s, f64::max);
    let gpu_seconds: f64 = classes
        .iter()
        .map(|class| {
            let per_step =
                class.options.iter().map(|option| f64::from(option.gpus) / option.steps_per_s);
            class.work() * per_step.fold(f64::INFINITY, f64::min)
        })
        .sum();
    last_s - origin_s + 2.0 * gpu_seconds / f64::from(gpus)
}
