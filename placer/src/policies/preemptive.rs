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

use wattle_common::job::GpuSetting;

use crate::allocation::first_fit::{never, suits};
use crate::allocation::transition::{Target, arrange_some, has_its_own};
use crate::plan::input::PlanningInput;
use crate::plan::reason::Reason;
use crate::plan::{Blocked, Decision, Plan};
use crate::policies::remaining_capacity::Left;
use crate::state::gpu_set::{JobKey, ones};
use crate::state::job::{Job, State};

/// Nodes alike, and what they could hold if nobody were on them.
struct Class<'a> {
    kind: &'a str,
    gpus: u32,
    memory_mib: u64,
    /// Nodes of which every GPU answers.
    whole: u32,
    /// Most GPUs that answer on one of them.
    most: u32,
}

/// What the cluster could hold if it were empty and awake.
pub(crate) struct Places<'a> {
    classes: Vec<Class<'a>>,
}

impl<'a> Places<'a> {
    pub(crate) fn of(input: PlanningInput<'a>) -> Self {
        let mut places = Self { classes: Vec::new() };
        for node in input.state.nodes() {
            let facts = &node.facts;
            let healthy = facts.healthy.count_ones();
            let alike = |class: &&mut Class<'_>| {
                class.gpus == facts.gpus
                    && class.memory_mib == facts.memory_mib
                    && class.kind == facts.gpu_type
            };
            let whole = u32::from(facts.gpus > 0 && facts.healthy == ones(facts.gpus));
            match places.classes.iter_mut().find(alike) {
                Some(class) => {
                    class.whole += whole;
                    class.most = class.most.max(healthy);
                }
                None => places.classes.push(Class {
                    kind: &facts.gpu_type,
                    gpus: facts.gpus,
                    memory_mib: facts.memory_mib,
                    whole,
                    most: healthy,
                }),
            }
        }
        places
    }

    /// Whether an empty cluster could start the job on as few GPUs as it asks for.
    pub(crate) fn hold(&self, job: &Job) -> bool {
        let asked = job.facts.request.min;
        let memory = job.facts.memory_mib_max.unwrap_or(0);
        let kind = job.facts.gpu_type.as_deref();
        let suits = |class: &&Class<'_>| {
            class.memory_mib >= memory && kind.is_none_or(|kind| kind == class.kind)
        };
        // What one node can hold is never spread over several.
        let (mut inside, mut whole) = (false, false);
        for class in self.classes.iter().filter(suits) {
            if class.most >= asked {
                return true;
            }
            inside |= class.gpus >= asked;
            whole |= class.whole * class.gpus >= asked;
        }
        whole && !inside
    }
}

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
    let empty = Places::of(input);
    let mut left = Left::of(input);
    let mut taken: Vec<(JobKey, u32)> = Vec::new();
    let mut kinds: Vec<&str> = Vec::new();
    let mut rejected = Vec::new();
    let mut open: Vec<Asks<'_>> = Vec::new();
    let mut asked = 0;
    for (key, job) in input.state.running() {
        let gpus = match &job.state {
            State::Running { on, .. } if !job.facts.can_stop => {
                let gpus = on.gpu_count();
                left.keeps(input, job, gpus);
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
        left.awaits(input, job, gpus);
        open.push(Asks { job, key, gpus, is_taken: false });
    }
    for (key, job) in input.state.queue() {
        if empty.hold(job) {
            let gpus = job.facts.request.min;
            asked += gpus;
            left.awaits(input, job, gpus);
            open.push(Asks { job, key, gpus, is_taken: false });
        } else if let Some(reason) = never(input.state, job) {
            rejected.push(Decision::Reject { job: key, reason });
        }
    }
    let mut short = asked > left.all();
    let mut first_passed = None;
    // Where everybody is served, rank makes no difference. A long queue is sorted only as far as
    // there is something left to serve.
    let matters = short || left.several_kinds();
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
        if let Some(kind) = left.take(input, job, gpus) {
            taken.push((key, gpus));
            kinds.push(kind);
            open[at].is_taken = true;
            continue;
        }
        short = true;
        if first_passed.is_none() && job.state == State::Queued {
            first_passed = Some((key, taken.len() as u32));
        }
        if first_passed.is_some() && left.all() == 0 {
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
        let open = !has_its_own(input, key, gpus, kind);
        open.then(|| Target { kind: kind.to_owned(), ..alone(key, gpus) })
    };
    let open: Vec<Target> = taken.iter().zip(kinds).filter_map(target).collect();
    // At most instants nothing changes.
    if open.is_empty() && losers.is_empty() {
        return Plan::default();
    }
    let before = taken.len() as u32;
    arrange_some(input, &open, losers, &Reason::Outranked { before })
}

/// So many GPUs of any one kind for one job.
pub(crate) fn alone(job: JobKey, gpus: u32) -> Target {
    Target {
        jobs: vec![job],
        gpus,
        kind: String::new(),
        setting: GpuSetting::DEFAULT,
        reason: Reason::Share { gpus },
    }
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
