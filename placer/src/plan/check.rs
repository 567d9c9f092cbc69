//! Checks a plan against the placement rules, independently of the policies.
//!
//! The checker applies the decisions one by one to the GPUs they touch. It shares no code with the
//! policies or with first fit. A plan without violations may be carried out.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use wattle_common::GpuIndex;

use crate::plan::check_power::check_power;
use crate::plan::check_site::check_site;
use crate::plan::input::PlanningInput;
use crate::plan::{Decision, NodeDecision, Plan};
use crate::state::gpu_set::{GpuSet, JobKey, NodeGpus, NodeKey};
use crate::state::job::{Job, State};
use crate::state::job_forecast::remaining_alone;
use crate::state::node::Wakefulness;

/// A rule that a plan breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// Unknown job.
    UnknownJob(JobKey),
    /// More than one decision about a job, other than confirming it and changing its setting.
    Twice(JobKey),
    /// A job that is not queued is started or rejected.
    NotQueued(JobKey),
    /// A job that is not observed is confirmed or undone.
    NotObserved(JobKey),
    /// A job that cannot checkpoint is stopped or undone.
    CannotStop(JobKey),
    /// A job is moved or resized before it has run for ten times its restart cost.
    NotSettled(JobKey),
    /// A placement with no GPU, with a node named twice, or with an unknown node or GPU.
    NoSuchPlace(JobKey),
    /// The number of GPUs is outside the requested range.
    WrongCount {
        /// The job.
        job: JobKey,
        /// GPUs allocated.
        got: u32,
    },
    /// GPUs of several types for one job.
    MixedGpuTypes(JobKey),
    /// GPUs of another type than requested.
    WrongGpuType(JobKey),
    /// A GPU that is not healthy.
    Unhealthy {
        /// The job.
        job: JobKey,
        /// The node.
        node: NodeKey,
        /// The GPU.
        gpu: GpuIndex,
    },
    /// A GPU shared with or by an exclusive job, or by one that the site's rule does not permit to share.
    Exclusive {
        /// The job.
        job: JobKey,
        /// Its co-tenant.
        beside: JobKey,
    },
    /// More jobs on a GPU than allowed.
    TooManyTenants {
        /// The job.
        job: JobKey,
        /// Number of jobs on the GPU.
        tenants: u32,
    },
    /// The jobs' peak memory exceeds the GPU's, or is unknown for a job that shares the GPU.
    MemoryExceeded {
        /// The job.
        job: JobKey,
        /// The node.
        node: NodeKey,
        /// The GPU.
        gpu: GpuIndex,
    },
    /// A job that is not running is stopped or gets a new setting.
    NotRunning(JobKey),
    /// More than one decision about a node, or an unknown node.
    NodeTwice(NodeKey),
    /// A node that is not awake, has a job or gets one is put to sleep.
    NotIdle(NodeKey),
    /// A node that is not asleep is woken.
    NotAsleep(NodeKey),
    /// A job is placed on a node that is not awake.
    Asleep {
        /// The job.
        job: JobKey,
        /// The node.
        node: NodeKey,
    },
    /// A job without co-tenants is observed.
    NothingToObserve(JobKey),
    /// A power bound is exceeded although the plan starts a job or wakes a node within it.
    PowerExceeded {
        /// The feeder, with the lost one, or node; empty: the site.
        bound: String,
        /// Expected power, watts.
        power_w: u64,
    },
    /// Another number of nodes than the job requests, other GPU indices on one than on another, or a node
    /// outside its partition.
    WrongNodes(JobKey),
    /// The jobs of a node need more CPUs or memory than it has for them.
    HostExceeded {
        /// A job that is started there.
        job: JobKey,
        /// The node.
        node: NodeKey,
    },
    /// A job is rejected although the cluster could hold it, or not all nodes are known.
    WronglyRejected(JobKey),
}

/// Whether a running job has run for ten times its restart cost and does not complete within three times,
/// or has a deadline or a failed GPU.
fn may_move(input: PlanningInput<'_>, job: &Job) -> bool {
    let State::Running { on, since, .. } = &job.state else { return true };
    let restart_cost = input.state.restart_cost(job, on.gpu_count());
    let ends_soon = remaining_alone(input.now(), job, on.gpu_count(), on.node_count())
        .is_some_and(|left| !left.is_zero() && left < 3 * restart_cost);
    let failed =
        on.by_node.iter().any(|here| here.gpus & !input.state.node(here.node).facts.healthy != 0);
    let day = Duration::from_secs(24 * 3_600);
    let stops = job.restarts.stops.iter().filter(|at| input.now().since(**at) < day).count();
    let rules = input.limits.restarts;
    let is_elastic = job.facts.request.min < job.facts.request.max;
    let most = if is_elastic { rules.elastic_per_day_max } else { rules.per_day_max };
    let within_bound = stops < most as usize;
    failed
        || job.facts.deadline.is_some()
        || (within_bound && input.now() >= *since + 10 * restart_cost && !ends_soon)
}

/// The violations of a plan made for `input`.
#[must_use]
pub fn check(input: PlanningInput<'_>, plan: &Plan) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut decided: BTreeMap<JobKey, Vec<&Decision>> = BTreeMap::new();
    let mut added: BTreeMap<(NodeKey, GpuIndex), Vec<JobKey>> = BTreeMap::new();
    for decision in &plan.decisions {
        let key = decision.job();
        let Some(job) = input.state.job(key) else {
            found.push(Violation::UnknownJob(key));
            continue;
        };
        let before = decided.entry(key).or_default();
        if !before.iter().all(|other| are_compatible(other, decision)) {
            found.push(Violation::Twice(key));
        }
        before.push(decision);
        let queued = job.state == State::Queued;
        match decision {
            Decision::Start { on, observe, .. } => {
                if !queued {
                    found.push(Violation::NotQueued(key));
                }
                check_start(input, &mut added, key, job, on, *observe, &mut found);
            }
            Decision::Set { .. } => {
                if job.state == State::Queued {
                    found.push(Violation::NotRunning(key));
                }
            }
            Decision::Stop { .. } => {
                if !matches!(job.state, State::Running { .. }) {
                    found.push(Violation::NotRunning(key));
                }
                if !job.facts.can_stop {
                    found.push(Violation::CannotStop(key));
                }
                let moves = matches!(decision, Decision::Stop { next_gpus: Some(_), .. });
                if moves && !may_move(input, job) {
                    found.push(Violation::NotSettled(key));
                }
            }
            Decision::Undo { .. } | Decision::Confirm { .. } => {
                if job.state.trial().is_none() {
                    found.push(Violation::NotObserved(key));
                }
                if matches!(decision, Decision::Undo { .. }) && !job.facts.can_stop {
                    found.push(Violation::CannotStop(key));
                }
            }
            Decision::Reject { .. } => {
                if !queued {
                    found.push(Violation::NotQueued(key));
                }
                if !input.state.inventory_complete() || could_ever_hold(input, job) {
                    found.push(Violation::WronglyRejected(key));
                }
            }
        }
    }
    check_nodes(input, plan, &added, &mut found);
    check_power(input, plan, &mut found);
    check_site(input, plan, &mut found);
    found
}

/// Whether both decisions may concern the same job: a change of its setting with its confirmation, or with its
/// end there, until which the setting holds.
fn are_compatible(one: &Decision, other: &Decision) -> bool {
    let pair = |a: &Decision, b: &Decision| {
        let keeps_setting =
            matches!(a, Decision::Confirm { .. } | Decision::Stop { .. } | Decision::Undo { .. });
        keeps_setting && matches!(b, Decision::Set { .. })
    };
    pair(one, other) || pair(other, one)
}

fn check_nodes(
    input: PlanningInput<'_>,
    plan: &Plan,
    added: &BTreeMap<(NodeKey, GpuIndex), Vec<JobKey>>,
    found: &mut Vec<Violation>,
) {
    let mut decided = BTreeSet::new();
    for decision in &plan.nodes {
        let key = decision.node();
        let known = input.state.nodes().get(key.index());
        let Some(node) = known.filter(|_| decided.insert(key)) else {
            found.push(Violation::NodeTwice(key));
            continue;
        };
        match decision {
            NodeDecision::Sleep { .. } => {
                let used = (0..node.facts.gpus).any(|gpu| !node.tenants(gpu).is_empty());
                let allocated = added.range((key, 0)..=(key, GpuIndex::MAX)).next().is_some();
                if used || allocated || node.wakefulness != Wakefulness::Awake {
                    found.push(Violation::NotIdle(key));
                }
            }
            NodeDecision::Wake { .. } => {
                if node.wakefulness != Wakefulness::Asleep {
                    found.push(Violation::NotAsleep(key));
                }
            }
        }
    }
}

fn check_start(
    input: PlanningInput<'_>,
    added: &mut BTreeMap<(NodeKey, GpuIndex), Vec<JobKey>>,
    key: JobKey,
    job: &Job,
    on: &GpuSet,
    observe: bool,
    found: &mut Vec<Violation>,
) {
    let nodes: BTreeSet<NodeKey> = on.by_node.iter().map(|part| part.node).collect();
    let exists = |part: &NodeGpus| {
        input.state.nodes().get(part.node.index()).is_some_and(|node| {
            let highest = 64 - part.gpus.leading_zeros();
            part.gpus != 0 && highest <= node.facts.gpus
        })
    };
    if on.by_node.is_empty() || nodes.len() != on.by_node.len() || !on.by_node.iter().all(exists) {
        found.push(Violation::NoSuchPlace(key));
        return;
    }
    let got = on.gpu_count();
    if got < job.facts.request.min || got > job.facts.request.max {
        found.push(Violation::WrongCount { job: key, got });
    }
    let gpu_type = |node: &NodeKey| &input.state.node(*node).facts.gpu_type;
    if nodes.iter().any(|node| gpu_type(node) != gpu_type(&on.by_node[0].node)) {
        found.push(Violation::MixedGpuTypes(key));
    }
    let requested = job.facts.gpu_type.as_deref();
    if nodes.iter().any(|node| requested.is_some_and(|requested| requested != *gpu_type(node))) {
        found.push(Violation::WrongGpuType(key));
    }
    for &node in &nodes {
        if input.state.node(node).wakefulness != Wakefulness::Awake {
            found.push(Violation::Asleep { job: key, node });
        }
    }
    let mut shares = false;
    for (node_key, gpu) in on.gpus() {
        let node = input.state.node(node_key);
        if node.facts.healthy >> gpu & 1 == 0 {
            found.push(Violation::Unhealthy { job: key, node: node_key, gpu });
        }
        let newer = added.entry((node_key, gpu)).or_default();
        let mut memory = Some(0u64);
        let mut others = 0;
        for &other in node.tenants(gpu).iter().chain(newer.iter()) {
            others += 1;
            let Some(tenant) = input.state.job(other) else { continue };
            let permitted = |job: &Job| {
                !job.facts.exclusive && input.limits.share.permits(job.facts.consents_to_sharing)
            };
            if !permitted(job) || !permitted(tenant) {
                found.push(Violation::Exclusive { job: key, beside: other });
            }
            memory = memory.zip(tenant.memory_mib_max()).map(|(sum, more)| sum + more);
        }
        shares |= others > 0;
        if others + 1 > input.limits.tenants_max {
            found.push(Violation::TooManyTenants { job: key, tenants: others + 1 });
        }
        // On an exclusive GPU only the declared memory counts, so that a wrong prediction cannot
        // exclude a job from every GPU. On a shared GPU the memory of every job must be known.
        let needed = if others == 0 { job.facts.memory_mib_max } else { job.memory_mib_max() };
        let fits = match memory.zip(needed) {
            Some((_, alone)) if others == 0 => node.facts.may_hold(alone),
            Some((there, more)) => node.facts.holds(there + more),
            None => others == 0,
        };
        if !fits {
            found.push(Violation::MemoryExceeded { job: key, node: node_key, gpu });
        }
        newer.push(key);
    }
    if observe && !shares {
        found.push(Violation::NothingToObserve(key));
    }
}

/// Whether all nodes of one GPU type and size could hold the job if they were free.
fn could_ever_hold(input: PlanningInput<'_>, job: &Job) -> bool {
    let mut by_class: BTreeMap<(&str, u32, Option<u64>), u32> = BTreeMap::new();
    for node in input.state.nodes() {
        let facts = &node.facts;
        let class = (facts.gpu_type.as_str(), facts.gpus, facts.memory_mib);
        *by_class.entry(class).or_default() += facts.gpus;
    }
    by_class.iter().any(|(&(gpu_type, _, memory), &gpus)| {
        job.facts.gpu_type.as_deref().is_none_or(|requested| requested == gpu_type)
            && gpus >= job.facts.request.min
            && job.facts.memory_mib_max.is_none_or(|mib| memory.is_none_or(|memory| mib <= memory))
    })
}
