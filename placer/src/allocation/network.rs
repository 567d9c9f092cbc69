//! Which entire nodes a job gets that needs several: below few leaf switches, and adjacent.
//!
//! Traffic through a leaf switch's uplink is shared with all other traffic; traffic below the switch
//! is not. The order of preference is: fewest switches; then the switches with the fewest free nodes
//! left, so that entire switches stay free; then a run of adjacent nodes that starts at a multiple of
//! its length, an aligned block ([`super::buddy`]). Where no switch is known only the run counts. The
//! slowdown that a further switch causes is not modelled.

use std::collections::{BTreeMap, BTreeSet};

use crate::state::cluster::ClusterState;
use crate::state::gpu_set::NodeKey;

/// `count` of the free `nodes`, which are equal and ascending; `None` if there are fewer.
pub(super) fn choose_nodes(
    state: &ClusterState,
    nodes: &[NodeKey],
    count: usize,
) -> Option<Vec<NodeKey>> {
    if count == 0 || nodes.len() < count {
        return None;
    }
    let mut below: BTreeMap<Option<u32>, Vec<NodeKey>> = BTreeMap::new();
    for &node in nodes {
        below.entry(state.node(node).switch).or_default().push(node);
    }
    let is_adjacent = |run: &&[NodeKey]| run[count - 1].index() - run[0].index() < count;
    // Adjacent nodes, also across switches, and one choice switch by switch.
    let runs = nodes.windows(count).filter(is_adjacent);
    let cost = |chosen: &&[NodeKey]| {
        let used = switches(state, chosen.iter().copied());
        // Free nodes of these switches, with those chosen.
        let free = used.iter().map(|switch| below[&Some(*switch)].len()).sum::<usize>();
        let adjacent = chosen[count - 1].index() - chosen[0].index() < count;
        let aligned = adjacent && chosen[0].index().is_multiple_of(count);
        (used.len(), free, !adjacent, !aligned, chosen[0])
    };
    let scattered = scattered(&below, count);
    runs.chain(scattered.as_deref()).min_by_key(cost).map(<[NodeKey]>::to_vec)
}

/// The known leaf switches of these nodes.
pub(super) fn switches(
    state: &ClusterState,
    nodes: impl Iterator<Item = NodeKey>,
) -> BTreeSet<u32> {
    nodes.filter_map(|node| state.node(node).switch).collect()
}

/// Nodes that need not be adjacent: of the switch with the fewest free nodes that still has enough;
/// if none has enough, of the switch with the most, and the rest by the same rule.
fn scattered(below: &BTreeMap<Option<u32>, Vec<NodeKey>>, count: usize) -> Option<Vec<NodeKey>> {
    let mut open: Vec<&Vec<NodeKey>> = below.values().collect();
    let mut chosen = Vec::with_capacity(count);
    while chosen.len() < count && !open.is_empty() {
        let missing = count - chosen.len();
        let fits = (0..open.len()).filter(|&i| open[i].len() >= missing);
        let smallest = fits.min_by_key(|&i| open[i].len());
        let largest = (0..open.len()).max_by_key(|&i| (open[i].len(), std::cmp::Reverse(i)));
        let Some(next) = smallest.or(largest) else { break };
        chosen.extend(open.remove(next).iter().take(missing));
    }
    chosen.sort_unstable();
    (chosen.len() == count).then_some(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::node::NodeFacts;

    /// Nodes 0, 1, 2, ... below these switches, all free.
    fn cluster(switches: &[Option<u32>]) -> ClusterState {
        let mut state = ClusterState::new();
        for (i, switch) in switches.iter().enumerate() {
            let key = state.node_known(NodeFacts {
                id: format!("n{i}").parse().unwrap(),
                gpu_type: "v100".to_owned(),
                gpus: 8,
                memory_mib: Some(16_384),
                healthy: u64::MAX,
                watts: None,
                host: None,
                partitions: Vec::new(),
            });
            state.switch_known(key, *switch);
        }
        state
    }

    fn chosen(state: &ClusterState, free: &[u32], count: usize) -> Option<Vec<u32>> {
        let free: Vec<NodeKey> = free.iter().map(|node| NodeKey(*node)).collect();
        Some(choose_nodes(state, &free, count)?.iter().map(|node| node.0).collect())
    }

    #[test]
    fn without_switches_an_aligned_run_is_best() {
        let state = cluster(&[None; 8]);
        assert_eq!(chosen(&state, &[1, 2, 3, 4, 5], 2), Some(vec![2, 3]));
        assert_eq!(chosen(&state, &[1, 2, 4, 7], 2), Some(vec![1, 2]), "adjacent");
        assert_eq!(chosen(&state, &[0, 2, 5, 7], 2), Some(vec![0, 2]), "any two");
        assert_eq!(chosen(&state, &[0, 2], 3), None);
    }

    #[test]
    fn few_switches_come_first_and_fuller_ones_before_emptier_ones() {
        let by_three: Vec<Option<u32>> = (0..9).map(|i| Some(i / 3)).collect();
        let state = cluster(&by_three);
        // 2 and 3 are adjacent below two switches; 6 and 8 lie below one.
        assert_eq!(chosen(&state, &[2, 3, 6, 8], 2), Some(vec![6, 8]));
        // The first switch is all free and stays so.
        assert_eq!(chosen(&state, &[0, 1, 2, 4, 5], 2), Some(vec![4, 5]));
        // Four nodes: two switches, not three.
        assert_eq!(chosen(&state, &[2, 3, 4, 6, 7, 8], 4), Some(vec![2, 6, 7, 8]));
    }
}
