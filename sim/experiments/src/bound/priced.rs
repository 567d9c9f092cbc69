//! The bound with a limited number of GPUs, by Lagrangian relaxation.
//!
//! For each of several energy prices `mu` (seconds per joule), a path of GPU prices over time is
//! optimized; the value of any path is a valid bound (`dual.rs`). From `sum of flow times + mu *
//! joules >= value` for all schedules follows `mean completion time >= (value - mu * joules) /
//! jobs`: a line over energy. The bound is the maximum of these lines. They include the lines of
//! the bound without contention (GPU prices of zero), so this bound is never below it.
//!
//! Where energy is weighted over time ([`priced_over`]), the lines are over weighted joules, and
//! the least total is the joules times the least weight; it may require waiting arbitrarily long
//! for low weights.
//!
//! Where the supply has a power limit, a path of prices of power is optimized with that of GPUs; the
//! lines then hold for the schedules within the limit.
//!
//! The search is a subgradient ascent: a price rises where the demand for GPUs exceeds the supply,
//! and falls elsewhere. Each bucket has its own step size, which grows while the sign of the
//! subgradient stays and shrinks when it changes. A poor search, or few energy prices, makes the
//! bound looser but keeps it valid.

use super::contention_free::{self, Edges};
use super::dual::{Dual, Paths};
use super::frontier::{BoundFrontier, Line};
use super::weights::Weights;
use super::{BoundError, BoundJob, Class, JOULES_PER_KWH, Supply, classes};

/// Step prices per class during the search; a path's final value uses the finer grid. On 876 jobs
/// the two grids differ by less than 0.1 %, and the finer one from still finer grids by less than
/// 0.01 %.
const COARSE: usize = 48;
const FINE: usize = 384;

/// Most buckets; the GPU price after them is zero, which is valid.
const MOST_BUCKETS: usize = 100_000;

/// Initial and largest step size of a price, in the price's natural unit, and its growth and shrink
/// factors.
const FIRST_STRIDE: f64 = 0.1;
const LONGEST_STRIDE: f64 = 0.2;
const GROWTH: f64 = 1.2;
const SHRINKAGE: f64 = 0.6;

/// Precision of the search. All settings give a valid bound; more work gives a tighter one.
#[derive(Debug, Clone, PartialEq)]
pub struct PricedSearch {
    /// Length of a bucket of constant GPU price, seconds.
    pub bucket_s: f64,
    /// Subgradient steps per energy price.
    pub steps: usize,
    /// Number of energy prices besides zero, where none are given.
    pub energy_prices: usize,
    /// Energy prices, seconds per joule; empty: chosen from the jobs.
    pub mus_s_per_j: Vec<f64>,
    /// Time with positive GPU prices, seconds from the first arrival; `None`: until the last
    /// arrival plus twice the time that the cluster needs for all work. Energy after it has the
    /// least weight.
    pub horizon_s: Option<f64>,
}

impl Default for PricedSearch {
    fn default() -> Self {
        let (bucket_s, steps, energy_prices) = (3_600.0, 100, 24);
        Self { bucket_s, steps, energy_prices, mus_s_per_j: Vec::new(), horizon_s: None }
    }
}

impl PricedSearch {
    /// About a twentieth of the default's work.
    #[must_use]
    pub fn coarse() -> Self {
        Self { bucket_s: 14_400.0, steps: 40, energy_prices: 8, ..Self::default() }
    }

    pub(super) fn check(&self) -> Result<(), BoundError> {
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

/// The GPU prices found for one energy price.
#[derive(Debug, Clone, PartialEq)]
pub struct PricePath {
    /// The energy price, seconds per joule.
    pub mu_s_per_j: f64,
    /// Lower bound on the sum of flow times + `mu_s_per_j` * weighted joules of any schedule,
    /// seconds.
    pub value_s: f64,
    /// The GPU prices, seconds per GPU-second, one per bucket from the first arrival.
    pub prices: Vec<f64>,
    /// The prices of power, seconds per joule, one per bucket; zeros without a power limit.
    pub power_prices: Vec<f64>,
}

/// The bound, and the price paths that prove it.
#[derive(Debug, Clone, PartialEq)]
pub struct Priced {
    /// The bound on the mean completion time over energy.
    pub frontier: BoundFrontier,
    /// One path per energy price, descending.
    pub paths: Vec<PricePath>,
}

/// A lower bound on the mean completion time over energy for a cluster with this supply, such as a number
/// of GPUs.
///
/// # Errors
/// As [`super::contention_free`], for an invalid setting, and for a job that draws more than the power limit
/// in every option.
pub fn priced(
    jobs: &[BoundJob],
    supply: impl Into<Supply>,
    search: &PricedSearch,
) -> Result<Priced, BoundError> {
    proved(jobs, supply.into(), search, None)
}

/// The bound with weighted energy: `weight` is the least weight of a joule between two times, in
/// seconds; the second may be infinite. With the grid's intensity over its mean as weight, kWh
/// times that mean are emissions.
///
/// # Errors
/// As [`priced`], and for a weight that is not positive.
pub fn priced_over(
    jobs: &[BoundJob],
    supply: impl Into<Supply>,
    search: &PricedSearch,
    weight: &dyn Fn(f64, f64) -> f64,
) -> Result<Priced, BoundError> {
    proved(jobs, supply.into(), search, Some(weight))
}

fn proved(
    jobs: &[BoundJob],
    supply: Supply,
    search: &PricedSearch,
    weight: Option<&dyn Fn(f64, f64) -> f64>,
) -> Result<Priced, BoundError> {
    search.check()?;
    let classes = classes(jobs, supply.gpus)?;
    within_limit(jobs, supply)?;
    let edges = contention_free::of_classes(&classes);
    let alone = edges.frontier();

    let time = buckets(jobs, &classes, supply, search);
    let (origin_s, bucket_s, count) = time;
    let weights = match weight {
        Some(weight) => Weights::over(time, weight)?,
        None => Weights::one(count),
    };
    let mus = energy_prices(search, &edges, &weights);

    // The least weighted joules.
    let least = weights.least();
    let mut lines = edges.lines();
    lines.iter_mut().for_each(|line| line.slope /= least);
    let mut found = Vec::with_capacity(mus.len());
    let mut paths = Paths::of(count, 0.0, 0.0);
    for mu in mus {
        // Prices change little between adjacent energy prices.
        let mut dual = Dual::new(&classes, supply, mu, (origin_s, bucket_s), &weights);
        let best = ascend(&mut dual, paths, search.steps, supply, units(&classes));
        paths = best.paths;
        let jobs = jobs.len() as f64;
        lines.push(Line { slope: -mu * JOULES_PER_KWH / jobs, intercept: best.value_s / jobs });
        found.push(PricePath {
            mu_s_per_j: mu,
            value_s: best.value_s,
            prices: paths.gpus.clone(),
            power_prices: paths.watts.clone(),
        });
    }
    let least_kwh = alone.least_energy().0 * least;
    Ok(Priced { frontier: BoundFrontier::from_lines(lines, least_kwh), paths: found })
}

/// Whether every job has an option within the power limit.
fn within_limit(jobs: &[BoundJob], supply: Supply) -> Result<(), BoundError> {
    let watts = supply.watts;
    let least_w = jobs.iter().map(|job| job.least_w(supply.gpus)).enumerate();
    match least_w.max_by(|a, b| a.1.total_cmp(&b.1)) {
        Some((job, least_w)) if least_w > watts => {
            Err(BoundError::LimitTooLow { job, least_w, watts })
        }
        _ => Ok(()),
    }
}

/// Start of the first bucket, length of a bucket in seconds, and the number of buckets.
pub(super) fn buckets(
    jobs: &[BoundJob],
    classes: &[Class],
    supply: Supply,
    search: &PricedSearch,
) -> (f64, f64, usize) {
    let origin_s = jobs.iter().map(|job| job.arrival_s).fold(f64::INFINITY, f64::min);
    let horizon_s = search.horizon_s.unwrap_or_else(|| horizon_s(jobs, classes, origin_s, supply));
    let count = ((horizon_s / search.bucket_s).ceil() as usize).clamp(1, MOST_BUCKETS);
    (origin_s, search.bucket_s, count)
}

/// The natural units of the price of a GPU and of a watt: a second of a job has value one, divided by the
/// fewest GPUs or the least power of any option.
pub(super) fn units(classes: &[Class]) -> (f64, f64) {
    let options = || classes.iter().flat_map(|class| &class.options);
    let fewest = options().map(|option| option.gpus).min();
    let least_w = options().map(|option| option.power_w).fold(f64::INFINITY, f64::min);
    (1.0 / f64::from(fewest.unwrap_or(1)), 1.0 / least_w.max(1.0))
}

/// The best paths of a search.
pub(super) struct Ascent {
    pub(super) value_s: f64,
    pub(super) paths: Paths,
    /// The refund of a watt over all time at these prices, seconds.
    pub(super) per_watt_s: f64,
}

/// The best paths found from initial ones.
pub(super) fn ascend(
    dual: &mut Dual<'_>,
    start: Paths,
    steps: usize,
    supply: Supply,
    units: (f64, f64),
) -> Ascent {
    let buckets = start.gpus.len();
    let mut paths = start;
    let mut best = (f64::NEG_INFINITY, paths.clone());
    let mut gpus = Strides::of(buckets, units.0);
    let mut watts = Strides::of(buckets, units.1);
    for _ in 0..steps {
        let answer = dual.at(&paths, COARSE);
        if answer.value_s > best.0 {
            best = (answer.value_s, paths.clone());
        }
        gpus.step(&mut paths.gpus, &answer.demand.gpus, f64::from(supply.gpus));
        if supply.is_power_limited() {
            watts.step(&mut paths.watts, &answer.demand.watts, supply.watts);
        }
    }
    let found = dual.at(&best.1, FINE);
    let free = Paths::of(buckets, 0.0, 0.0);
    let alone = dual.at(&free, FINE);
    let (answer, paths) =
        if alone.value_s > found.value_s { (alone, free) } else { (found, best.1) };
    Ascent { value_s: answer.value_s, paths, per_watt_s: answer.per_watt_s }
}

/// The step sizes of a path of prices, and the signs of its subgradient.
struct Strides {
    unit: f64,
    strides: Vec<f64>,
    directions: Vec<f64>,
}

impl Strides {
    fn of(buckets: usize, unit: f64) -> Self {
        Self { unit, strides: vec![FIRST_STRIDE * unit; buckets], directions: vec![0.0; buckets] }
    }

    fn step(&mut self, prices: &mut [f64], demand: &[f64], supply: f64) {
        let buckets = prices.iter_mut().zip(&mut self.strides).zip(&mut self.directions);
        for (((price, stride), direction), demand) in buckets.zip(demand) {
            let excess = demand / supply - 1.0;
            *stride = if excess * *direction < 0.0 {
                *stride * SHRINKAGE
            } else {
                (*stride * GROWTH).min(LONGEST_STRIDE * self.unit)
            };
            *direction = excess;
            *price = (*price + excess * *stride).max(0.0);
        }
    }
}

/// The energy prices, descending, and zero.
fn energy_prices(search: &PricedSearch, edges: &Edges, weights: &Weights) -> Vec<f64> {
    let mut mus = search.mus_s_per_j.clone();
    if mus.is_empty() {
        if let Some((low, high)) = edges.prices() {
            // Deferral trades time against the difference of the weights.
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

fn horizon_s(jobs: &[BoundJob], classes: &[Class], origin_s: f64, supply: Supply) -> f64 {
    let last_s = jobs.iter().map(|job| job.arrival_s).fold(origin_s, f64::max);
    let least_of_all = |of: fn(&super::BoundOption) -> f64| -> f64 {
        let least = |class: &Class| {
            let per_step = class.options.iter().map(|option| of(option) / option.steps_per_s);
            class.work() * per_step.fold(f64::INFINITY, f64::min)
        };
        classes.iter().map(least).sum()
    };
    let gpu_seconds = least_of_all(|option| f64::from(option.gpus));
    let mut needed_s = gpu_seconds / f64::from(supply.gpus);
    if supply.is_power_limited() {
        needed_s = needed_s.max(least_of_all(|option| option.power_w) / supply.watts);
    }
    last_s - origin_s + 2.0 * needed_s
}
