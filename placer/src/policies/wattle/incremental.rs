//! Between two rounds in which everybody is weighed: what was shared out stands.
//!
//! One event among many jobs moves prices by as little as one job is of all, so everybody is weighed
//! anew [`STANDS_S`] for each job after the last time, and at most [`STANDS_MAX_S`]; among few at
//! every event. Until then those who were given GPUs get them, and who comes meanwhile is served at
//! the last prices from what is free. Who asks for more than that, for a deadline, with priority or
//! since nothing is known of it yet, has everybody weighed at once.
//!
//! A plan is at rest once it is carried out: at the same instant it is only this that is asked.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use wattle_common::Timestamp;
use wattle_common::job::GpuSetting;

use crate::allocation::feasibility::{infeasible, some_node_suits};
use crate::allocation::transition::{Target, plan_partial_transition};
use crate::plan::input::{PlanningInput, PolicyCache};
use crate::plan::reason::Reason;
use crate::plan::{Blocked, Plan};
use crate::policies::elastic::ElasticJob;
use crate::policies::wattle::LOOK_AGAIN;
use crate::policies::wattle::allocation_cache::{AllocationCache, Given, Under};
use crate::policies::wattle::bidders::alone;
use crate::policies::wattle::market::{Forecast, Market};
use crate::policies::wattle::upper_envelope::{Joule, Shape};
use crate::power::energy_cost::Charge;
use crate::state::gpu_set::JobKey;
use crate::state::job::{Job, State};
use crate::state::job_forecast::is_unmeasured;
use crate::state::operating_points::OperatingPoints;

/// For how long what is shared out stands, for each job among whom it is, s. With a minute at most
/// somebody who finds no free GPU waits half of it longer, of completion times of hours.
const STANDS_S: f64 = 0.5;
const STANDS_MAX_S: f64 = 60.0;
/// Among so few it does not stand once anything happens.
const FEW: usize = 32;

/// When everybody is to be weighed again after a round among so many jobs.
pub(super) fn until(now: Timestamp, jobs: usize) -> Timestamp {
    let stands_s = if jobs <= FEW { 0.0 } else { (STANDS_S * jobs as f64).min(STANDS_MAX_S) };
    now + Duration::from_secs_f64(stands_s)
}

/// The place in the order of arrival, whatever the priority.
fn came(job: &Job) -> u64 {
    job.arrival & (u64::MAX >> 8)
}

/// Whether a job that waits is not to wait for the next time everybody is weighed.
fn is_urgent(job: &Job) -> bool {
    let known = job.menus().any(|menu| !menu.choices().is_empty());
    !known || job.facts.deadline.is_some() || job.facts.priority > 0
}

/// The plan while what was shared out last stands; `None` where everybody is to be weighed.
pub(super) fn go_on(input: PlanningInput<'_>) -> Option<Plan> {
    let standing = input.cache?.get::<AllocationCache>()?;
    let in_time = standing.at <= input.now() && input.now() < standing.until;
    if !(in_time || input.now() == standing.at) || standing.under != Under::of(input) {
        return None;
    }
    let now = Now::of(input, standing);
    let mut newcomers: Vec<(JobKey, &Job)> = Vec::new();
    let mut waits: Option<JobKey> = None;
    let mut urgent = false;
    for (key, job) in input.state.queue() {
        if now.awaiting.contains(&key) {
            continue;
        }
        waits = waits.or(Some(key));
        urgent |= is_urgent(job);
        if came(job) >= standing.arrivals {
            newcomers.push((key, job));
        }
    }
    let surfaces_changed = input.state.surface_revision() != standing.surface_revision;
    let changed = now.gone
        || surfaces_changed
        || input.state.job_count() != standing.jobs
        || !newcomers.is_empty();
    if now.is_void || (changed && (urgent || !in_time)) {
        return None;
    }
    let more = served(input, standing, &now, &newcomers)?;
    let before = standing.given.iter().map(|given| given.len()).sum::<usize>() as u32;
    let mut plan = Plan { cache: input.cache.cloned(), ..Plan::default() };
    if !more.is_empty() {
        let served: BTreeSet<JobKey> =
            more.iter().flat_map(|target| &target.jobs).copied().collect();
        let is_given = |key: &JobKey| now.awaiting.contains(key) || served.contains(key);
        waits = input.state.queue().map(|(key, _)| key).find(|key| !is_given(key));
        let mut next = AllocationCache::clone(standing);
        next.something_changed();
        next.given.push(Given::new(input.state, more.clone()));
        plan.cache = Some(PolicyCache::new(next));
    }
    let mut open = now.open;
    open.extend(more);
    if !open.is_empty() {
        let unwanted = Reason::Outranked { before };
        plan = Plan { cache: plan.cache, ..plan_partial_transition(input, &open, &[], &unwanted) };
    }
    let outranked = |job| Blocked { job, reason: Reason::Outranked { before } };
    plan.blocked = plan.blocked.or_else(|| waits.map(outranked));
    plan.again_at = if changed {
        Some(standing.until)
    } else {
        let looks = standing.look_again || plan.blocked.is_some();
        looks.then(|| standing.at + LOOK_AGAIN)
    };
    Some(plan)
}

/// How those are who were given GPUs.
struct Now {
    /// Whether one of them is there no more.
    gone: bool,
    /// What those others were given who do not have it.
    open: Vec<Target>,
    /// Whether some cannot share any more what they were given together.
    is_void: bool,
    /// Who waits for it, and how many GPUs all of them wait for, by kind.
    awaiting: BTreeSet<JobKey>,
    awaited: BTreeMap<String, u32>,
}

impl Now {
    fn of(input: PlanningInput<'_>, standing: &AllocationCache) -> Self {
        let mut now = Self {
            gone: false,
            open: Vec::new(),
            is_void: false,
            awaiting: BTreeSet::new(),
            awaited: BTreeMap::new(),
        };
        let given = standing.given.iter().flat_map(|given| given.members(input.state));
        for (target, members) in given {
            let (mut awaits, mut differs) = (false, false);
            for (key, job) in members.clone() {
                let Some(job) = job else {
                    now.gone = true;
                    continue;
                };
                match &job.state {
                    State::Running { on, setting, .. } => {
                        differs |= on.gpu_count() != target.gpus || *setting != target.setting;
                    }
                    State::Stopping { .. } => awaits = true,
                    State::Queued => {
                        awaits = true;
                        now.awaiting.insert(key);
                    }
                }
            }
            if awaits || differs {
                let jobs: Vec<JobKey> = members.filter_map(|(key, job)| job.map(|_| key)).collect();
                now.open.push(Target { jobs, ..target.clone() });
            }
            if awaits {
                now.is_void |= target.jobs.len() > 1 && !fit_together(input, target);
                *now.awaited.entry(target.gpu_type.clone()).or_default() += target.gpus;
            }
        }
        now
    }
}

/// Whether the memory of those who are to share is known, and is there on every card of the kind.
fn fit_together(input: PlanningInput<'_>, target: &Target) -> bool {
    let jobs = target.jobs.iter().filter_map(|&key| input.state.job(key));
    let needed: Option<u64> = jobs.map(Job::memory_mib_max).sum();
    let cards = input.state.nodes().iter().filter(|node| node.facts.gpu_type == target.gpu_type);
    let least = cards.map(|node| node.facts.memory_mib).min();
    needed.zip(least).is_some_and(|(needed, least)| needed <= least)
}

/// Who of those that came since is served at the last prices, from what is free and meant for
/// nobody; `None` where everybody is to be weighed.
fn served(
    input: PlanningInput<'_>,
    standing: &AllocationCache,
    now: &Now,
    newcomers: &[(JobKey, &Job)],
) -> Option<Vec<Target>> {
    let mut targets = Vec::new();
    if newcomers.is_empty() {
        return Some(targets);
    }
    let mut free: BTreeMap<&str, u32> = BTreeMap::new();
    for node in input.state.nodes() {
        let here = node.free().count_ones();
        if here > 0 {
            *free.entry(&node.facts.gpu_type).or_default() += here;
        }
    }
    for (kind, free) in &mut free {
        *free = free.saturating_sub(now.awaited.get(*kind).copied().unwrap_or(0));
    }
    for &(key, job) in newcomers {
        if infeasible(input.state, job).is_some() {
            return None;
        }
        let known = |menu: &&OperatingPoints| standing.cleared.contains_key(&menu.gpu_type);
        if !job.menus().map(|menu| &**menu).any(|menu| known(&menu)) {
            return None;
        }
        // What cannot stop keeps for good what it is given first.
        if !job.facts.can_stop {
            continue;
        }
        let offers = job.menus().map(|menu| &**menu).filter_map(|menu| {
            let free = *free.get(menu.gpu_type.as_str())?;
            offer(input, standing, (key, job), menu, free)
        });
        // Of several kinds the one on which it is done first.
        let Some((_, target)) = offers.reduce(|a, b| if b.0 < a.0 { b } else { a }) else {
            continue;
        };
        if let Some(free) = free.get_mut(target.gpu_type.as_str()) {
            *free -= target.gpus;
        }
        targets.push(target);
    }
    Some(targets)
}

/// What a newcomer takes of so many free GPUs of one kind at its last price, and in how many seconds
/// it is done with them.
fn offer(
    input: PlanningInput<'_>,
    standing: &AllocationCache,
    (key, job): (JobKey, &Job),
    menu: &OperatingPoints,
    free: u32,
) -> Option<(f64, Target)> {
    let cleared = standing.cleared.get(&menu.gpu_type).filter(|_| free > 0)?;
    if !some_node_suits(input.state, job, &menu.gpu_type) {
        return None;
    }
    let charge = Charge::on(input, &menu.gpu_type);
    let shape = Shape::new(menu, menu.unit_rate()?, charge, Joule::of(input), cleared.most)?;
    let forecast = Forecast { later: crate::policies::wattle::LATER, tau_s: cleared.tau_s };
    let (trader, mut lot) =
        alone(input, &ElasticJob { key, job, points: menu, fixed_size: None }, &shape);
    lot.most = free;
    let mut market = Market { shapes: vec![shape], lots: vec![lot], forecast };
    market.remember_for(cleared.tau_s);
    let bid = market.bid(&market.lots[0], cleared.price);
    let size = market.shapes[0].sizes.iter().find(|size| size.gpus == bid.gpus)?;
    let way = size.way(bid.work_price, trader.need)?;
    let value = way.at(bid.work_price);
    let target = Target {
        jobs: vec![key],
        gpus: bid.gpus,
        gpu_type: menu.gpu_type.clone(),
        setting: if is_unmeasured(job) { GpuSetting::DEFAULT } else { way.what },
        reason: Reason::Worth { gpus: bid.gpus, value, gpu_price: cleared.price },
    };
    Some((bid.done_in_s, target))
}
