//! The GPUs that are free while a plan is being made.
//!
//! [`FreeCapacity`] is the one record of free GPUs; every policy plans on it. Its [`Scope`] states
//! which GPUs count as free. Placement reads it by GPU ([`FreeCapacity::free`]) and by class of equal
//! nodes ([`FreeCapacity::classes`]). Policies that decide how many GPUs a job gets before they decide
//! where read numbers: per GPU type ([`TypeCounts`]) and per node ([`NodeCounts`]).

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

use crate::state::cluster::ClusterState;
use crate::state::gpu_set::{GpuSet, NodeKey, ones};
use crate::state::node::Node;

/// Which GPUs count as free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Healthy GPUs without a job on nodes that are awake: usable now.
    Idle,
    /// [`Scope::Idle`] and all healthy GPUs of nodes that are asleep or waking.
    IdleOrAsleep,
    /// All healthy GPUs, also those with jobs: what a policy shares out that reassigns every GPU.
    All,
}

impl Scope {
    fn free(self, node: &Node) -> u64 {
        match self {
            Self::Idle => node.free(),
            Self::IdleOrAsleep if node.is_awake() => node.free(),
            Self::IdleOrAsleep | Self::All => node.facts.healthy,
        }
    }
}

/// The GPUs that are free while a plan is being made, less those that the plan has taken.
#[derive(Clone, Debug)]
pub struct FreeCapacity<'a> {
    state: &'a ClusterState,
    scope: Scope,
    /// GPUs that the plan has taken, by node; empty until the first are taken.
    taken: Vec<u64>,
    classes: OnceCell<Classes<'a>>,
}

/// Nodes of the same shape with the same free GPUs.
pub(crate) type Classes<'a> = BTreeMap<NodeClass<'a>, BTreeSet<NodeKey>>;

/// The properties that nodes of one class share. Placement may treat them as interchangeable, so it
/// looks at one node of each class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeClass<'a> {
    pub(crate) gpu_type: &'a str,
    /// GPUs of the node.
    pub(crate) gpus: u32,
    /// GPUs of each of its boards.
    pub(crate) board: Option<u32>,
    /// Device memory of each GPU, MiB, if known.
    pub(crate) memory_mib: Option<u64>,
    /// Its free GPUs: bit i is GPU i.
    pub(crate) free: u64,
    /// Whether some of its GPUs are unhealthy.
    pub(crate) is_damaged: bool,
}

impl<'a> NodeClass<'a> {
    fn of(node: &'a Node, free: u64) -> Self {
        let facts = &node.facts;
        Self {
            gpu_type: &facts.gpu_type,
            gpus: facts.gpus,
            board: node.gpus_per_board,
            memory_mib: facts.memory_mib,
            free,
            is_damaged: facts.is_damaged(),
        }
    }

    /// Whether every GPU of the node is free.
    pub(crate) fn is_entirely_free(&self) -> bool {
        self.gpus > 0 && self.free == ones(self.gpus)
    }
}

impl<'a> FreeCapacity<'a> {
    /// All GPUs of this scope.
    #[must_use]
    pub const fn new(state: &'a ClusterState, scope: Scope) -> Self {
        Self { state, scope, taken: Vec::new(), classes: OnceCell::new() }
    }

    /// A copy of this capacity that is limited to another scope.
    pub(crate) fn with_scope(&self, scope: Scope) -> Self {
        Self { state: self.state, scope, taken: self.taken.clone(), classes: OnceCell::new() }
    }

    /// The cluster whose GPUs these are.
    #[must_use]
    pub const fn state(&self) -> &'a ClusterState {
        self.state
    }

    /// The free GPUs of a node: bit i is GPU i.
    #[must_use]
    pub fn free(&self, node: NodeKey) -> u64 {
        let taken = self.taken.get(node.index()).copied().unwrap_or(0);
        self.scope.free(self.state.node(node)) & !taken
    }

    /// Takes these GPUs.
    pub fn take(&mut self, gpus: &GpuSet) {
        for here in &gpus.by_node {
            self.take_on(here.node, here.gpus);
        }
    }

    /// Takes these GPUs of one node.
    pub(crate) fn take_on(&mut self, node: NodeKey, gpus: u64) {
        self.change_on(node, |taken| taken | gpus);
    }

    /// Gives back GPUs of one node that were taken.
    pub(crate) fn give_back_on(&mut self, node: NodeKey, gpus: u64) {
        self.change_on(node, |taken| taken & !gpus);
    }

    fn change_on(&mut self, node: NodeKey, change: impl Fn(u64) -> u64) {
        let before = self.free(node);
        self.taken.resize(self.state.nodes().len(), 0);
        self.taken[node.index()] = change(self.taken[node.index()]);
        let after = self.free(node);
        let Some(classes) = self.classes.get_mut() else { return };
        let facts = self.state.node(node);
        let before = NodeClass::of(facts, before);
        if let Some(nodes) = classes.get_mut(&before) {
            nodes.remove(&node);
            if nodes.is_empty() {
                classes.remove(&before);
            }
        }
        classes.entry(NodeClass::of(facts, after)).or_default().insert(node);
    }

    /// The nodes by class.
    pub(crate) fn classes(&self) -> &Classes<'a> {
        self.classes.get_or_init(|| {
            let mut classes = Classes::new();
            for (key, node) in self.state.keyed_nodes() {
                classes.entry(NodeClass::of(node, self.free(key))).or_default().insert(key);
            }
            classes
        })
    }

    /// The free GPUs of each type as numbers.
    #[must_use]
    pub fn type_counts(&self) -> TypeCounts<'a> {
        let mut counts = TypeCounts { types: Vec::new() };
        for (key, node) in self.state.keyed_nodes() {
            let gpus = self.free(key).count_ones();
            let awake = if node.is_awake() { gpus } else { 0 };
            let name = node.facts.gpu_type.as_str();
            match counts.types.iter_mut().find(|known| known.name == name) {
                Some(known) => {
                    (known.gpus, known.awake) = (known.gpus + gpus, known.awake + awake);
                }
                None => counts.types.push(TypeCount { name, gpus, awake, expected: 0 }),
            }
        }
        counts
    }

    /// The free GPUs of each node of one type as numbers.
    pub(crate) fn node_counts(&self, gpu_type: &str) -> NodeCounts {
        let mut counts = NodeCounts::default();
        for (key, node) in self.state.keyed_nodes() {
            if node.facts.gpu_type == gpu_type {
                counts.add_node(node.facts.gpus, self.free(key).count_ones());
            }
        }
        counts
    }
}

/// Numbers of free GPUs by type, for policies that serve jobs one after the other and place them later.
#[derive(Clone, Debug)]
pub struct TypeCounts<'a> {
    /// In the order of their first node.
    pub(super) types: Vec<TypeCount<'a>>,
}

#[derive(Clone, Debug)]
pub(super) struct TypeCount<'a> {
    pub(super) name: &'a str,
    pub(super) gpus: u32,
    /// Number of `gpus` on awake nodes, where jobs take GPUs of awake nodes first.
    pub(super) awake: u32,
    /// GPUs that jobs bound to this type request and have not been given yet.
    pub(super) expected: u32,
}

impl TypeCount<'_> {
    pub(super) fn subtract(&mut self, gpus: u32) {
        self.gpus = self.gpus.saturating_sub(gpus);
        self.awake = self.awake.saturating_sub(gpus);
    }
}

impl<'a> TypeCounts<'a> {
    /// Free GPUs of all types.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.types.iter().map(|known| known.gpus).sum()
    }

    /// Whether the cluster has nodes of several types.
    #[must_use]
    pub fn has_several_types(&self) -> bool {
        self.types.len() > 1
    }

    /// Whether the cluster has nodes of this type.
    #[must_use]
    pub fn has_type(&self, gpu_type: &str) -> bool {
        self.types.iter().any(|known| known.name == gpu_type)
    }

    /// Free GPUs of this type.
    #[must_use]
    pub fn of_type(&self, gpu_type: &str) -> u32 {
        self.types.iter().find(|known| known.name == gpu_type).map_or(0, |known| known.gpus)
    }

    /// The types in the order of their names, with their free GPUs.
    #[must_use]
    pub fn by_name(&self) -> BTreeMap<&'a str, u32> {
        self.types.iter().map(|known| (known.name, known.gpus)).collect()
    }

    /// Withholds GPUs of a type that are free but awaited by other jobs.
    pub(crate) fn withhold(&mut self, gpu_type: &str, gpus: u32) {
        for known in self.types.iter_mut().filter(|known| known.name == gpu_type) {
            known.subtract(gpus);
        }
    }

    /// Takes this many GPUs of the type; false, with nothing taken, if fewer are free.
    pub fn take(&mut self, gpu_type: &str, gpus: u32) -> bool {
        let mut types = self.types.iter_mut();
        let known = types.find(|known| known.name == gpu_type && known.gpus >= gpus);
        known.map(|known| known.subtract(gpus)).is_some()
    }
}

/// Numbers of free GPUs by node: which sets of GPUs could be placed, without choosing nodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeCounts {
    /// Nodes with this many free GPUs, of those that are not entirely free.
    partial: BTreeMap<u32, u32>,
    /// Entirely free nodes by size.
    entire: BTreeMap<u32, u32>,
}

impl NodeCounts {
    pub(crate) fn add_node(&mut self, gpus: u32, free: u32) {
        if free == gpus && gpus > 0 {
            *self.entire.entry(gpus).or_default() += 1;
        } else if free > 0 {
            *self.partial.entry(free).or_default() += 1;
        }
    }

    /// The largest set that one job could get.
    pub(crate) fn largest_set(&self) -> u32 {
        let over_nodes = self.entire.iter().map(|(size, nodes)| size * nodes).max().unwrap_or(0);
        over_nodes.max(self.largest_in_node())
    }

    /// The most free GPUs of one node.
    pub(crate) fn largest_in_node(&self) -> u32 {
        let last = |nodes: &BTreeMap<u32, u32>| nodes.last_key_value().map_or(0, |(size, _)| *size);
        last(&self.partial).max(last(&self.entire))
    }

    /// Takes sets of these sizes, the largest first, so that the rest does not depend on their order.
    pub(crate) fn take_sets(&mut self, sizes: impl Iterator<Item = u32>) {
        let mut sizes: Vec<u32> = sizes.collect();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        for gpus in sizes {
            let largest = self.largest_in_node();
            self.take_set(gpus, largest);
        }
    }

    /// Takes one set of GPUs: inside a node if `gpus` is at most `node_max`, otherwise of entirely free
    /// nodes of one size. False if there is none.
    pub(crate) fn take_set(&mut self, gpus: u32, node_max: u32) -> bool {
        if gpus > node_max {
            let class = self.entire.iter().find(|(size, nodes)| *size * *nodes >= gpus);
            let Some((&size, _)) = class else { return false };
            let nodes = gpus.div_ceil(size);
            (0..nodes).for_each(|_| remove_one(&mut self.entire, size));
            self.add_partial(nodes * size - gpus);
            return true;
        }
        if let Some((&free, _)) = self.partial.range(gpus..).next() {
            remove_one(&mut self.partial, free);
            self.add_partial(free - gpus);
            return true;
        }
        let Some((&size, _)) = self.entire.range(gpus..).next() else { return false };
        remove_one(&mut self.entire, size);
        self.add_partial(size - gpus);
        true
    }

    fn add_partial(&mut self, gpus: u32) {
        if gpus > 0 {
            *self.partial.entry(gpus).or_default() += 1;
        }
    }
}

fn remove_one(nodes: &mut BTreeMap<u32, u32>, size: u32) {
    if let Some(count) = nodes.get_mut(&size) {
        *count -= 1;
        if *count == 0 {
            nodes.remove(&size);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocation::test_cluster;
    use crate::state::gpu_set::NodeGpus;
    use crate::state::node::Wakefulness;

    #[test]
    fn taking_gpus_moves_a_node_to_another_class() {
        let state = test_cluster(&[8, 8, 4]);
        let mut capacity = FreeCapacity::new(&state, Scope::Idle);
        let classes = |capacity: &FreeCapacity<'_>| -> Vec<(u32, u64, Vec<u32>)> {
            let of = |(class, nodes): (&NodeClass<'_>, &BTreeSet<NodeKey>)| {
                (class.gpus, class.free, nodes.iter().map(|node| node.0).collect())
            };
            capacity.classes().iter().map(of).collect()
        };
        assert_eq!(classes(&capacity), [(4, 15, vec![2]), (8, 255, vec![0, 1])]);
        capacity.take(&GpuSet {
            by_node: vec![
                NodeGpus { node: NodeKey(0), gpus: 0b11 },
                NodeGpus { node: NodeKey(2), gpus: 0b1111 },
            ],
        });
        let expected = [(4, 0, vec![2]), (8, 0b1111_1100, vec![0]), (8, 255, vec![1])];
        assert_eq!(classes(&capacity), expected);
        assert_eq!(capacity.free(NodeKey(0)), 0b1111_1100);
        capacity.take(&GpuSet::on(NodeKey(1), 0b11));
        assert_eq!(classes(&capacity)[1], (8, 0b1111_1100, vec![0, 1]));
        assert!(!capacity.classes().keys().any(NodeClass::is_entirely_free));
    }

    #[test]
    fn the_scope_decides_whether_sleeping_nodes_count() {
        let mut state = test_cluster(&[8, 4]);
        state.wakefulness_changed(NodeKey(1), Wakefulness::Asleep);
        let total = |scope| FreeCapacity::new(&state, scope).type_counts().total();
        assert_eq!([Scope::Idle, Scope::IdleOrAsleep, Scope::All].map(total), [8, 12, 12]);
    }

    #[test]
    fn a_type_gives_no_more_than_is_free() {
        let state = test_cluster(&[8]);
        let mut counts = FreeCapacity::new(&state, Scope::All).type_counts();
        assert!(!counts.take("v100", 9) && !counts.take("a100", 1));
        assert!(counts.take("v100", 5));
        assert_eq!((counts.of_type("v100"), counts.of_type("a100")), (3, 0));
    }

    #[test]
    fn a_set_comes_from_the_fullest_node_or_from_entire_nodes() {
        let mut counts = NodeCounts::default();
        for (gpus, free) in [(8, 8), (8, 8), (8, 3), (2, 2)] {
            counts.add_node(gpus, free);
        }
        assert_eq!((counts.largest_set(), counts.largest_in_node()), (16, 8));
        assert!(counts.take_set(2, 8), "of the node with three free");
        assert!(counts.take_set(12, 8), "two entire nodes, four GPUs are left");
        assert!(counts.take_set(4, 8));
        assert!(!counts.take_set(4, 8));
        assert_eq!(counts.largest_set(), 2);
    }
}
