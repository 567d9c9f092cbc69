//! First fit in node order: the placement rule of FIFO, backfilling, FIFO-packed and EaCO.
//!
//! A job of at most one node's GPUs gets the lowest free GPUs of the first node that has enough. A
//! larger one gets the first ⌈n / size⌉ entirely free nodes of one GPU type and size. A job that one
//! node could hold is never spread over several: it waits.

use crate::allocation::capacity::FreeCapacity;
use crate::allocation::feasibility::{same_shape, suits};
use crate::plan::reason::{NotShared, Reason};
use crate::state::gpu_set::{GpuSet, NodeGpus, NodeKey, lowest, ones};
use crate::state::job::Job;

/// The first free GPUs in node order that hold the job's minimum, with the reason.
#[must_use]
pub fn first_fit(capacity: &FreeCapacity<'_>, job: &Job) -> Option<(GpuSet, Reason)> {
    first_fit_where(capacity, job, |_| true)
}

/// The first that `accepts` permits, of the placements on one node in node order; of a job larger than a node,
/// of the first entirely free nodes of each shape.
pub(crate) fn first_fit_where(
    capacity: &FreeCapacity<'_>,
    job: &Job,
    accepts: impl Fn(&GpuSet) -> bool,
) -> Option<(GpuSet, Reason)> {
    let requested = job.facts.request.min;
    let mut fits_a_node = false;
    for (key, node) in capacity.state().keyed_nodes() {
        if node.facts.gpus < requested || !suits(&node.facts, job) {
            continue;
        }
        fits_a_node = true;
        let free = capacity.free(key);
        if free.count_ones() >= requested {
            let on = GpuSet::on(key, lowest(free, requested));
            if accepts(&on) {
                return Some((on, Reason::FirstFit));
            }
        }
    }
    if fits_a_node { None } else { entire_nodes(capacity, job, accepts) }
}

fn entire_nodes(
    capacity: &FreeCapacity<'_>,
    job: &Job,
    accepts: impl Fn(&GpuSet) -> bool,
) -> Option<(GpuSet, Reason)> {
    let requested = job.facts.request.min;
    let nodes = capacity.state().nodes();
    for (i, first) in nodes.iter().enumerate() {
        // Each shape is tried once, at its first node.
        if !suits(&first.facts, job)
            || first.facts.gpus == 0
            || nodes[..i].iter().any(|node| same_shape(&node.facts, &first.facts))
        {
            continue;
        }
        let size = first.facts.gpus;
        let count = requested.div_ceil(size);
        let free = (i as u32..).map(NodeKey).zip(&nodes[i..]).filter(|(key, node)| {
            same_shape(&node.facts, &first.facts) && capacity.free(*key) == ones(size)
        });
        let mut left = requested;
        let by_node: Vec<NodeGpus> = free
            .take(count as usize)
            .map(|(node, _)| {
                let gpus = ones(left.min(size));
                left -= left.min(size);
                NodeGpus { node, gpus }
            })
            .collect();
        let on = GpuSet { by_node };
        if left == 0 && accepts(&on) {
            return Some((on, Reason::WholeNodes { nodes: count }));
        }
    }
    None
}

/// Why the job does not fit: the free GPUs of the nodes that suit it.
#[must_use]
pub fn no_room(capacity: &FreeCapacity<'_>, job: &Job, not_shared: Option<NotShared>) -> Reason {
    let nodes = capacity.state().keyed_nodes().filter(|(_, node)| suits(&node.facts, job));
    let free = nodes.map(|(key, _)| capacity.free(key).count_ones());
    let (free, free_on_one_node) = free.fold((0, 0), |(sum, most), n| (sum + n, most.max(n)));
    let (requested, gpu_type) = (job.facts.request.min, job.facts.gpu_type.clone());
    let reserved_at = None;
    Reason::NoRoom { requested, gpu_type, free, free_on_one_node, not_shared, reserved_at }
}
