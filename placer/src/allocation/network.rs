//! Which whole nodes a job of several gets: below few leaf switches, and next to each other.
//!
//! What crosses a leaf switch shares its way up with everybody else's traffic; what stays below it
//! does not. So fewest switches come first, then the fullest ones, so that whole switches stay free
//! for who needs them whole, then a run of neighbouring nodes that starts at a multiple of its
//! length, which leaves its buddies whole ([`crate::allocation::buddy`]). Where no switch is known only the run
//! counts. What more switches cost a job is not known here.

use std::collections::{BTreeMap, BTreeSet};

use crate::state::cluster::ClusterState;
use crate::state::gpu_set::NodeKey;

/// `wanted` of the free `nodes`, which are alike and ascending; `None` where there are fewer.
pub(super) fn together(
    state: &ClusterState,
    nodes: &[NodeKey],
    wanted: usize,
) -> Option<Vec<NodeKey>> {
    if wanted == 0 || nodes.len() < wanted {
        return None;
    }
    let mut below: BTreeMap<Option<u32>, Vec<NodeKey>> = BTreeMap::new();
    for &node in nodes {
        below.entry(state.node(node).switch).or_default().push(node);
    }
    let close = |run: &&[NodeKey]| run[wanted - 1].index() - run[0].index() < wanted;
    // Neighbours, wherever their switches end; then what one switch after the other has.
    let runs = nodes.windows(wanted).filter(close);
    let cost = |chosen: &&[NodeKey]| {
        let used = switches(state, chosen.iter().copied());
        // Free nodes of these switches that the job leaves.
        let left = used.iter().map(|switch| below[&Some(*switch)].len()).sum::<usize>();
        let next = chosen[wanted - 1].index() - chosen[0].index() < wanted;
        let aligned = next && chosen[0].index().is_multiple_of(wanted);
        (used.len(), left, !next, !aligned, chosen[0])
    };
    let scattered = scattered(&below, wanted);
    runs.chain(scattered.as_deref()).min_by_key(cost).map(<[NodeKey]>::to_vec)
}

/// The leaf switches these nodes are below, as far as they are known.
pub(super) fn switches(
    state: &ClusterState,
    nodes: impl Iterator<Item = NodeKey>,
) -> BTreeSet<u32> {
    nodes.filter_map(|node| state.node(node).switch).collect()
}

/// Nodes that need not be neighbours: from the switch with the fewest free ones that still has
/// enough; where none has, from those with the most, and the rest again so.
fn scattered(below: &BTreeMap<Option<u32>, Vec<NodeKey>>, wanted: usize) -> Option<Vec<NodeKey>> {
    let mut open: Vec<&Vec<NodeKey>> = below.values().collect();
    let mut chosen = Vec::with_capacity(wanted);
    while chosen.len() < wanted && !open.is_empty() {
        let missing = wanted - chosen.len();
        let fits = (0..open.len()).filter(|&i| open[i].len() >= missing);
        let smallest = fits.min_by_key(|&i| open[i].len());
        let largest = (0..open.len()).max_by_key(|&i| (open[i].len(), std::cmp::Reverse(i)));
        let Some(next) = smallest.or(largest) else { break };
        chosen.extend(open.remove(next).iter().take(missing));
    }
    chosen.sort_unstable();
    (chosen.len() == wanted).then_some(chosen)
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
                memory_mib: 16_384,
                healthy: u64::MAX,
                watts: None,
            });
            state.node_is_below(key, *switch);
        }
        state
    }

    fn chosen(state: &ClusterState, free: &[u32], wanted: usize) -> Option<Vec<u32>> {
        let free: Vec<NodeKey> = free.iter().map(|node| NodeKey(*node)).collect();
        Some(together(state, &free, wanted)?.iter().map(|node| node.0).collect())
    }

    #[test]
    fn without_switches_an_aligned_run_is_best() {
        let state = cluster(&[None; 8]);
        assert_eq!(chosen(&state, &[1, 2, 3, 4, 5], 2), Some(vec![2, 3]));
        assert_eq!(chosen(&state, &[1, 2, 4, 7], 2), Some(vec![1, 2]), "next to each other");
        assert_eq!(chosen(&state, &[0, 2, 5, 7], 2), Some(vec![0, 2]), "or any");
        assert_eq!(chosen(&state, &[0, 2], 3), None);
    }

    #[test]
    fn few_switches_come_before_neighbours_and_full_ones_before_empty_ones() {
        let by_three: Vec<Option<u32>> = (0..9).map(|i| Some(i / 3)).collect();
        let state = cluster(&by_three);
        // 2 and 3 are neighbours below two switches; 6 and 8 lie below one.
        assert_eq!(chosen(&state, &[2, 3, 6, 8], 2), Some(vec![6, 8]));
        // The first switch is all free and stays so.
        assert_eq!(chosen(&state, &[0, 1, 2, 4, 5], 2), Some(vec![4, 5]));
        // Four nodes: two switches, not three.
        assert_eq!(chosen(&state, &[2, 3, 4, 6, 7, 8], 4), Some(vec![2, 6, 7, 8]));
    }
}
