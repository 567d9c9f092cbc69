//! The nodes of a replay: which GPUs are free, and which node of the cluster a name of the trace is.

use std::collections::BTreeMap;

use wattle_placer::{GpuSet, NodeGpus, NodeKey};

use crate::scenario::Scenario;
use crate::trace::Trace;

/// The node of the cluster for each host name of the trace: of the GPU type of its jobs, and of the nodes that hold
/// its largest job the smallest, in the order of the names. A name beyond the cluster has no node.
fn node_indices(scenario: &Scenario, trace: &Trace) -> BTreeMap<String, usize> {
    let mut known: BTreeMap<&str, (Option<&str>, u32)> = BTreeMap::new();
    for (job, traced) in scenario.jobs.iter().zip(&trace.jobs) {
        let count = u32::try_from(traced.node_names.len()).unwrap_or(u32::MAX).max(1);
        for name in &traced.node_names {
            let (gpu_type, largest) = known.entry(name).or_default();
            *gpu_type = gpu_type.or(job.gpu_type.as_deref());
            *largest = (*largest).max(job.gpus.min.div_ceil(count));
        }
    }
    let mut free: Vec<(usize, u32, &str)> = scenario
        .cluster
        .nodes()
        .enumerate()
        .map(|(index, (gpus, gpu_type))| (index, gpus, gpu_type))
        .collect();
    let is_unequal = free.windows(2).any(|pair| pair[0].1 != pair[1].1);
    let mut names: Vec<(&str, (Option<&str>, u32))> = known.into_iter().collect();
    if is_unequal {
        // The names with the largest jobs first, so that their nodes are not taken by others.
        names.sort_by_key(|(_, (_, largest))| std::cmp::Reverse(*largest));
    }
    let mut indices = BTreeMap::new();
    for (name, (gpu_type, largest)) in names {
        let fits = |own: &str| gpu_type.is_none_or(|gpu_type| gpu_type == own);
        let of_type = free.iter().enumerate().filter(|(_, (.., own))| fits(own));
        let best = of_type.min_by_key(|(_, (index, gpus, _))| (*gpus < largest, *gpus, *index));
        if let Some((at, _)) = best {
            indices.insert(name.to_owned(), free.remove(at).0);
        }
    }
    indices
}

/// The free GPUs of each node, and the GPUs of each running job.
pub(super) struct Site {
    /// Free GPUs as bits, and the GPU type.
    nodes: Vec<(u64, String)>,
    pub(super) on: Vec<Option<GpuSet>>,
    /// GPUs of the largest node.
    size: u32,
    /// Node of the cluster by the trace's name for it.
    index_of: BTreeMap<String, usize>,
    /// Number of jobs on another GPU type than requested.
    pub(super) other_type: usize,
    /// Number of jobs on more nodes than they need.
    pub(super) divided: usize,
}

impl Site {
    pub(super) fn of(scenario: &Scenario, trace: &Trace) -> Self {
        let nodes = scenario.cluster.nodes().map(|(gpus, kind)| (ones(gpus), kind.to_owned()));
        Self {
            nodes: nodes.collect(),
            on: vec![None; scenario.jobs.len()],
            size: scenario.cluster.nodes().map(|(gpus, _)| gpus).max().unwrap_or(0),
            index_of: node_indices(scenario, trace),
            other_type: 0,
            divided: 0,
        }
    }

    /// Number of free GPUs.
    pub(super) fn free(&self) -> u32 {
        self.nodes.iter().map(|(bits, _)| bits.count_ones()).sum()
    }

    /// Whether the cluster has the named nodes.
    pub(super) fn knows(&self, names: &[String]) -> bool {
        !names.is_empty() && names.iter().all(|name| self.index_of.contains_key(name))
    }

    /// Whether a running job has GPUs of one of the named nodes.
    pub(super) fn is_on(&self, job: usize, names: &[String]) -> bool {
        let indices = || names.iter().filter_map(|name| self.index_of.get(name));
        self.on[job].as_ref().is_some_and(|on| {
            on.by_node.iter().any(|part| indices().any(|index| *index == part.node.index()))
        })
    }

    /// Free GPUs on the named nodes, as evenly as possible; `None` where they have too few.
    pub(super) fn place_on(&mut self, names: &[String], gpus: u32) -> Option<GpuSet> {
        let mut nodes: Vec<usize> =
            names.iter().map(|name| self.index_of.get(name).copied()).collect::<Option<_>>()?;
        nodes.sort_unstable();
        nodes.dedup();
        let count = u32::try_from(nodes.len()).ok().filter(|count| *count > 0)?;
        let share = |i: u32| gpus / count + u32::from(i < gpus % count);
        let room = |(i, node): (u32, &usize)| self.nodes[*node].0.count_ones() >= share(i);
        if gpus < count || !(0..).zip(&nodes).all(room) {
            return None;
        }
        let mut set = GpuSet::default();
        for (i, node) in (0..).zip(nodes) {
            let taken = lowest(self.nodes[node].0, share(i));
            self.nodes[node].0 &= !taken;
            set.by_node.push(NodeGpus { node: NodeKey::at(node), gpus: taken });
        }
        Some(set)
    }

    /// Free GPUs for a job; the schedule was verified to fit.
    pub(super) fn place(&mut self, gpus: u32, gpu_type: Option<&str>) -> GpuSet {
        let free = |(bits, _): &(u64, String)| bits.count_ones();
        let is_type = |kind: &str| gpu_type.is_none_or(|requested| requested == kind);
        let of_type = |typed: bool| {
            let nodes = self.nodes.iter().enumerate();
            nodes.filter(move |(_, node)| !typed || is_type(&node.1))
        };
        let typed = of_type(true).map(|(_, node)| free(node)).sum::<u32>() >= gpus;
        self.other_type += usize::from(!typed);
        let one = of_type(typed).find(|(_, node)| free(node) >= gpus).map(|(i, _)| i);
        let mut divided = false;
        let order: Vec<usize> = match one {
            Some(node) => vec![node],
            None => {
                let mut nodes: Vec<usize> = of_type(typed).map(|(i, _)| i).collect();
                nodes.sort_by_key(|&i| std::cmp::Reverse(free(&self.nodes[i])));
                divided = gpus <= self.size;
                nodes
            }
        };
        self.divided += usize::from(divided);
        let mut set = GpuSet::default();
        let mut missing = gpus;
        for i in order {
            let taken = lowest(self.nodes[i].0, missing);
            if taken == 0 {
                continue;
            }
            self.nodes[i].0 &= !taken;
            set.by_node.push(NodeGpus { node: NodeKey::at(i), gpus: taken });
            missing -= taken.count_ones();
            if missing == 0 {
                break;
            }
        }
        set
    }

    pub(super) fn release(&mut self, job: usize) -> Option<GpuSet> {
        let on = self.on[job].take()?;
        for part in &on.by_node {
            self.nodes[part.node.index()].0 |= part.gpus;
        }
        Some(on)
    }
}

/// The lowest `count` of these bits; all where they are fewer.
fn lowest(bits: u64, count: u32) -> u64 {
    let (mut rest, mut taken) = (bits, 0);
    for _ in 0..count.min(bits.count_ones()) {
        let lowest = rest & rest.wrapping_neg();
        taken |= lowest;
        rest &= !lowest;
    }
    taken
}

/// The lowest `count` bits.
const fn ones(count: u32) -> u64 {
    if count >= 64 { u64::MAX } else { (1 << count) - 1 }
}
