//! Whether a job could run on a cluster at all, whatever is free.

use std::collections::BTreeSet;

use crate::allocation::capacity::{FreeCapacity, NodeCounts, Scope};
use crate::plan::reason::Reason;
use crate::state::cluster::ClusterState;
use crate::state::job::Job;
use crate::state::node::{Node, NodeFacts};

/// Whether the node has the GPU type and the device memory that the job requests.
#[must_use]
pub fn suits(node: &NodeFacts, job: &Job) -> bool {
    job.facts.memory_mib_max.is_none_or(|needed| node.may_hold(needed))
        && job.facts.gpu_type.as_deref().is_none_or(|gpu_type| gpu_type == node.gpu_type)
}

/// Whether any node with this GPU type suits the job.
#[must_use]
pub fn some_node_suits(state: &ClusterState, job: &Job, gpu_type: &str) -> bool {
    let mut nodes = state.nodes().iter();
    nodes.any(|node| node.facts.gpu_type == gpu_type && suits(&node.facts, job))
}

/// Whether two nodes are equal in GPU type, number of GPUs and device memory.
pub(crate) fn same_shape(a: &NodeFacts, b: &NodeFacts) -> bool {
    a.gpus == b.gpus && a.gpu_type == b.gpu_type && a.memory_mib == b.memory_mib
}

/// Why the job could never be placed on this cluster, even if every GPU were healthy and free.
///
/// `None` while the inventory is incomplete or the GPU type of a node is unknown.
#[must_use]
pub fn infeasible(state: &ClusterState, job: &Job) -> Option<Reason> {
    if !state.inventory_complete() {
        return None;
    }
    let requested = job.facts.request.min;
    let nodes = state.nodes();
    // The usual case, decided by the first node.
    if nodes.first().is_some_and(|node| node.facts.gpus >= requested && suits(&node.facts, job)) {
        return None;
    }
    // The GPU type of a node is unknown until one of its GPUs has answered.
    if nodes.iter().any(|node| node.facts.gpu_type.is_empty()) {
        return None;
    }
    let kind = job.facts.gpu_type.clone();
    let has_type = |node: &&Node| kind.as_deref().is_none_or(|kind| node.facts.gpu_type == kind);
    if let Some(kind) = &kind
        && !nodes.iter().any(|node| has_type(&node))
    {
        let there: BTreeSet<&str> = nodes.iter().map(|n| n.facts.gpu_type.as_str()).collect();
        let there = there.into_iter().map(str::to_owned).collect();
        return Some(Reason::NoSuchGpuType { gpu_type: kind.clone(), available: there });
    }
    if let Some(requested_mib) = job.facts.memory_mib_max
        && !nodes.iter().filter(has_type).any(|node| node.facts.may_hold(requested_mib))
    {
        return Some(Reason::TooMuchMemory { memory_mib: requested_mib, gpu_type: kind });
    }
    let enough = nodes.iter().filter(|node| suits(&node.facts, job)).any(|first| {
        let equal = nodes.iter().filter(|node| same_shape(&node.facts, &first.facts));
        equal.map(|node| node.facts.gpus).sum::<u32>() >= requested
    });
    (!enough).then(|| {
        let gpus = nodes.iter().filter(has_type).map(|node| node.facts.gpus).sum();
        Reason::TooLarge { requested, gpus, gpu_type: kind.clone() }
    })
}

/// The healthy GPUs of a cluster by node shape: which jobs it could start if it were empty and awake.
#[derive(Debug)]
pub struct HealthyCluster<'a> {
    /// One node of each shape, and the healthy GPUs of all nodes of that shape.
    shapes: Vec<(&'a NodeFacts, NodeCounts)>,
}

impl<'a> HealthyCluster<'a> {
    /// The healthy GPUs of this cluster.
    #[must_use]
    pub fn of(state: &'a ClusterState) -> Self {
        let capacity = FreeCapacity::new(state, Scope::All);
        let mut shapes: Vec<(&NodeFacts, NodeCounts)> = Vec::new();
        for (key, node) in state.keyed_nodes() {
            let known = shapes.iter().position(|(shape, _)| same_shape(shape, &node.facts));
            let index = known.unwrap_or_else(|| {
                shapes.push((&node.facts, NodeCounts::default()));
                shapes.len() - 1
            });
            shapes[index].1.add_node(node.facts.gpus, capacity.free(key).count_ones());
        }
        Self { shapes }
    }

    /// Whether the empty cluster could start the job on its minimum of GPUs. A job that fits one node
    /// is never spread over several.
    #[must_use]
    pub fn could_start(&self, job: &Job) -> bool {
        let requested = job.facts.request.min;
        let (mut fits_a_node, mut fits_entire_nodes) = (false, false);
        for (shape, counts) in self.shapes.iter().filter(|(shape, _)| suits(shape, job)) {
            if counts.largest_in_node() >= requested {
                return true;
            }
            fits_a_node |= shape.gpus >= requested;
            fits_entire_nodes |= counts.largest_set() >= requested;
        }
        fits_entire_nodes && !fits_a_node
    }
}
