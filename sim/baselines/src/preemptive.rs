//! Preemptive policies with fixed sizes: jobs are served in order of rank.
//!
//! Jobs get GPUs in the order of their rank as long as GPUs are left. A job that does not fit is passed over,
//! and smaller ones behind it may run. A running job that gets none is stopped. GPUs are counted per type over
//! the entire cluster, asleep or awake ([`wattle_placer::allocation::capacity::TypeCounts`]); jobs without GPUs
//! are then placed by [`wattle_placer::allocation::transition`]. A running job that cannot stop is served before
//! all others. A job that no set of healthy nodes could hold waits and is not counted.
//!
//! Of jobs with equal rank a running one should come before a queued one. Then the same jobs are served when
//! the plan is made again.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use wattle_placer::allocation::capacity::{FreeCapacity, Scope};
use wattle_placer::allocation::feasibility::{HealthyCluster, infeasible};
use wattle_placer::allocation::transition::{Target, is_in_place, plan_partial_transition};
use wattle_placer::plan::input::PlanningInput;
use wattle_placer::plan::reason::Reason;
use wattle_placer::plan::{Blocked, Decision, Plan};
use wattle_placer::state::gpu_set::JobKey;
use wattle_placer::state::job::{Job, State};

/// A job that requests GPUs, or those it has.
struct Request<'a> {
    job: &'a Job,
    key: JobKey,
    gpus: u32,
    is_served: bool,
}

/// The outcome of a round.
pub(crate) struct Served {
    pub(crate) plan: Plan,
    /// The jobs that get GPUs, with their numbers.
    pub(crate) served: Vec<(JobKey, u32)>,
    /// Whether some job was passed over.
    pub(crate) is_short: bool,
}

/// Serves jobs in the order of priority, then of `rank`, then of arrival.
pub(crate) fn serve<R: Ord>(input: PlanningInput<'_>, rank: impl Fn(&Job) -> R) -> Served {
    let healthy = HealthyCluster::of(input.state);
    let mut free = FreeCapacity::new(input.state, Scope::All).type_counts();
    // Jobs with their GPUs and GPU type.
    let mut served: Vec<(JobKey, u32)> = Vec::new();
    let mut types: Vec<&str> = Vec::new();
    let mut rejected = Vec::new();
    let mut requests: Vec<Request<'_>> = Vec::new();
    for (key, job) in input.state.running() {
        let gpus = match &job.state {
            State::Running { on, .. } if !job.facts.can_stop => {
                let gpus = on.gpu_count();
                free.take_kept(input.state, job, gpus);
                served.push((key, gpus));
                types.push("");
                continue;
            }
            State::Running { on, .. } => on.gpu_count(),
            // It was stopped to be moved, and is served as if it ran.
            State::Stopping { .. } | State::Queued => match job.next_gpus {
                Some(gpus) => gpus,
                None => continue,
            },
        };
        requests.push(Request { job, key, gpus, is_served: false });
    }
    for (key, job) in input.state.queue() {
        if healthy.could_start(job) {
            let gpus = job.facts.request.min;
            requests.push(Request { job, key, gpus, is_served: false });
        } else if let Some(reason) = infeasible(input.state, job) {
            rejected.push(Decision::Reject { job: key, reason });
        }
    }
    requests.iter().for_each(|request| free.expect(input.state, request.job, request.gpus));
    let demand: u32 = requests.iter().map(|request| request.gpus).sum();
    let mut is_short = demand > free.total();
    let mut first_passed = None;
    // If every job is served, the rank is irrelevant. A long queue is sorted only as far as GPUs last.
    let rank_matters = is_short || free.has_several_types();
    let mut groups: BTreeMap<_, Vec<(u64, usize)>> = BTreeMap::new();
    for (index, Request { job, .. }) in requests.iter().enumerate() {
        let group = rank_matters.then(|| (Reverse(job.facts.priority), rank(job)));
        groups.entry(group).or_default().push((job.arrival, index));
    }
    let ranked = groups.into_values().flat_map(|mut group| {
        group.sort();
        group
    });
    for (_, index) in ranked {
        let Request { job, key, gpus, .. } = requests[index];
        if let Some(gpu_type) = free.take_for(input.state, job, gpus) {
            served.push((key, gpus));
            types.push(gpu_type);
            requests[index].is_served = true;
            continue;
        }
        is_short = true;
        if first_passed.is_none() && job.state == State::Queued {
            first_passed = Some((key, served.len() as u32));
        }
        if first_passed.is_some() && free.total() == 0 {
            break;
        }
    }
    let stops = |request: &&Request<'_>| {
        !request.is_served && matches!(request.job.state, State::Running { .. })
    };
    let stopped: Vec<JobKey> = requests.iter().filter(stops).map(|request| request.key).collect();
    let mut plan = plan_for(input, &served, &types, &stopped);
    plan.decisions.extend(rejected);
    if plan.blocked.is_none() {
        let outranked = |(job, before)| Blocked { job, reason: Reason::Outranked { before } };
        plan.blocked = first_passed.map(outranked);
    }
    Served { plan, served, is_short }
}

/// The plan that places the served jobs and stops others.
fn plan_for(
    input: PlanningInput<'_>,
    served: &[(JobKey, u32)],
    types: &[&str],
    stopped: &[JobKey],
) -> Plan {
    let target = |(&(key, gpus), &gpu_type): (&(JobKey, u32), &&str)| {
        let is_open = !is_in_place(input, key, gpus, gpu_type);
        is_open.then(|| Target { gpu_type: gpu_type.to_owned(), ..Target::exclusive(key, gpus) })
    };
    let open: Vec<Target> = served.iter().zip(types).filter_map(target).collect();
    // At most instants nothing changes.
    if open.is_empty() && stopped.is_empty() {
        return Plan::default();
    }
    let before = served.len() as u32;
    plan_partial_transition(input, &open, stopped, &Reason::Outranked { before })
}
