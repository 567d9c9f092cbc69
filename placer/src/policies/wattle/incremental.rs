//! Incremental rounds: the last allocation stays in force, and new jobs are served from free GPUs.
//!
//! One event among many jobs changes prices by about one part in the number of jobs. So full rounds are
//! [`INTERVAL_PER_JOB_S`] per job apart, at most [`INTERVAL_MAX_S`]; among few jobs every event leads to a
//! full round. In between, jobs of the last allocation get their GPUs and new jobs bid for free GPUs at the
//! last price. A new job that needs more than a bid (it has a deadline, priority or no surface) leads to a
//! full round at once, and so do many departures while a job waits: the last price no longer holds. Below a power
//! limit new jobs get only power that is left.
//!
//! While neither GPUs nor power are scarce and no job waits, a job's best size and setting do not depend on other jobs.
//! A full round then improves only pairs and settings of jobs with new measurements, so full rounds are up to
//! [`CALM_INTERVAL_MAX_S`] apart.
//!
//! Solving again at the instant of a full round always takes this path, so a plan that was applied leaves
//! nothing to do.

use std::collections::{BTreeMap, BTreeSet};

use wattle_common::Timestamp;
use wattle_common::job::GpuSetting;

use crate::allocation::capacity::{FreeCapacity, Scope};
use crate::allocation::feasibility::{infeasible, some_node_suits};
use crate::allocation::transition::{Target, plan_partial_transition};
use crate::plan::input::{PlanningInput, PolicyCache};
use crate::plan::reason::Reason;
use crate::plan::{Blocked, Plan};
use crate::policies::elastic::ElasticJob;
use crate::policies::wattle::REVIEW_INTERVAL;
use crate::policies::wattle::allocation_cache::{
    AllocationCache, Conditions, Grants, NextFullRound,
};
use crate::policies::wattle::bidders::single_bidder;
use crate::policies::wattle::market::Market;
use crate::policies::wattle::prices::EnergyPrice;
use crate::policies::wattle::upper_envelope::OperatingCurve;
use crate::power::energy_cost::Charge;
use crate::power::headroom::total_w;
use crate::power::model::expected_power;
use crate::state::gpu_set::JobKey;
use crate::state::job::{Job, State};
use crate::state::job_forecast::is_unmeasured;
use crate::state::operating_points::OperatingPoints;
use wattle_common::time::span_s;

/// The interval between full rounds, s per job and at most. At a minute, a job that finds no free GPU waits
/// half a minute longer on average, of completion times of hours.
const INTERVAL_PER_JOB_S: f64 = 0.5;
const INTERVAL_MAX_S: f64 = 60.0;
/// The same while the last full round found neither GPUs nor power scarce, and no job waits or has a deadline.
const CALM_INTERVAL_PER_JOB_S: f64 = 2.5;
const CALM_INTERVAL_MAX_S: f64 = 300.0;
/// Up to this many jobs every event leads to a full round.
const FEW_JOBS: usize = 32;
/// The last allocation ends when this share of its jobs has left, and at least `DEPARTED_MIN`, while a job waits.
/// Full rounds are then few even if all jobs leave one by one.
const MANY_DEPARTED: f64 = 0.25;
const DEPARTED_MIN: usize = 8;

/// When full rounds follow one at `now` among this many jobs.
pub(super) fn next_full_round(now: Timestamp, jobs: usize, is_calm: bool) -> NextFullRound {
    let after = |per_job_s: f64, most_s: f64| {
        let interval_s = if jobs <= FEW_JOBS { 0.0 } else { (per_job_s * jobs as f64).min(most_s) };
        now + span_s(interval_s)
    };
    let while_a_job_waits = after(INTERVAL_PER_JOB_S, INTERVAL_MAX_S);
    let calm = after(CALM_INTERVAL_PER_JOB_S, CALM_INTERVAL_MAX_S);
    let while_no_job_waits = if is_calm { calm } else { while_a_job_waits };
    NextFullRound { while_a_job_waits, while_no_job_waits }
}

/// The arrival number without the priority.
fn arrival_number(job: &Job) -> u64 {
    job.arrival & (u64::MAX >> 8)
}

/// Whether a queued job must not wait for the next full round.
fn is_urgent(job: &Job) -> bool {
    let has_surface = job.all_operating_points().any(|points| !points.points().is_empty());
    !has_surface || job.facts.deadline.is_some() || job.facts.priority > 0
}

/// The plan while the last allocation is in force; `None` if a full round is due.
pub(super) fn solve_incremental(input: PlanningInput<'_>) -> Option<Plan> {
    let cache = input.cache.filter(|cache| cache.is_valid_at(input.now()))?;
    let cache = cache.get::<AllocationCache>()?;
    let now = input.now();
    let until = |waits: bool| {
        if waits {
            cache.next_full_round.while_a_job_waits
        } else {
            cache.next_full_round.while_no_job_waits
        }
    };
    let in_force = |waits: bool| cache.at <= now && now < until(waits);
    if !(in_force(false) || now == cache.at) || cache.conditions != Conditions::of(input) {
        return None;
    }
    let progress = Progress::of(input, cache);
    let mut newcomers: Vec<(JobKey, &Job)> = Vec::new();
    let mut first_waiting: Option<JobKey> = None;
    let mut is_urgent_waiting = false;
    for (key, job) in input.state.queue() {
        if progress.awaiting.contains(&key) {
            continue;
        }
        first_waiting = first_waiting.or(Some(key));
        is_urgent_waiting |= is_urgent(job);
        if arrival_number(job) >= cache.arrivals {
            newcomers.push((key, job));
        }
    }
    let changed = progress.departed > 0
        || input.state.surface_revision() != cache.surface_revision
        || input.state.job_count() != cache.jobs
        || !newcomers.is_empty();
    let is_full_round_due = is_urgent_waiting
        || !in_force(false)
        || (first_waiting.is_some() && progress.has_many_departures());
    if progress.is_void || (changed && is_full_round_due) {
        return None;
    }
    let added = serve_newcomers(input, cache, &progress, &newcomers)?;
    if !added.is_empty() {
        let served: BTreeSet<JobKey> =
            added.iter().flat_map(|target| &target.jobs).copied().collect();
        let has_target = |key: &JobKey| progress.awaiting.contains(key) || served.contains(key);
        first_waiting = input.state.queue().map(|(key, _)| key).find(|key| !has_target(key));
    }
    let waits = first_waiting.is_some();
    if waits && !in_force(true) && (changed || now != cache.at) {
        return None;
    }
    let before = cache.grants.iter().map(|grants| grants.len()).sum::<usize>() as u32;
    let mut next_cache = input.cache.cloned();
    if !added.is_empty() {
        let mut next = AllocationCache::clone(cache);
        next.mark_changed();
        next.grants.push(Grants::new(input.state, added.clone()));
        next_cache = Some(PolicyCache::new(next));
    }
    let mut open = progress.open;
    open.extend(added);
    let mut plan = if open.is_empty() {
        Plan::default()
    } else {
        plan_partial_transition(input, &open, &[], &Reason::Outranked { before })
    };
    plan.cache = next_cache;
    plan.power_price = cache.power_price;
    let outranked = |job| Blocked { job, reason: Reason::Outranked { before } };
    plan.blocked = plan.blocked.or_else(|| first_waiting.map(outranked));
    plan.again_at = if changed {
        Some(until(waits))
    } else {
        let is_reviewed = cache.estimates_work || plan.blocked.is_some();
        is_reviewed.then(|| cache.at + REVIEW_INTERVAL)
    };
    Some(plan)
}

/// How far the last allocation has been carried out.
struct Progress {
    /// Number of its jobs, and of those that have left.
    jobs: usize,
    departed: usize,
    /// The targets that are not reached yet, with the jobs that are still present.
    open: Vec<Target>,
    /// Whether two jobs can no longer share as allocated.
    is_void: bool,
    /// Queued jobs that wait for their GPUs.
    awaiting: BTreeSet<JobKey>,
    /// GPUs that jobs wait for, by type.
    awaited: BTreeMap<String, u32>,
}

impl Progress {
    fn of(input: PlanningInput<'_>, cache: &AllocationCache) -> Self {
        let mut progress = Self {
            jobs: 0,
            departed: 0,
            open: Vec::new(),
            is_void: false,
            awaiting: BTreeSet::new(),
            awaited: BTreeMap::new(),
        };
        let targets = cache.grants.iter().flat_map(|grants| grants.members(input.state));
        for (target, members) in targets {
            let (mut awaits, mut differs) = (false, false);
            for (key, job) in members.clone() {
                progress.jobs += 1;
                let Some(job) = job else {
                    progress.departed += 1;
                    continue;
                };
                match &job.state {
                    State::Running { on, setting, .. } => {
                        differs |= on.gpu_count() != target.gpus || *setting != target.setting;
                    }
                    State::Stopping { .. } => awaits = true,
                    State::Queued => {
                        awaits = true;
                        progress.awaiting.insert(key);
                    }
                }
            }
            if awaits || differs {
                let jobs: Vec<JobKey> = members.filter_map(|(key, job)| job.map(|_| key)).collect();
                progress.open.push(Target { jobs, ..target.clone() });
            }
            if awaits {
                progress.is_void |= target.jobs.len() > 1 && !memory_fits(input, target);
                *progress.awaited.entry(target.gpu_type.clone()).or_default() += target.gpus;
            }
        }
        progress
    }

    fn has_many_departures(&self) -> bool {
        let share = self.departed as f64 / self.jobs.max(1) as f64;
        self.departed >= DEPARTED_MIN && share >= MANY_DEPARTED
    }
}

/// Whether the memory of co-tenants is known and fits every GPU of the type.
fn memory_fits(input: PlanningInput<'_>, target: &Target) -> bool {
    let jobs = target.jobs.iter().filter_map(|&key| input.state.job(key));
    let needed: Option<u64> = jobs.map(Job::memory_mib_max).sum();
    let nodes = input.state.nodes().iter().filter(|node| node.facts.gpu_type == target.gpu_type);
    let least = nodes.map(|node| node.facts.memory_mib).min().flatten();
    needed.zip(least).is_some_and(|(needed, least)| needed <= least)
}

/// The targets of new jobs, from idle GPUs that no job awaits, at the last prices; `None` if a full round
/// is due.
fn serve_newcomers(
    input: PlanningInput<'_>,
    cache: &AllocationCache,
    progress: &Progress,
    newcomers: &[(JobKey, &Job)],
) -> Option<Vec<Target>> {
    let mut targets = Vec::new();
    if newcomers.is_empty() {
        return Some(targets);
    }
    let mut free = FreeCapacity::new(input.state, Scope::Idle).type_counts();
    for (gpu_type, &gpus) in &progress.awaited {
        free.withhold(gpu_type, gpus);
    }
    let mut spare_w = spare_w(input, &progress.open);
    for &(key, job) in newcomers {
        if infeasible(input.state, job).is_some() {
            return None;
        }
        let known = || job.all_operating_points().map(|points| &**points);
        if !known().any(|points| cache.markets.contains_key(&points.gpu_type)) {
            return None;
        }
        // A job that cannot stop keeps its first size, so only a full round serves it.
        if !job.facts.can_stop {
            continue;
        }
        let bids = known().filter_map(|points| {
            bid_for_free(input, cache, (key, job), points, free.of_type(&points.gpu_type))
        });
        // Of several types the one with the earliest completion.
        let earliest = bids.reduce(|a, b| if b.done_in_s < a.done_in_s { b } else { a });
        if let Some(FreeBid { target, drawn_w, .. }) = earliest
            && drawn_w <= spare_w
        {
            spare_w -= drawn_w;
            free.take(&target.gpu_type, target.gpus);
            targets.push(target);
        }
    }
    Some(targets)
}

/// The power below all limits that neither the running jobs draw nor those that await these targets,
/// watts; infinite without a limit.
fn spare_w(input: PlanningInput<'_>, open: &[Target]) -> f64 {
    let Some(limit_w) = total_w(input) else { return f64::INFINITY };
    let awaited_w = |target: &Target| {
        let charge = Charge::on(input, &target.gpu_type);
        let of_job = |&key: &JobKey| {
            let job = input.state.job(key).filter(|job| job.state == State::Queued)?;
            let point =
                job.operating_points_on(&target.gpu_type)?.point(target.gpus, target.setting)?;
            Some(charge.above_idle_w(point))
        };
        target.jobs.iter().filter_map(of_job).sum::<f64>()
    };
    let awaited_w: f64 = open.iter().map(awaited_w).sum();
    limit_w - expected_power(input).as_w() - awaited_w
}

/// The bid of a new job for free GPUs.
struct FreeBid {
    /// The time to its completion, s.
    done_in_s: f64,
    target: Target,
    /// What its GPUs draw above idle, watts.
    drawn_w: f64,
}

/// The bid of a new job for free GPUs of one type at the last prices.
fn bid_for_free(
    input: PlanningInput<'_>,
    cache: &AllocationCache,
    (key, job): (JobKey, &Job),
    points: &OperatingPoints,
    free: u32,
) -> Option<FreeBid> {
    let cleared = cache.markets.get(&points.gpu_type).filter(|_| free > 0)?;
    if !some_node_suits(input.state, job, &points.gpu_type) {
        return None;
    }
    let charge = Charge::on(input, &points.gpu_type);
    let energy = EnergyPrice::of(input);
    let curve =
        OperatingCurve::new(points, points.unit_rate()?, charge, energy, cleared.largest_set)?;
    let elastic = ElasticJob::new(input, key, job, points);
    let (bidder, mut class) = single_bidder(input, &elastic, &curve);
    class.gpus_max = free.min(elastic.gpus_max);
    let rules = cleared.rules;
    let mut market = Market::new(vec![curve], vec![class], rules);
    market.set_tau(rules.forecast.tau_s);
    let bid = market.bid(&market.classes[0], cleared.prices);
    let curve = &market.curves[0];
    let size = curve.sizes.iter().find(|size| size.gpus == bid.gpus)?;
    let joule = curve.joule(cleared.prices);
    let best = size.best_point(bid.work_price, joule.total(), bidder.speed_min)?;
    // Where power has a price, a job without a measurement starts within what the limit leaves.
    let is_at_default = is_unmeasured(job) && cleared.prices.power <= 0.0;
    let chosen = size.default_point().filter(|_| is_at_default).unwrap_or(best);
    let value = best.value(bid.work_price, joule.energy);
    let target = Target {
        jobs: vec![key],
        gpus: bid.gpus,
        gpu_type: points.gpu_type.clone(),
        setting: if is_at_default { GpuSetting::DEFAULT } else { chosen.setting },
        reason: Reason::Market {
            gpus: bid.gpus,
            is_only_size: job.facts.request.is_one_size(),
            value,
            gpu_price: cleared.prices.gpu,
            power_price: cache.power_price,
        },
    };
    let drawn_w = chosen.watts - f64::from(bid.gpus) * charge.share_w();
    Some(FreeBid { done_in_s: bid.done_in_s, target, drawn_w })
}
