//! Jobs as bidders: their remaining work, the sizes they may have and the cost of a change of size.

use std::collections::BTreeMap;

use crate::allocation::restart_rules::{DAY, RestartRules};
use crate::allocation::settling::SIZE_LASTS_S;
use crate::plan::input::PlanningInput;
use crate::policies::elastic::ElasticJob;
use crate::policies::wattle::knapsack::{ChangeCost, Choice, Item, UNSERVED_PENALTY};
use crate::policies::wattle::market::{
    Bid, BidderClass, Market, MarketRules, MarketSupply, WORK_STEPS, age_of, age_step,
};
use crate::policies::wattle::power_knapsack;
use crate::policies::wattle::prices::{EnergyPrice, Prices};
use crate::policies::wattle::upper_envelope::{CurvePoint, OperatingCurve, SizeCurve};
use crate::power::energy_cost::Charge;
use crate::power::promises::Promise;
use crate::state::gpu_set::JobKey;
use crate::state::job::{Job, State};
use crate::state::job_forecast::{is_unmeasured, remaining_work};
use crate::state::operating_points::OperatingPoints;

/// A job that has waited for this many times its exclusive run time plus [`PATIENCE_S`] gets its least size
/// before other jobs get more than theirs.
pub(super) const PATIENCE: f64 = 4.0;
pub(super) const PATIENCE_S: f64 = 3_600.0;
/// The greatest cost of a change, as a share of the job's earnings during that time.
const CHANGE_COST_MAX: f64 = 0.5;
/// The share of its age that does not count for a job of unknown length. Its remaining work is estimated
/// from its age, so an old job already counts as a long one.
const ESTIMATED_AGE: f64 = 0.8;

/// A job that cannot stop gets at most the size on which its work costs least at this price of a GPU-second, s. At the
/// present price a job that starts while few are present would keep GPUs that others need later.
const KEPT_SIZE_PRICE: f64 = 0.4;

/// One job in the market.
pub(super) struct Bidder<'a> {
    pub(super) key: JobKey,
    pub(super) job: &'a Job,
    /// Index of its operating curve.
    pub(super) curve: usize,
    /// Index of its class.
    pub(super) class: usize,
    /// Whether its remaining work is known rather than estimated.
    pub(super) work_is_known: bool,
    /// Remaining work, rounded, s.
    pub(super) work: f64,
    /// Remaining work in steps of the rounding.
    work_step: i32,
    /// Time since submission in steps of the rounding.
    age_step: i32,
    /// Time since submission, s.
    age_s: f64,
    /// All its work, done and remaining, s.
    total_work: f64,
    /// The largest size that the limits of its accounts permit.
    pub(super) gpus_max: u32,
    /// Its size if it runs and cannot stop.
    pub(super) fixed_size: Option<u32>,
    /// The least size it must get, for its deadline or after a long wait.
    pub(super) gpus_min: u32,
    /// The least speed with which it meets its deadline.
    pub(super) speed_min: f64,
    /// Whether a promise during a grid event requires this speed. It has precedence over all other jobs.
    is_promised: bool,
    /// The weight of its work: 1, during a grid event the share of its throughput that it does not give up.
    weight: f64,
    /// Its size if it has not settled ([`crate::allocation::settling`]). It keeps it.
    pub(super) held: Option<u32>,
    /// Sizes that it left and that nothing new is known of.
    tried_sizes: Vec<u32>,
    /// Its restart cost over the formula's.
    restart_factor: f64,
    /// Its stops within a day, and what they cost.
    stops: usize,
    restart_rules: RestartRules,
    /// Whether it has priority or has waited for too long.
    is_overdue: bool,
}

impl Bidder<'_> {
    pub(super) fn has_run(&self) -> bool {
        self.job.state != State::Queued || !self.job.attained.is_zero()
    }

    /// Whether it waits for its first start, and may have every size of its class.
    pub(super) fn awaits_first_start(&self) -> bool {
        !self.has_run() && self.job.intended_gpus().is_none() && self.tried_sizes.is_empty()
    }

    /// The value of a size at its best setting, and the cost of a start at it, s/s.
    fn start(
        &self,
        curve: &OperatingCurve<'_>,
        size: &SizeCurve,
        bid: &Bid,
        prices: Prices,
    ) -> Option<(f64, f64)> {
        let joule = curve.joule(prices).total();
        let point = size.best_point(bid.work_price, joule, self.speed_min)?;
        let value = point.value(bid.work_price, curve.joule(prices).energy);
        Some((value, change_cost(value, self.restart_s(size.restart_s), bid.done_in_s)))
    }

    /// What is charged for a restart that takes this long by the formula, s.
    pub(super) fn restart_s(&self, typical_s: f64) -> f64 {
        self.restart_rules.charged_s(self.stops, typical_s * self.restart_factor)
    }

    /// The settings that it may have with a size, ascending by power, each with its value less the energy, s/s.
    ///
    /// A measurement at the default setting improves the predictions of all others, but the default draws more than
    /// the setting that pays. A job without a measurement keeps the default for its first window only. So at
    /// these prices the default is worth as much as the setting that pays.
    fn settings(
        &self,
        curve: &OperatingCurve<'_>,
        size: &SizeCurve,
        bid: &Bid,
        prices: Prices,
    ) -> Vec<(CurvePoint, f64)> {
        let joule = curve.joule(prices);
        let value = |point: CurvePoint| point.value(bid.work_price, joule.energy);
        let fast_enough = size.points().filter(|point| point.speed >= self.speed_min);
        let mut settings: Vec<_> = fast_enough.map(|point| (point, value(point))).collect();
        if let Some(default) = size.default_point().filter(|_| is_unmeasured(self.job)) {
            let paying = size.best_point(bid.work_price, joule.total(), self.speed_min);
            let paying = paying.unwrap_or(default);
            let drawn_more_w = (default.watts - paying.watts).max(0.0);
            settings.retain(|(point, _)| !point.setting.is_default());
            settings.push((default, value(paying) + prices.power * drawn_more_w));
        }
        settings
    }

    /// Whether it may get this many GPUs.
    fn may_have(&self, gpus: u32) -> bool {
        (self.gpus_min..=self.gpus_max).contains(&gpus)
            && self.fixed_size.or(self.held).is_none_or(|size| size == gpus)
            && !self.tried_sizes.contains(&gpus)
    }
}

/// Phase 1: the bidders for one GPU type, and their market.
pub(super) fn build_bids<'a>(
    input: PlanningInput<'_>,
    jobs: &[ElasticJob<'a>],
    charge: Charge,
    rules: MarketRules,
    largest_set: u32,
) -> (Vec<Bidder<'a>>, Market<'a>) {
    let mut curves: Vec<OperatingCurve<'a>> = Vec::new();
    // Looked up by address and numbered by first appearance, so that addresses decide nothing.
    let mut known: BTreeMap<*const OperatingPoints, Option<usize>> = BTreeMap::new();
    let mut bidders = Vec::with_capacity(jobs.len());
    for elastic in jobs {
        let curve = *known.entry(std::ptr::from_ref(elastic.points)).or_insert_with(|| {
            let unit = elastic.points.unit_rate()?;
            let gpus_max = largest_set.max(elastic.fixed_size.unwrap_or(0));
            let energy = EnergyPrice::of(input);
            curves.push(OperatingCurve::new(elastic.points, unit, charge, energy, gpus_max)?);
            Some(curves.len() - 1)
        });
        if let Some(index) = curve {
            let bidder = bidder(input, elastic, index, &curves[index]);
            let sizes = &curves[index].sizes;
            if bidder.fixed_size.is_none_or(|gpus| sizes.iter().any(|size| size.gpus == gpus)) {
                bidders.push(bidder);
            }
        }
    }
    discount_estimated_ages(input, &mut bidders);
    set_least_sizes(&mut bidders, &curves, rules.must_run);
    let mut classes: Vec<BidderClass> = Vec::new();
    let mut numbers: BTreeMap<DemandKey, usize> = BTreeMap::new();
    for bidder in &mut bidders {
        bidder.class = *numbers.entry(demand_key(bidder)).or_insert_with(|| {
            classes.push(class_of(bidder));
            classes.len() - 1
        });
        classes[bidder.class].jobs += 1;
    }
    (bidders, Market::new(curves, classes, rules))
}

/// What the demand of a bidder depends on.
type DemandKey = (usize, i32, i32, (u32, u32, u64, u64), bool);

fn demand_key(bidder: &Bidder<'_>) -> DemandKey {
    let gpus_max = bidder.fixed_size.unwrap_or(bidder.gpus_max);
    let (speed_min, weight) = (bidder.speed_min.to_bits(), bidder.weight.to_bits());
    let bounds = (bidder.gpus_min, gpus_max, speed_min, weight);
    (bidder.curve, bidder.work_step, bidder.age_step, bounds, bidder.fixed_size.is_some())
}

/// A job as the only bidder, and the class of it alone.
pub(super) fn single_bidder<'a>(
    input: PlanningInput<'_>,
    elastic: &ElasticJob<'a>,
    curve: &OperatingCurve<'_>,
) -> (Bidder<'a>, BidderClass) {
    let bidder = bidder(input, elastic, 0, curve);
    let class = BidderClass { jobs: 1, ..class_of(&bidder) };
    (bidder, class)
}

/// The class of bidders like this one, still without jobs.
fn class_of(bidder: &Bidder<'_>) -> BidderClass {
    BidderClass {
        curve: bidder.curve,
        work: bidder.work,
        gpus_min: bidder.gpus_min,
        gpus_max: bidder.fixed_size.unwrap_or(bidder.gpus_max),
        may_wait: bidder.gpus_min == 0,
        has_gpus: bidder.fixed_size.is_some(),
        speed_min: bidder.speed_min,
        weight: bidder.weight,
        age_s: age_of(bidder.age_step),
        jobs: 0,
        decay: 1.0,
    }
}

fn bidder<'a>(
    input: PlanningInput<'_>,
    elastic: &ElasticJob<'a>,
    index: usize,
    curve: &OperatingCurve<'_>,
) -> Bidder<'a> {
    let job = elastic.job;
    let remaining = remaining_work(input.state, job, curve.unit);
    let work_step = (remaining.left_s.ln() * WORK_STEPS).round();
    let work = (work_step / WORK_STEPS).exp();
    let least = f64::from(curve.sizes[0].gpus.max(1));
    let ran_s = job.gpu_time(input.now()).as_secs_f64() / least;
    let age_s = input.now().since(job.facts.submitted_at).as_secs_f64();
    let waited_s = age_s - ran_s;
    let is_overdue =
        job.facts.priority > 0 || waited_s > PATIENCE * remaining.total_s / least + PATIENCE_S;
    let restart_factor = input.state.restart_cost_factor(job);
    let speed_min = job.facts.deadline.map_or(0.0, |deadline| {
        let window_s = deadline.since(input.now()).as_secs_f64();
        let restart_s =
            restart_factor * curve.sizes.iter().map(|size| size.restart_s).fold(0.0, f64::max);
        // With time for one change of size; else without; else the deadline is lost.
        let speeds = [window_s - restart_s, window_s].map(|window_s| work / window_s.max(1e-9));
        let possible =
            |speed: &f64| *speed > 0.0 && window_s > restart_s && *speed <= curve.speed_max();
        speeds.into_iter().find(possible).unwrap_or(0.0)
    });
    // A job that has not run has its promise from its start on.
    let promise = match elastic.held {
        Some(gpus) => {
            input.limits.promises.of(elastic.key, job, (gpus, job.state.gpus()), input.now())
        }
        None => input.limits.promises.known(elastic.key).copied(),
    };
    let promised = promise.and_then(|promise| promise.least_rate(elastic.points));
    let promised = promised.map_or(0.0, |rate| rate / curve.unit).min(curve.speed_max());
    let speed_min = speed_min.max(promised);
    let kept = elastic.held.and_then(|gpus| curve.sizes.iter().find(|size| size.gpus == gpus));
    let is_too_slow = kept.is_some_and(|size| size.speed_max() < speed_min);
    // It keeps its size to its end, when prices may be higher.
    let keeps_size = !job.facts.can_stop && elastic.fixed_size.is_none();
    let kept_max = keeps_size.then(|| curve.size_to_keep(KEPT_SIZE_PRICE, speed_min));
    let gpus_max = kept_max.map_or(elastic.gpus_max, |most| most.min(elastic.gpus_max));
    Bidder {
        key: elastic.key,
        job,
        curve: index,
        class: 0,
        work_is_known: remaining.is_known,
        work,
        work_step: work_step as i32,
        age_step: age_step(age_s),
        age_s,
        total_work: remaining.total_s,
        gpus_max,
        fixed_size: elastic.fixed_size,
        gpus_min: elastic.fixed_size.unwrap_or(0),
        speed_min: if is_too_slow { 0.0 } else { speed_min },
        is_promised: promise.is_some(),
        weight: promise.as_ref().map_or(1.0, Promise::weight),
        held: kept.map(|size| size.gpus),
        tried_sizes: elastic.tried_sizes.clone(),
        restart_factor,
        stops: job.restarts.stops_since(input.now(), DAY).count(),
        restart_rules: input.limits.restarts,
        is_overdue,
    }
}

/// Discounts the age of jobs of unknown length. The estimate rests on completed jobs, which are the shorter
/// ones at first, so the discount grows with their work relative to the work of the jobs present.
fn discount_estimated_ages(input: PlanningInput<'_>, bidders: &mut [Bidder<'_>]) {
    let history = input.state.work_history();
    let completed_s = history.len() as f64 * history.mean_s().unwrap_or(0.0);
    let estimated = bidders.iter().filter(|bidder| !bidder.work_is_known);
    let present_s: f64 = estimated.map(|bidder| bidder.total_work).sum();
    let weight = 1.0 - ESTIMATED_AGE * completed_s / (completed_s + present_s).max(1.0);
    for bidder in bidders.iter_mut().filter(|bidder| !bidder.work_is_known) {
        bidder.age_step = age_step(bidder.age_s * weight);
    }
}

/// Sets the least sizes of jobs that must get GPUs, while `supply` lasts: jobs with deadlines by deadline, then
/// overdue jobs by arrival. Below a power limit each of them does the most work per joule at the speed that its
/// deadline needs.
fn set_least_sizes(
    bidders: &mut [Bidder<'_>],
    curves: &[OperatingCurve<'_>],
    supply: MarketSupply,
) {
    let gpus = supply.gpus.saturating_sub(fixed_gpus(bidders));
    let mut left = MarketSupply { gpus, ..supply };
    let must = |bidder: &Bidder<'_>| bidder.speed_min > 0.0 || bidder.is_overdue;
    let mut first: Vec<usize> = (0..bidders.len()).filter(|&i| must(&bidders[i])).collect();
    first.sort_by_key(|&i| {
        let deadline = bidders[i].job.facts.deadline.filter(|_| bidders[i].speed_min > 0.0);
        (!bidders[i].is_promised, deadline.is_none(), deadline, bidders[i].job.arrival)
    });
    for index in first {
        let bidder = &mut bidders[index];
        let sizes = &curves[bidder.curve].sizes;
        if let Some(size) = bidder.fixed_size {
            let fixed = sizes.iter().find(|each| each.gpus == size);
            if fixed.is_none_or(|each| each.speed_max() < bidder.speed_min) {
                bidder.speed_min = 0.0;
            }
            continue;
        }
        let fast_enough = sizes.iter().find(|size| size.speed_max() >= bidder.speed_min);
        if let Some(size) = fast_enough.filter(|_| bidder.is_promised) {
            left.take(size.gpus, 0.0);
            bidder.gpus_min = size.gpus;
            continue;
        }
        let fitting = fast_enough.filter(|size| size.gpus <= left.gpus.min(bidder.gpus_max));
        let least = fitting.and_then(|size| size.most_efficient_from(bidder.speed_min));
        let least = least.filter(|_| supply.watts.is_some());
        let watts = least.map_or(0.0, |point| point.watts);
        let Some(size) = fitting.filter(|size| left.take(size.gpus, watts)) else {
            // Without room it competes like every other job.
            bidder.speed_min = 0.0;
            continue;
        };
        bidder.gpus_min = size.gpus;
        bidder.speed_min = bidder.speed_min.max(least.map_or(0.0, |point| point.speed));
    }
}

/// GPUs of jobs that cannot stop.
pub(super) fn fixed_gpus(bidders: &[Bidder<'_>]) -> u32 {
    bidders.iter().filter_map(|bidder| bidder.fixed_size).sum()
}

/// The value of getting no GPUs.
pub(super) fn unserved(gpus_min: u32, prices: Prices) -> f64 {
    if gpus_min > 0 { -UNSERVED_PENALTY * (1.0 + prices.gpu) } else { 0.0 }
}

/// The value of each size to a job at the value of its work, and the cost of each change.
pub(super) fn knapsack_item(
    bidder: &Bidder<'_>,
    curve: &OperatingCurve<'_>,
    bid: &Bid,
    prices: Prices,
) -> Item {
    let count = 1 + curve.sizes.len();
    let (mut choices, mut costs) = (Vec::with_capacity(count), Vec::with_capacity(count));
    choices.push(Choice { gpus: 0, value: unserved(bidder.gpus_min, prices) });
    costs.push(0.0);
    for size in curve.sizes.iter().filter(|size| bidder.may_have(size.gpus)) {
        let Some((value, cost)) = bidder.start(curve, size, bid, prices) else { continue };
        choices.push(Choice { gpus: size.gpus, value });
        costs.push(cost);
    }
    let changes = ChangeCost { costs, has_run: bidder.has_run() };
    let meant = bidder.job.intended_gpus().unwrap_or(0);
    let present = choices.iter().position(|choice| choice.gpus == meant).unwrap_or(0);
    let cost_from_now = (0..choices.len()).map(|to| changes.between(present, to)).collect();
    Item { choices, cost_from_now, present, changes: vec![changes] }
}

/// The same within a power limit: each size with each of its settings, less the cost of the change to it. With
/// `kept` it has that size alone.
pub(super) fn power_item(
    bidder: &Bidder<'_>,
    curve: &OperatingCurve<'_>,
    bid: &Bid,
    prices: Prices,
    kept: Option<u32>,
) -> power_knapsack::Item {
    let has = |gpus: u32| kept.map_or_else(|| bidder.may_have(gpus), |kept| kept == gpus);
    let sizes = || curve.sizes.iter().filter(|size| has(size.gpus));
    let meant = bidder.job.intended_gpus();
    let cost = |size: &SizeCurve| bidder.start(curve, size, bid, prices).map_or(0.0, |it| it.1);
    let left = || curve.sizes.iter().find(|size| Some(size.gpus) == meant).map_or(0.0, cost);
    let leaving = left();
    let mut item = power_knapsack::Item::default();
    for size in sizes() {
        let is_same = Some(size.gpus) == meant;
        let is_free = is_same || (meant.is_none() && !bidder.has_run());
        let change = if is_free { 0.0 } else { cost(size).max(leaving) };
        let add = |(point, value): (CurvePoint, f64)| power_knapsack::Choice {
            gpus: size.gpus,
            watts: point.watts,
            value: value - change,
            setting: point.setting,
        };
        item.choices.extend(bidder.settings(curve, size, bid, prices).into_iter().map(add));
    }
    item.present = meant.and_then(|gpus| {
        let setting = match &bidder.job.state {
            State::Running { setting, .. } => Some(*setting),
            State::Queued | State::Stopping { .. } => None,
        };
        let same = item.choices.iter().enumerate().filter(|(_, choice)| choice.gpus == gpus);
        let exact = same.clone().find(|(_, choice)| Some(choice.setting) == setting);
        exact.or_else(|| same.clone().next()).map(|(at, _)| at)
    });
    item.none = kept.is_none().then(|| unserved(bidder.gpus_min, prices) - leaving);
    item
}

/// The cost of a start: the share of the earnings at that size which the restart takes.
pub(super) fn change_cost(earnings: f64, restart_s: f64, done_in_s: f64) -> f64 {
    earnings.max(0.0) * (restart_s / done_in_s.min(SIZE_LASTS_S)).min(CHANGE_COST_MAX)
}
