//! The energy aim: the least energy within a bound on mean completion time.
//!
//! A policy with an energy price spends less energy at a higher price, and its jobs complete later.
//! [`search`] makes complete simulations at several prices, and [`AimOutcome`] selects the run of least energy
//! whose lateness ([`crate::lateness`]) is permitted. The reference of the lateness is one of two:
//!
//! * the same policy on the same jobs at price 0, where energy is free: [`least_energy`] without a reference.
//!   Price 0 is then always permitted;
//! * another schedule of the same jobs, such as the recorded one or that of EASY backfilling. Lateness at price 0
//!   may be negative, because a policy that resizes jobs completes them sooner, or beyond the bound: then no
//!   saving is possible within it ([`AimOutcome::is_within`]).
//!
//! In a large scenario the search begins at the price of a sample of the jobs ([`AimSearch::from_sample`]), whose runs
//! take little time.
//!
//! * Energies are compared over one period: until the last completion of any run. After its own last
//!   completion a run draws its power at rest ([`AimRun::rest_w`]).
//! * Where price 0 uses up the bound, the search begins at the least price, and mostly ends there.
//! * The search is on the logarithm of the price. It moves by a factor ([`AimSearch::factor`], four by
//!   default) until a permitted and an excessive price are found, then interpolates the lateness between
//!   them. It ends close below the bound ([`AimSearch::floor`]), or after
//!   [`AimSearch::runs_max`] runs. The lateness of few jobs changes in steps, so that the bracket may close on one: then
//!   the search continues in the widest gap between the prices that it has tried, near and above that of its best
//!   run ([`AimSearch::of_few_jobs`]). Neither energy nor lateness has to be monotonic in the price: the result is the
//!   permitted run of least energy among those made.

use crate::lateness::{Allowed, Lateness, Reference};

/// Number of runs of a search relative to price 0, the one at price 0 included.
pub const RUNS_MAX: usize = 8;
/// The same of a search relative to another schedule, whose lateness at price 0 may be far below the bound.
pub const RUNS_MAX_TO_BASELINE: usize = 10;

/// The same where the jobs are fewer than [`FEW_JOBS`], whose runs take little time.
pub const RUNS_MAX_OF_FEW: usize = 24;
/// Number of jobs whose lateness changes in steps: with a hundred jobs one of mean length adds a point.
pub const FEW_JOBS: usize = 100;

/// [`AimSearch::factor`] of a search without a good first price.
const BRACKET_FACTOR: f64 = 4.0;
/// [`AimSearch::floor`] of a search relative to price 0, as a share of the bound.
const CLOSE_TO_BOUND: f64 = 0.9;
/// How far below the bound a search relative to another schedule may end: half a percentage point.
pub const CLOSE_TO_BASELINE: f64 = 0.005;
/// [`AimSearch::narrow`] of a search relative to price 0, and of one relative to another schedule.
const NARROW_FACTOR: f64 = 1.1;
const NARROW_FACTOR_TO_BASELINE: f64 = 1.02;
/// Where price 0 leaves less than this share of the completion time, the search begins at the least price: only settings
/// that save energy without slowing jobs are left.
const ROOM_MIN: f64 = 0.0005;
/// The least distance of two prices, as a logarithm, that a slope is computed from.
const SLOPE_APART: f64 = 0.2;
/// How far below the price of the best run further ones of few jobs are tried: energy falls with the price on the whole.
const GAPS_BELOW: f64 = 2.0;
/// An interpolated price keeps this share of the bracket's logarithmic width from either end.
const MARGIN: f64 = 0.15;

/// A simulated run, as the search reads it.
pub trait AimRun {
    /// Energy from the first submission to the run's last completion, kWh.
    fn energy_kwh(&self) -> f64;
    /// From the first submission to the last completion, s.
    fn makespan_s(&self) -> f64;
    /// Power of the cluster after the last completion, W.
    fn rest_w(&self) -> f64;
    /// Completion time of each job in the order of the scenario, s; `None` where it did not
    /// complete.
    fn completion_s(&self) -> &[Option<f64>];

    /// Energy from the first submission over a period at least as long as the makespan, kWh.
    fn energy_kwh_over(&self, period_s: f64) -> f64 {
        self.energy_kwh() + self.rest_w() * (period_s - self.makespan_s()).max(0.0) / 3.6e6
    }
}

/// A search for the least energy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AimSearch {
    /// Bounds on the lateness.
    pub allowed: Allowed,
    /// The first price after 0, in the unit of the policy.
    pub start: f64,
    /// The least price above 0 that is tried.
    pub least: f64,
    /// The greatest price that is tried.
    pub most: f64,
    /// Number of runs, the one at price 0 and others made before included.
    pub runs_max: usize,
    /// Factor between prices while the bound is not bracketed.
    pub factor: f64,
    /// The expected rise of the lateness with the logarithm of the price, by which it moves in place of the factor,
    /// where that is known.
    pub slope: Option<f64>,
    /// The search ends at a permitted run whose lateness is at least this.
    pub floor: f64,
    /// The search ends when the bracket of prices is narrower than this factor.
    pub narrow: f64,
    /// Whether it continues in the widest gap between the prices tried, in place of an end.
    pub fills_gaps: bool,
}

impl AimSearch {
    /// A search relative to price 0 between the prices of a policy's range, which begins at their geometric mean.
    #[must_use]
    pub fn within(max_slowdown: f64, least: f64, most: f64) -> Self {
        Self {
            allowed: Allowed::mean(max_slowdown),
            start: (least * most).sqrt(),
            least,
            most,
            runs_max: RUNS_MAX,
            factor: BRACKET_FACTOR,
            slope: None,
            floor: CLOSE_TO_BOUND * max_slowdown,
            narrow: NARROW_FACTOR,
            fills_gaps: false,
        }
    }

    /// The same for few jobs.
    #[must_use]
    pub fn of_few_jobs(self) -> Self {
        Self { runs_max: RUNS_MAX_OF_FEW, fills_gaps: true, ..self }
    }

    /// The same search, which ends at a permitted run whose lateness is at least this share of the bound.
    #[must_use]
    pub fn closing_at(self, share: f64) -> Self {
        Self { floor: share * self.allowed.mean, ..self }
    }

    /// The lateness that the search aims at, between the accepted ones.
    fn target(&self) -> f64 {
        f64::midpoint(self.floor, self.allowed.mean)
    }

    /// The same search on a sample of the jobs, relative to the sample's own run at price 0, where the lateness of all
    /// jobs at price 0 is `at_zero`; `None` where that leaves no room.
    #[must_use]
    pub fn on_sample(&self, at_zero: Lateness) -> Option<Self> {
        let at_zero = 1.0 + self.allowed.tightest(at_zero);
        let later = |lateness: f64| (1.0 + lateness) / at_zero - 1.0;
        let (floor, most) = (later(self.floor), later(self.allowed.mean));
        let aim = Self { floor, runs_max: RUNS_MAX_TO_BASELINE, ..*self };
        (at_zero > 0.0 && most > 0.0).then(|| Self { allowed: Allowed::mean(most), ..aim })
    }

    /// The same search from the price that was found on a sample of the jobs.
    #[must_use]
    pub fn from_sample<R>(&self, found: &AimOutcome<R>, at_zero: Lateness) -> Self {
        let own = &found.runs[found.selected];
        if own.price <= 0.0 {
            return *self;
        }
        let distance = |other: &Priced<R>| (other.price / own.price).ln();
        let apart = found.runs.iter().filter(|other| {
            other.price > 0.0 && other.lateness.is_some() && distance(other).abs() >= SLOPE_APART
        });
        let nearest = apart.min_by(|a, b| distance(a).abs().total_cmp(&distance(b).abs()));
        let slope = nearest.zip(own.lateness).and_then(|(other, lateness)| {
            let rise = (other.lateness?.mean - lateness.mean) / distance(other);
            Some(rise * (1.0 + self.allowed.tightest(at_zero)))
        });
        Self { start: own.price, slope: slope.filter(|slope| *slope > 0.0), ..*self }
    }

    /// The factor from a price with this lateness to the next one, while the bound is not bracketed.
    fn step(&self, lateness: Option<f64>) -> f64 {
        self.slope.zip(lateness).map_or(self.factor, |(slope, lateness)| {
            ((self.target() - lateness).abs() / slope).exp().clamp(self.narrow, self.factor)
        })
    }

    /// The same relative to another schedule.
    #[must_use]
    pub fn to_baseline(allowed: Allowed, least: f64, most: f64) -> Self {
        Self {
            allowed,
            runs_max: RUNS_MAX_TO_BASELINE,
            floor: allowed.mean - CLOSE_TO_BASELINE,
            narrow: NARROW_FACTOR_TO_BASELINE,
            ..Self::within(allowed.mean, least, most)
        }
    }
}

/// A price with its run.
#[derive(Clone, Debug, PartialEq)]
pub struct Priced<R> {
    /// The price.
    pub price: f64,
    /// The run at that price.
    pub run: R,
    /// Its lateness. `None` where the run completed fewer jobs than the reference, or none in common.
    pub lateness: Option<Lateness>,
}

/// The runs of a search, in the order in which they were made.
#[derive(Clone, Debug, PartialEq)]
pub struct AimOutcome<R> {
    /// The runs; the first is at price 0.
    pub runs: Vec<Priced<R>>,
    /// The place of the selected run.
    pub selected: usize,
    /// Whether the selected run is within the bounds. Otherwise not even price 0 is, whose run is then selected.
    pub is_within: bool,
    /// Whether the selected price is the greatest one of the policy.
    pub is_greatest: bool,
}

impl<R: AimRun> AimOutcome<R> {
    /// The run of least energy within the bounds among the runs of a search; that at price 0 where none is.
    pub(crate) fn select(runs: Vec<Priced<R>>, aim: &AimSearch) -> Self {
        let best = best(&runs, aim.allowed);
        let selected = best.unwrap_or(0);
        let is_greatest = runs[selected].price >= aim.most;
        Self { runs, selected, is_within: best.is_some(), is_greatest }
    }

    /// The selected price with its run.
    #[must_use]
    pub fn priced(&self) -> &Priced<R> {
        &self.runs[self.selected]
    }

    /// The price of the selected run.
    #[must_use]
    pub fn price(&self) -> f64 {
        self.priced().price
    }

    /// The selected run.
    #[must_use]
    pub fn run(&self) -> &R {
        &self.priced().run
    }

    /// The selected run; the others are dropped.
    #[must_use]
    pub fn into_run(mut self) -> R {
        self.runs.swap_remove(self.selected).run
    }

    /// The lateness of the selected run.
    #[must_use]
    pub fn lateness(&self) -> Option<Lateness> {
        self.priced().lateness
    }
}

/// The place of the run of least energy within `allowed`, the first among equals; `None` where no run is within.
#[must_use]
pub fn best<R: AimRun>(runs: &[Priced<R>], allowed: Allowed) -> Option<usize> {
    let period_s = runs.iter().map(|priced| priced.run.makespan_s()).fold(0.0, f64::max);
    let within = runs.iter().enumerate().filter(|(_, priced)| permits(allowed, priced.lateness));
    let energies = within.map(|(place, priced)| (place, priced.run.energy_kwh_over(period_s)));
    energies.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(place, _)| place)
}

fn permits(allowed: Allowed, lateness: Option<Lateness>) -> bool {
    lateness.is_some_and(|lateness| allowed.permits(lateness))
}

/// The run of least energy within the bound. `run_at_price` makes one complete simulation. Without a `reference`
/// that is the run at price 0.
///
/// # Errors
/// The first error of `run_at_price`.
pub fn least_energy<R: AimRun, E>(
    aim: &AimSearch,
    reference: Option<&Reference>,
    run_at_price: impl FnMut(f64) -> Result<R, E>,
) -> Result<AimOutcome<R>, E> {
    let mut runs = Vec::new();
    search(aim, reference, &mut runs, run_at_price)?;
    Ok(AimOutcome::select(runs, aim))
}

/// Adds the runs of a search to `runs`, which may hold those of searches with other bounds and the same
/// `reference`. The run at price 0 is made first where there is none; where it exceeds the bounds, no other
/// is made.
///
/// # Errors
/// The first error of `run_at_price`.
pub fn search<R: AimRun, E>(
    aim: &AimSearch,
    reference: Option<&Reference>,
    runs: &mut Vec<Priced<R>>,
    mut run_at_price: impl FnMut(f64) -> Result<R, E>,
) -> Result<(), E> {
    if runs.is_empty() {
        let run = run_at_price(0.0)?;
        let lateness = match reference {
            Some(reference) => reference.lateness(run.completion_s()),
            None => Some(Lateness::default()),
        };
        runs.push(Priced { price: 0.0, run, lateness });
    }
    let own;
    let reference = if let Some(reference) = reference {
        reference
    } else {
        own =
            Reference { completion_s: runs[0].run.completion_s().to_vec(), ..Reference::default() };
        &own
    };
    if !permits(aim.allowed, runs[0].lateness) {
        return Ok(());
    }
    while let Some(price) = next_price(aim, runs).filter(|_| runs.len() < aim.runs_max) {
        let run = run_at_price(price)?;
        let lateness = reference.lateness(run.completion_s());
        runs.push(Priced { price, run, lateness });
    }
    Ok(())
}

/// The next price to try after these runs; `None` at the end of the search.
fn next_price<R: AimRun>(aim: &AimSearch, runs: &[Priced<R>]) -> Option<f64> {
    let (bound, floor) = (aim.allowed.mean, aim.floor);
    // The greatest permitted price below every excessive one.
    let priced = || runs.iter().filter(|priced| priced.price > 0.0);
    let excessive = priced().filter(|priced| !permits(aim.allowed, priced.lateness));
    let above = excessive.min_by(|a, b| a.price.total_cmp(&b.price));
    let below = priced().filter(|priced| {
        permits(aim.allowed, priced.lateness)
            && above.is_none_or(|above| priced.price < above.price)
    });
    let below = below.max_by(|a, b| a.price.total_cmp(&b.price));
    let tightest = |priced: &Priced<R>| priced.lateness.map(|of| aim.allowed.tightest(of));
    let at_zero = runs.first().and_then(tightest).unwrap_or(f64::NEG_INFINITY);
    match (below, above) {
        (None, None) => {
            let start = if bound - at_zero < ROOM_MIN { aim.least } else { aim.start };
            Some(start.clamp(aim.least, aim.most))
        }
        (Some(below), None) => {
            // A price that costs no time does not end the search.
            let is_close = |at: f64| floor < bound && at >= floor && at > at_zero;
            let close = tightest(below).is_some_and(is_close);
            let price = below.price;
            if price < aim.most && !close {
                return Some((price * aim.step(tightest(below))).min(aim.most));
            }
            aim.fills_gaps.then(|| widest_gap(aim, runs)).flatten()
        }
        (None, Some(above)) => {
            let price = above.price;
            (price > aim.least).then(|| (price / aim.step(tightest(above))).max(aim.least))
        }
        (Some(below), Some(above)) => {
            let (low, high) = (below.price, above.price);
            let (at_low, at_high) = (tightest(below).unwrap_or(0.0), tightest(above));
            let width = (high / low).ln();
            if at_low >= floor || width < aim.narrow.ln() {
                return aim.fills_gaps.then(|| widest_gap(aim, runs)).flatten();
            }
            // Linear interpolation aims between the accepted values.
            let share = at_high.map_or(0.5, |at_high| (aim.target() - at_low) / (at_high - at_low));
            let share = if share.is_finite() { share.clamp(MARGIN, 1.0 - MARGIN) } else { 0.5 };
            Some(low * (share * width).exp())
        }
    }
}

/// The middle of the widest gap between the prices tried, from [`GAPS_BELOW`] the best run's on.
fn widest_gap<R: AimRun>(aim: &AimSearch, runs: &[Priced<R>]) -> Option<f64> {
    let low = (runs[best(runs, aim.allowed)?].price / GAPS_BELOW).max(aim.least);
    let tried = runs.iter().map(|priced| priced.price).filter(|price| *price > low);
    let mut prices: Vec<f64> = tried.chain([low, aim.most]).collect();
    prices.sort_by(f64::total_cmp);
    let gaps = prices.windows(2).map(|pair| (pair[1] / pair[0], (pair[0] * pair[1]).sqrt()));
    let widest = gaps.max_by(|a, b| a.0.total_cmp(&b.0));
    widest.filter(|(factor, _)| *factor > aim.narrow).map(|(_, middle)| middle)
}

#[cfg(test)]
mod tests;
