//! First fit in node order, and what is free while a plan grows.
//!
//! The rule FIFO, FIFO-packed and EaCO share for free GPUs: a job of at most one node's GPUs goes
//! inside the first node that has room; a larger one takes the first ⌈n / size⌉ wholly free nodes
//! of one kind and size. It never splits a job that a single node could hold: that job waits.

use std::borrow::Cow;
use std::collections::BTreeSet;

use crate::plan::reason::{Alone, Reason};
use crate::state::cluster::{ClusterState, Node, NodeFacts};
use crate::state::gpu_set::{GpuSet, NodeGpus, NodeKey, lowest, ones};
use crate::state::job::Job;

/// The GPUs that are still free while a plan grows. Copied only once something is taken.
pub struct Room<'a> {
    state: &'a ClusterState,
    taken: Cow<'a, [u64]>,
}

impl<'a> Room<'a> {
    /// What is free in `state`.
    #[must_use]
    pub fn new(state: &'a ClusterState) -> Self {
        Self { state, taken: Cow::Borrowed(&[]) }
    }

    /// The GPUs of a node that are free.
    #[must_use]
    pub fn free(&self, node: NodeKey) -> u64 {
        let taken = self.taken.get(node.index()).copied().unwrap_or(0);
        self.state.node(node).free() & !taken
    }

    /// These are not free any more.
    pub fn take(&mut self, set: &GpuSet) {
        let taken = self.taken.to_mut();
        taken.resize(self.state.nodes().len(), 0);
        for spot in &set.by_node {
            taken[spot.node.index()] |= spot.gpus;
        }
    }

    /// The first room for `job` in node order, on as few GPUs as it asks for.
    #[must_use]
    pub fn first_fit(&self, job: &Job) -> Option<(GpuSet, Reason)> {
        let asked = job.facts.request.min;
        let mut one_could_hold_it = false;
        for (key, node) in self.state.keyed_nodes().filter(|(_, n)| suits(&n.facts, job)) {
            if node.facts.gpus < asked {
                continue;
            }
            one_could_hold_it = true;
            let free = self.free(key);
            if free.count_ones() >= asked {
                return Some((GpuSet::on(key, lowest(free, asked)), Reason::FirstFit));
            }
        }
        if one_could_hold_it { None } else { self.whole_nodes(job) }
    }

    fn whole_nodes(&self, job: &Job) -> Option<(GpuSet, Reason)> {
        let asked = job.facts.request.min;
        let nodes = self.state.nodes();
        for (i, first) in nodes.iter().enumerate() {
            // Each class of equal nodes is tried once, at its first node.
            if !suits(&first.facts, job)
                || first.facts.gpus == 0
                || nodes[..i].iter().any(|node| alike(&node.facts, &first.facts))
            {
                continue;
            }
            let size = first.facts.gpus;
            let wanted = asked.div_ceil(size);
            let whole = (i as u32..).map(NodeKey).zip(&nodes[i..]).filter(|(key, node)| {
                alike(&node.facts, &first.facts) && self.free(*key) == ones(size)
            });
            let mut left = asked;
            let by_node: Vec<NodeGpus> = whole
                .take(wanted as usize)
                .map(|(node, _)| {
                    let gpus = ones(left.min(size));
                    left -= left.min(size);
                    NodeGpus { node, gpus }
                })
                .collect();
            if left == 0 {
                return Some((GpuSet { by_node }, Reason::WholeNodes { nodes: wanted }));
            }
        }
        None
    }

    /// Why `job` does not fit, as figures of the GPUs that it may have.
    #[must_use]
    pub fn why_not(&self, job: &Job, alone: Option<Alone>) -> Reason {
        let nodes = self.state.keyed_nodes().filter(|(_, node)| suits(&node.facts, job));
        let free = nodes.map(|(key, _)| self.free(key).count_ones());
        let (free, free_on_one_node) = free.fold((0, 0), |(sum, most), n| (sum + n, most.max(n)));
        let (asked, kind) = (job.facts.request.min, job.facts.gpu_type.clone());
        Reason::NoRoom { asked, kind, free, free_on_one_node, alone }
    }
}

/// Why `job` could never be placed here, even if every GPU were healthy and free.
///
/// `None` while the inventory is not complete, or a node's kind not known.
#[must_use]
pub fn never(state: &ClusterState, job: &Job) -> Option<Reason> {
    if !state.inventory_complete() {
        return None;
    }
    let asked = job.facts.request.min;
    let nodes = state.nodes();
    // The usual case, decided by the first node.
    if nodes.first().is_some_and(|node| node.facts.gpus >= asked && suits(&node.facts, job)) {
        return None;
    }
    // A node of which no card has answered yet may be just what it needs.
    if nodes.iter().any(|node| node.facts.gpu_type.is_empty()) {
        return None;
    }
    let kind = job.facts.gpu_type.clone();
    let is_of_kind = |node: &&Node| kind.as_deref().is_none_or(|kind| node.facts.gpu_type == kind);
    if let Some(kind) = &kind
        && !nodes.iter().any(|node| is_of_kind(&node))
    {
        let there: BTreeSet<&str> = nodes.iter().map(|n| n.facts.gpu_type.as_str()).collect();
        let there = there.into_iter().map(str::to_owned).collect();
        return Some(Reason::NoSuchKind { kind: kind.clone(), there });
    }
    if let Some(asked_mib) = job.facts.memory_mib_max
        && !nodes.iter().filter(is_of_kind).any(|node| node.facts.memory_mib >= asked_mib)
    {
        return Some(Reason::TooMuchMemory { asked_mib, kind });
    }
    let enough = nodes.iter().filter(|node| suits(&node.facts, job)).any(|first| {
        let equal = nodes.iter().filter(|node| alike(&node.facts, &first.facts));
        equal.map(|node| node.facts.gpus).sum::<u32>() >= asked
    });
    (!enough).then(|| {
        let gpus = nodes.iter().filter(is_of_kind).map(|node| node.facts.gpus).sum();
        Reason::TooLarge { asked, gpus, kind: kind.clone() }
    })
}

/// Whether the node's cards are of the kind, and have the memory, that the job's owner says it needs.
#[must_use]
pub fn suits(node: &NodeFacts, job: &Job) -> bool {
    job.facts.memory_mib_max.is_none_or(|needed| needed <= node.memory_mib)
        && job.facts.gpu_type.as_deref().is_none_or(|kind| kind == node.gpu_type)
}

/// Whether any node of this kind suits the job.
#[must_use]
pub fn suits_some(state: &ClusterState, job: &Job, kind: &str) -> bool {
    let mut nodes = state.nodes().iter();
    nodes.any(|node| node.facts.gpu_type == kind && suits(&node.facts, job))
}

pub(crate) fn alike(a: &NodeFacts, b: &NodeFacts) -> bool {
    a.gpus == b.gpus && a.gpu_type == b.gpu_type && a.memory_mib == b.memory_mib
}
