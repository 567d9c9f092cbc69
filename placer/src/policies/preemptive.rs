//! What preemptive policies over sizes as asked share: whoever ranks first is served first.
//!
//! Jobs are taken in the order of their rank as long as the GPUs last; one that does not fit is
//! passed over, and smaller ones behind it may go. Who runs and is not taken stops. GPUs are counted
//! over the whole cluster, asleep or awake, each kind for itself ([`crate::policies::remaining_capacity`]), and
//! [`crate::allocation::transition`] finds the places of those who have none yet. A running job
//! that cannot stop is taken before all others; one that no set of healthy nodes could hold waits
//! and takes nothing from anybody.
//!
//! Among equals a job that runs should rank before one that waits: then what was taken is taken
//! again when the plan is made anew, whatever was started in between.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::allocation::capacity::{FreeCapacity, Scope};
use crate::allocation::feasibility::{HealthyCluster, infeasible, suits};
use crate::allocation::transition::{Target, is_in_place, plan_partial_transition};
use crate::plan::input::PlanningInput;
use crate::plan::reason::Reason;
use crate::plan::{Blocked, Decision, Plan};
use crate::state::gpu_set::JobKey;
use crate::state::job::{Job, State};

/// A job that asks for GPUs, or for those that it has.
struct Asks<'a> {
    job: &'a Job,
    key: JobKey,
    gpus: u32,
    is_taken: bool,
}

/// What came of it.
pub(crate) struct Served {
    pub(crate) plan: Plan,
    /// Who was taken, with how many GPUs.
    pub(crate) taken: Vec<(JobKey, u32)>,
    /// Whether anybody was passed over.
    pub(crate) short: bool,
}

/// Serves everybody in the order of priority, then of `rank`, then of arrival.
pub(crate) fn serve<R: Ord>(input: PlanningInput<'_>, rank: impl Fn(&Job) -> R) -> Served {
    let empty = HealthyCluster::of(input.state);
    let mut left = FreeCapacity::new(input.state, Scope::All).type_counts();
    let mut taken: Vec<(JobKey, u32)> = Vec::new();
    let mut kinds: Vec<&str> = Vec::new();
    let mut rejected = Vec::new();
    let mut open: Vec<Asks<'_>> = Vec::new();
    let mut asked = 0;
    for (key, job) in input.state.running() {
        let gpus = match &job.state {
            State::Running { on, .. } if !job.facts.can_stop => {
                let gpus = on.gpu_count();
                left.take_kept(input.state, job, gpus);
                taken.push((key, gpus));
                kinds.push("");
                continue;
            }
            State::Running { on, .. } => on.gpu_count(),
            // It was stopped to be moved, and is one of those served.
            State::Stopping { .. } | State::Queued => match job.next_gpus {
                Some(gpus) => gpus,
                None => continue,
            },
        };
        asked += gpus;
        left.expect(input.state, job, gpus);
        open.push(Asks { job, key, gpus, is_taken: false });
    }
    for (key, job) in input.state.queue() {
        if empty.could_start(job) {
            let gpus = job.facts.request.min;
            asked += gpus;
            left.expect(input.state, job, gpus);
            open.push(Asks { job, key, gpus, is_taken: false });
        } else if let Some(reason) = infeasible(input.state, job) {
            rejected.push(Decision::Reject { job: key, reason });
        }
    }
    let mut short = asked > left.total();
    let mut first_passed = None;
    // Where everybody is served, rank makes no difference. A long queue is sorted only as far as
    // there is something left to serve.
    let matters = short || left.has_several_types();
    let mut groups: BTreeMap<_, Vec<(u64, usize)>> = BTreeMap::new();
    for (at, Asks { job, .. }) in open.iter().enumerate() {
        let group = matters.then(|| (Reverse(job.facts.priority), rank(job)));
        groups.entry(group).or_default().push((job.arrival, at));
    }
    let ranked = groups.into_values().flat_map(|mut group| {
        group.sort();
        group
    });
    for (_, at) in ranked {
        let Asks { job, key, gpus, .. } = open[at];
        if let Some(kind) = left.take_for(input.state, job, gpus) {
            taken.push((key, gpus));
            kinds.push(kind);
            open[at].is_taken = true;
            continue;
        }
        short = true;
        if first_passed.is_none() && job.state == State::Queued {
            first_passed = Some((key, taken.len() as u32));
        }
        if first_passed.is_some() && left.total() == 0 {
            break;
        }
    }
    let loses =
        |asks: &&Asks<'_>| !asks.is_taken && matches!(asks.job.state, State::Running { .. });
    let losers: Vec<JobKey> = open.iter().filter(loses).map(|asks| asks.key).collect();
    let mut plan = placed(input, &taken, &kinds, &losers);
    plan.decisions.extend(rejected);
    if plan.blocked.is_none() {
        let passed = |(job, before)| Blocked { job, reason: Reason::Outranked { before } };
        plan.blocked = first_passed.map(passed);
    }
    Served { plan, taken, short }
}

/// The plan that gives everybody taken a place, and stops the losers.
fn placed(
    input: PlanningInput<'_>,
    taken: &[(JobKey, u32)],
    kinds: &[&str],
    losers: &[JobKey],
) -> Plan {
    let target = |(&(key, gpus), &kind): (&(JobKey, u32), &&str)| {
        let open = !is_in_place(input, key, gpus, kind);
        open.then(|| Target { gpu_type: kind.to_owned(), ..Target::exclusive(key, gpus) })
    };
    let open: Vec<Target> = taken.iter().zip(kinds).filter_map(target).collect();
    // At most instants nothing changes.
    if open.is_empty() && losers.is_empty() {
        return Plan::default();
    }
    let before = taken.len() as u32;
    plan_partial_transition(input, &open, losers, &Reason::Outranked { before })
}

/// The least memory of the cards of `kind`, MiB.
pub(crate) fn least_memory(input: PlanningInput<'_>, kind: &str) -> Option<u64> {
    let nodes = input.state.nodes().iter().filter(|node| node.facts.gpu_type == kind);
    nodes.map(|node| node.facts.memory_mib).min()
}

/// The fewest nodes of `kind` on which a job of so many GPUs finds place.
pub(crate) fn fewest_nodes(input: PlanningInput<'_>, kind: &str, job: &Job, gpus: u32) -> u32 {
    let nodes = input.state.nodes().iter().filter(|node| node.facts.gpu_type == kind);
    let sizes = nodes.filter(|node| suits(&node.facts, job)).map(|node| node.facts.gpus);
    gpus.div_ceil(sizes.max().unwrap_or(1).max(1)).max(1)
}
