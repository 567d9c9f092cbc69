//! Dense keys of nodes and jobs, and sets of GPUs.
//!
//! Policies run at every event of a trace, so inside the placer a node or a job is a small number
//! and the GPUs of a node are the bits of one word. [`crate::ClusterState`] maps keys to ids and back.
//! Keys are valid for one state only and are never stored.

use wattle_common::GpuIndex;

/// The key of a job: its index in the state. It is reused after the job has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobKey(pub(crate) u32);

/// The key of a node: its index in node order. It never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeKey(pub(crate) u32);

impl JobKey {
    /// The key as an index; keys are small and dense.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl NodeKey {
    /// The key of the node at this index in node order.
    #[must_use]
    pub const fn at(index: usize) -> Self {
        Self(index as u32)
    }
    /// The index in node order.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// GPUs of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeGpus {
    /// The node.
    pub node: NodeKey,
    /// Its GPUs: bit i is GPU i. A node has at most 64 (`wattle_common::topology`).
    pub gpus: u64,
}

/// A set of GPUs: one entry for each node, in rank order.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GpuSet {
    /// One entry for each node.
    pub by_node: Vec<NodeGpus>,
}

impl GpuSet {
    /// A set of GPUs of one node.
    #[must_use]
    pub fn on(node: NodeKey, gpus: u64) -> Self {
        Self { by_node: vec![NodeGpus { node, gpus }] }
    }

    /// Number of GPUs.
    #[must_use]
    pub fn gpu_count(&self) -> u32 {
        self.by_node.iter().map(|part| part.gpus.count_ones()).sum()
    }

    /// Number of nodes.
    #[must_use]
    pub fn node_count(&self) -> u32 {
        self.by_node.len() as u32
    }

    /// Its GPUs, in rank order.
    pub fn gpus(&self) -> impl Iterator<Item = (NodeKey, GpuIndex)> {
        self.by_node.iter().flat_map(|part| bits(part.gpus).map(|gpu| (part.node, gpu)))
    }
}

/// The bits that are set in `word`, ascending.
pub fn bits(mut word: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        if word == 0 {
            return None;
        }
        let bit = word.trailing_zeros();
        word &= word - 1;
        Some(bit)
    })
}

/// The `count` lowest set bits of `word`; fewer where it has fewer.
#[must_use]
pub fn lowest(word: u64, count: u32) -> u64 {
    bits(word).take(count as usize).fold(0, |chosen, bit| chosen | 1 << bit)
}

/// The lowest `count` bits set.
#[must_use]
pub const fn ones(count: u32) -> u64 {
    if count >= 64 { u64::MAX } else { (1 << count) - 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_ascending() {
        assert_eq!(bits(0b1010_0001).collect::<Vec<_>>(), [0, 5, 7]);
        assert_eq!(lowest(0b1010_0001, 2), 0b10_0001);
        assert_eq!(lowest(0b1, 3), 0b1);
        assert_eq!((ones(0), ones(3), ones(64)), (0, 7, u64::MAX));
        let set = GpuSet { by_node: vec![NodeGpus { node: NodeKey(1), gpus: 0b11 }] };
        assert_eq!((set.gpu_count(), set.node_count()), (2, 1));
        assert_eq!(set.gpus().collect::<Vec<_>>(), [(NodeKey(1), 0), (NodeKey(1), 1)]);
    }
}
