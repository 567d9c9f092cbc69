//! The free GPUs of all nodes, by nodes that are alike.
//!
//! Of nodes of one kind and shape with the very same GPUs free, one is as good as another, and the
//! first stands for all of them. There are far fewer such classes than nodes, so that who starts does
//! not look at every node. What a job gets is decided elsewhere.

use std::collections::{BTreeMap, BTreeSet};

use crate::state::cluster::ClusterState;
use crate::state::gpu_set::{GpuSet, NodeKey, ones};
use crate::state::node::Node;

/// What nodes of one class have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Alike<'a> {
    /// Their kind of GPU.
    pub(super) kind: &'a str,
    /// How many GPUs each has.
    pub(super) gpus: u32,
    /// How many of them are on a board.
    pub(super) board: Option<u32>,
    /// PersistedState of each, MiB.
    pub(super) memory_mib: u64,
    /// The GPUs that are free.
    pub(super) free: u64,
}

impl<'a> Alike<'a> {
    fn of(node: &'a Node, free: u64) -> Self {
        let facts = &node.facts;
        let (kind, gpus, memory_mib) = (facts.gpu_type.as_str(), facts.gpus, facts.memory_mib);
        Self { kind, gpus, board: node.gpus_per_board, memory_mib, free }
    }

    /// Whether all there are is free.
    pub(super) fn is_whole(&self) -> bool {
        self.gpus > 0 && self.free == ones(self.gpus)
    }
}

/// Free GPUs.
pub(super) struct Room<'a> {
    state: &'a ClusterState,
    free: Vec<u64>,
    classes: BTreeMap<Alike<'a>, BTreeSet<NodeKey>>,
}

impl<'a> Room<'a> {
    /// What is free now.
    pub(super) fn new(state: &'a ClusterState) -> Self {
        let free: Vec<u64> = state.nodes().iter().map(Node::free).collect();
        let mut classes: BTreeMap<Alike<'a>, BTreeSet<NodeKey>> = BTreeMap::new();
        for (key, node) in state.keyed_nodes() {
            classes.entry(Alike::of(node, free[key.index()])).or_default().insert(key);
        }
        Self { state, free, classes }
    }

    /// The free GPUs of a node.
    pub(super) fn on(&self, node: NodeKey) -> u64 {
        self.free[node.index()]
    }

    /// The classes and their nodes, none of them empty.
    pub(super) fn classes(&self) -> impl Iterator<Item = (&Alike<'a>, &BTreeSet<NodeKey>)> {
        self.classes.iter()
    }

    /// These GPUs are taken.
    pub(super) fn take(&mut self, on: &GpuSet) {
        for spot in &on.by_node {
            let (node, free) = (self.state.node(spot.node), &mut self.free[spot.node.index()]);
            let before = Alike::of(node, *free);
            *free &= !spot.gpus;
            let after = Alike::of(node, *free);
            if let Some(nodes) = self.classes.get_mut(&before) {
                nodes.remove(&spot.node);
                if nodes.is_empty() {
                    self.classes.remove(&before);
                }
            }
            self.classes.entry(after).or_default().insert(spot.node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::gpu_set::NodeGpus;
    use crate::state::node::NodeFacts;

    #[test]
    fn nodes_change_their_class_as_they_are_taken() {
        let mut state = ClusterState::new();
        for (i, gpus) in [8, 8, 4].into_iter().enumerate() {
            state.node_known(NodeFacts {
                id: format!("n{i}").parse().unwrap(),
                gpu_type: "v100".to_owned(),
                gpus,
                memory_mib: 16_384,
                healthy: u64::MAX,
                watts: None,
            });
        }
        let mut room = Room::new(&state);
        let told = |room: &Room<'_>| -> Vec<(u32, u64, Vec<u32>)> {
            let of = |(class, nodes): (&Alike<'_>, &BTreeSet<NodeKey>)| {
                (class.gpus, class.free, nodes.iter().map(|node| node.0).collect())
            };
            room.classes().map(of).collect()
        };
        assert_eq!(told(&room), [(4, 15, vec![2]), (8, 255, vec![0, 1])]);
        room.take(&GpuSet {
            by_node: vec![
                NodeGpus { node: NodeKey(0), gpus: 0b11 },
                NodeGpus { node: NodeKey(2), gpus: 0b1111 },
            ],
        });
        let expected = [(4, 0, vec![2]), (8, 0b1111_1100, vec![0]), (8, 255, vec![1])];
        assert_eq!(told(&room), expected);
        assert_eq!(room.on(NodeKey(0)), 0b1111_1100);
        room.take(&GpuSet::on(NodeKey(1), 0b11));
        assert_eq!(told(&room)[1], (8, 0b1111_1100, vec![0, 1]));
        assert!(!room.classes().any(|(class, _)| class.is_whole()));
    }
}
