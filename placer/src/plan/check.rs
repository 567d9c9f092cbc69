//! Says what a plan breaks, written apart from the policies that make plans.
//!
//! It follows the decisions one by one over the GPUs they touch, with rules of its own: nothing of
//! the policies or of first fit is used here. An empty answer means the plan may be carried out.

use std::collections::{BTreeMap, BTreeSet};

use wattle_common::GpuIndex;

use crate::plan::input::PlanningInput;
use crate::plan::{Decision, NodeDecision, Plan};
use crate::state::gpu_set::{GpuSet, JobKey, NodeKey};
use crate::state::job::{Job, State};
use crate::state::node::Wakefulness;

/// One thing a plan breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// The job is not known.
    UnknownJob(JobKey),
    /// The job is decided about twice, other than settled and set.
    Twice(JobKey),
    /// A job is started or rejected that does not wait.
    NotQueued(JobKey),
    /// A job is settled or undone that is not observed.
    NotObserved(JobKey),
    /// A job is undone that cannot checkpoint.
    CannotStop(JobKey),
    /// A placement with no GPU, a node named twice, or a node or GPU that does not exist.
    NoSuchPlace(JobKey),
    /// Other than the number of GPUs the job asks for.
    WrongCount {
        /// The job.
        job: JobKey,
        /// GPUs it got.
        got: u32,
    },
    /// GPUs of different kinds for one job.
    MixedKinds(JobKey),
    /// GPUs of another kind than the job's owner asks for.
    WrongKind(JobKey),
    /// A GPU that does not answer.
    Unhealthy {
        /// The job.
        job: JobKey,
        /// The node.
        node: NodeKey,
        /// The GPU.
        gpu: GpuIndex,
    },
    /// A GPU shared with or by an exclusive job.
    Exclusive {
        /// The job.
        job: JobKey,
        /// Who is there.
        beside: JobKey,
    },
    /// More jobs on a GPU than are allowed.
    TooManyTenants {
        /// The job.
        job: JobKey,
        /// How many there would be.
        tenants: u32,
    },
    /// Peak memory of all jobs on a GPU beyond what the card has, or not known for one that shares.
    PersistedState {
        /// The job.
        job: JobKey,
        /// The node.
        node: NodeKey,
        /// The GPU.
        gpu: GpuIndex,
    },
    /// A job is stopped or set anew that does not run.
    NotRunning(JobKey),
    /// A node is decided about twice, or does not exist.
    NodeTwice(NodeKey),
    /// A node is to sleep that is not awake, has a job or is given one.
    NotIdle(NodeKey),
    /// A node is to wake that is not asleep.
    NotAsleep(NodeKey),
    /// A job is put on a node that is not awake.
    Asleep {
        /// The job.
        job: JobKey,
        /// The node.
        node: NodeKey,
    },
    /// An observation of a job that shares with nobody.
    NothingToObserve(JobKey),
    /// A job is rejected although the cluster could hold it, or is not wholly known.
    WronglyRejected(JobKey),
}

/// What `plan` breaks, made for `input`.
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
        if !before.iter().all(|other| go_together(other, decision)) {
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
            Decision::Stop { .. } | Decision::Set { .. } => {
                if !matches!(job.state, State::Running { .. }) {
                    found.push(Violation::NotRunning(key));
                }
                if matches!(decision, Decision::Stop { .. }) && !job.facts.can_stop {
                    found.push(Violation::CannotStop(key));
                }
            }
            Decision::Undo { .. } | Decision::Settle { .. } => {
                if job.state.observation().is_none() {
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
    found
}

/// A job that stays where it is may be set at the same time; nothing else goes beside another.
fn go_together(one: &Decision, other: &Decision) -> bool {
    let pair = |a: &Decision, b: &Decision| {
        matches!((a, b), (Decision::Settle { .. }, Decision::Set { .. }))
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
                let given = added.range((key, 0)..=(key, GpuIndex::MAX)).next().is_some();
                if used || given || node.wakefulness != Wakefulness::Awake {
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
    let nodes: BTreeSet<NodeKey> = on.by_node.iter().map(|spot| spot.node).collect();
    let exists = |spot: &crate::state::gpu_set::NodeGpus| {
        input.state.nodes().get(spot.node.index()).is_some_and(|node| {
            let highest = 64 - spot.gpus.leading_zeros();
            spot.gpus != 0 && highest <= node.facts.gpus
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
    let kind = |node: &NodeKey| &input.state.node(*node).facts.gpu_type;
    if nodes.iter().any(|node| kind(node) != kind(&on.by_node[0].node)) {
        found.push(Violation::MixedKinds(key));
    }
    let asked = job.facts.gpu_type.as_deref();
    if nodes.iter().any(|node| asked.is_some_and(|asked| asked != *kind(node))) {
        found.push(Violation::WrongKind(key));
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
            if job.facts.exclusive || tenant.facts.exclusive {
                found.push(Violation::Exclusive { job: key, beside: other });
            }
            memory = memory.zip(tenant.memory_mib_max()).map(|(sum, more)| sum + more);
        }
        shares |= others > 0;
        if others + 1 > input.limits.tenants_max {
            found.push(Violation::TooManyTenants { job: key, tenants: others + 1 });
        }
        // Alone, only its owner's word counts: a job whose memory nobody knows may try its luck,
        // and a predictor's guess must not keep it off every card. Sharing takes knowledge.
        let needed = if others == 0 { job.facts.memory_mib_max } else { job.memory_mib_max() };
        let fits = match memory.zip(needed) {
            Some((there, more)) => there + more <= node.facts.memory_mib,
            None => others == 0,
        };
        if !fits {
            found.push(Violation::PersistedState { job: key, node: node_key, gpu });
        }
        newer.push(key);
    }
    if observe && !shares {
        found.push(Violation::NothingToObserve(key));
    }
}

/// Whether all nodes of some kind and size, if they were free, could hold the job.
fn could_ever_hold(input: PlanningInput<'_>, job: &Job) -> bool {
    let mut by_class: BTreeMap<(&str, u32, u64), u32> = BTreeMap::new();
    for node in input.state.nodes() {
        let facts = &node.facts;
        let class = (facts.gpu_type.as_str(), facts.gpus, facts.memory_mib);
        *by_class.entry(class).or_default() += facts.gpus;
    }
    by_class.iter().any(|(&(kind, _, memory), &gpus)| {
        job.facts.gpu_type.as_deref().is_none_or(|asked| asked == kind)
            && gpus >= job.facts.request.min
            && job.facts.memory_mib_max.is_none_or(|mib| mib <= memory)
    })
}
