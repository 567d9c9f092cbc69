//! The buddy allocator: which free GPUs a job gets.
//!
//! A **block** is 2^k GPUs of one node that start at a multiple of 2^k, or 2^k entire nodes that start
//! at a multiple of 2^k. Two halves of a block are buddies. GPUs given out in blocks fragment little:
//! the rest of a node is again a set of blocks.
//!
//! * The state is the bitmap of free GPUs ([`FreeCapacity`]). A block is free if all its bits are set.
//!   Taking part of a block thereby splits it, and releasing the part coalesces it with its buddy at
//!   every level; there is no list of blocks that could disagree with the bitmap.
//! * A request is served from the smallest free block that holds it, so that larger ones stay entire,
//!   and on the fullest node that has such a block.
//! * A block lies on one board of a node, since boards are powers of two as well. A request that is no
//!   power of two gets the lowest free GPUs, on one board if one board can hold it. On a node whose
//!   size is no multiple of the request, or that has unhealthy GPUs, free GPUs outside any block are used as
//!   a last resort: policies count healthy GPUs, and would otherwise wait for a block that never exists.
//! * A request larger than every node gets entire nodes of one type and size, chosen by leaf switch and
//!   alignment ([`super::network`]).
//!
//! First fit is the other placement rule ([`super::first_fit`]); the FIFO family keeps it, since the
//! published figures of those policies rest on it.

use std::collections::BTreeMap;

use crate::allocation::capacity::{FreeCapacity, NodeClass};
use crate::allocation::network;
use crate::state::gpu_set::{GpuSet, NodeGpus, NodeKey, lowest, ones};

/// A request for GPUs that lie together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockRequest<'a> {
    pub(crate) gpus: u32,
    /// The GPU type; `None`: any one type.
    pub(crate) gpu_type: Option<&'a str>,
    /// Least device memory of each GPU, MiB.
    pub(crate) memory_mib: u64,
}

impl BlockRequest<'_> {
    fn suits(&self, class: &NodeClass<'_>) -> bool {
        self.gpu_type.is_none_or(|gpu_type| class.gpu_type == gpu_type)
            && class.memory_mib.is_none_or(|memory| memory >= self.memory_mib)
    }
}

/// The GPUs for a request: inside one node if any node is large enough, otherwise entire nodes. `None`
/// if no block is free.
pub(crate) fn allocate(capacity: &FreeCapacity<'_>, request: BlockRequest<'_>) -> Option<GpuSet> {
    allocate_where(capacity, request, &|_| true)
}

/// [`allocate`] among sets of GPUs that are permitted. A part of a permitted set is permitted.
pub(crate) fn allocate_where(
    capacity: &FreeCapacity<'_>,
    request: BlockRequest<'_>,
    permits: &dyn Fn(&GpuSet) -> bool,
) -> Option<GpuSet> {
    let gpus = request.gpus;
    let classes = || capacity.classes().iter().filter(|(class, _)| request.suits(class));
    if classes().all(|(class, _)| class.gpus < gpus) {
        return allocate_nodes(capacity, request, permits);
    }
    let blocks = classes().filter(|(class, _)| class.gpus >= gpus).filter_map(|(class, nodes)| {
        let block = gpus_in_node(class.free, gpus, class.gpus, class.board, class.is_damaged)?;
        // One board first, then the fullest node, then the first.
        let node = *nodes.iter().find(|node| permits(&GpuSet::on(**node, block)))?;
        Some((spans_boards(block, class.board), class.free.count_ones(), node, block))
    });
    blocks.min().map(|(_, _, node, block)| GpuSet::on(node, block))
}

/// Entire nodes of one type and size.
fn allocate_nodes(
    capacity: &FreeCapacity<'_>,
    request: BlockRequest<'_>,
    permits: &dyn Fn(&GpuSet) -> bool,
) -> Option<GpuSet> {
    let mut free: BTreeMap<(&str, u32), Vec<NodeKey>> = BTreeMap::new();
    for (class, nodes) in capacity.classes() {
        if request.suits(class) && class.is_entirely_free() {
            free.entry((class.gpu_type, class.gpus)).or_default().extend(nodes);
        }
    }
    free.into_iter().find_map(|((_, size), mut nodes)| {
        nodes.sort_unstable();
        let count = request.gpus.div_ceil(size) as usize;
        let on = |nodes: &[NodeKey]| {
            let mut left = request.gpus;
            let by_node = nodes.iter().map(|&node| {
                let here = left.min(size);
                left -= here;
                NodeGpus { node, gpus: ones(here) }
            });
            GpuSet { by_node: by_node.collect() }
        };
        let chosen = on(&network::choose_nodes(capacity.state(), &nodes, count)?);
        if permits(&chosen) {
            return Some(chosen);
        }
        // Any nodes that are permitted together, in order.
        let mut together: Vec<NodeKey> = Vec::new();
        for node in nodes {
            together.push(node);
            if together.len() > count || !permits(&on(&together)) {
                together.pop();
            }
        }
        (together.len() == count).then(|| on(&together))
    })
}

/// Whether these GPUs lie on several boards although one board could hold as many.
fn spans_boards(gpus: u64, board: Option<u32>) -> bool {
    let Some(board) = board.filter(|board| gpus.count_ones() <= *board) else { return false };
    gpus & !(ones(board) << (gpus.trailing_zeros() / board * board)) != 0
}

/// As [`block_in_node`]; on a node with unhealthy GPUs, whose other GPUs may form no block, any free GPUs as
/// a last resort.
pub(super) fn gpus_in_node(
    free: u64,
    count: u32,
    size: u32,
    board: Option<u32>,
    is_damaged: bool,
) -> Option<u64> {
    let any = || (is_damaged && free.count_ones() >= count).then(|| lowest(free, count));
    block_in_node(free, count, size, board).or_else(any)
}

/// `count` of a node's free GPUs: an aligned block out of the smallest free block that holds it; for a
/// count that is no power of two the lowest free GPUs, of the fullest board that has enough.
fn block_in_node(free: u64, count: u32, size: u32, board: Option<u32>) -> Option<u64> {
    if free.count_ones() < count {
        return None;
    }
    if !count.is_power_of_two() {
        let boards = board.into_iter().flat_map(|board| {
            let on_board = move |first| free & ones(board) << first;
            (0..size).step_by(board as usize).map(on_board)
        });
        let enough = boards.filter(|there| there.count_ones() >= count);
        let fullest = enough.min_by_key(|there| there.count_ones());
        return Some(lowest(fullest.unwrap_or(free), count));
    }
    let free_blocks = |width: u32| {
        (0..size)
            .step_by(width as usize)
            .filter(move |first| first + width <= size)
            .map(move |first| ones(width) << first)
            .filter(move |block| free & block == *block)
    };
    let mut width = count;
    let mut part_of_larger = None;
    while width <= size {
        let larger: Vec<u64> = free_blocks(width * 2).collect();
        // A block whose buddy is taken: using it splits no larger block.
        let maximal =
            free_blocks(width).find(|block| !larger.iter().any(|larger| larger & block == *block));
        if let Some(block) = maximal {
            return Some(lowest(block, count));
        }
        part_of_larger = part_of_larger.or_else(|| free_blocks(width).next());
        width *= 2;
    }
    part_of_larger
        .map(|block| lowest(block, count))
        .or_else(|| (!size.is_multiple_of(count)).then(|| lowest(free, count)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocation::capacity::Scope;
    use crate::allocation::test_cluster;
    use proptest::prelude::*;

    /// The blocks of `width` GPUs of a node, by their definition.
    fn blocks(size: u32, width: u32) -> impl Iterator<Item = u64> {
        let firsts = (0..size).step_by(width as usize).filter(move |first| first + width <= size);
        firsts.map(move |first| ones(width) << first)
    }

    fn request(gpus: u32) -> BlockRequest<'static> {
        BlockRequest { gpus, gpu_type: None, memory_mib: 0 }
    }

    #[test]
    fn a_set_that_is_not_permitted_is_passed_over() {
        let state = test_cluster(&[8; 6]);
        let mut capacity = FreeCapacity::new(&state, Scope::Idle);
        capacity.take_on(NodeKey::at(1), 0b1111);
        let nodes = |set: Option<GpuSet>| -> Vec<u32> {
            set.into_iter().flat_map(|set| set.by_node).map(|part| part.node.0).collect()
        };
        let chosen = |gpus: u32, refused: &[u32], together: u32| {
            let permits = |on: &GpuSet| {
                let is_refused = |part: &NodeGpus| refused.contains(&part.node.0);
                !on.by_node.iter().any(is_refused) && on.node_count() <= together
            };
            nodes(allocate_where(&capacity, request(gpus), &permits))
        };
        assert_eq!(chosen(2, &[], 6), [1], "the fullest node");
        assert_eq!(chosen(2, &[1], 6), [0]);
        assert_eq!(chosen(2, &[0, 1, 2], 6), [3], "of equal nodes the first that is permitted");
        assert_eq!(chosen(16, &[], 6), [2, 3]);
        assert_eq!(chosen(16, &[3], 6), [0, 2], "the first that are permitted");
        assert_eq!(chosen(16, &[0, 2, 4], 6), [3, 5]);
        assert!(chosen(16, &[], 1).is_empty());
    }

    #[test]
    fn the_smallest_block_that_holds_the_request_is_split() {
        assert_eq!(block_in_node(0b1111_1111, 2, 8, None), Some(0b11));
        // 4..8 is entire: the pair comes from the half that is split already.
        assert_eq!(block_in_node(0b1111_0110, 1, 8, None), Some(0b10));
        assert_eq!(block_in_node(0b1111_1100, 2, 8, None), Some(0b1100));
        assert_eq!(block_in_node(0b0110_0110, 2, 8, None), None);
        assert_eq!(block_in_node(0b0110_0110, 3, 8, None), Some(0b10_0110));
        assert_eq!(block_in_node(0b11, 4, 8, None), None);
    }

    #[test]
    fn a_request_that_one_board_can_hold_stays_on_one_board() {
        for (size, board) in [(8, 4), (8, 2), (6, 2), (12, 4), (8, 8)] {
            for free in 0..1u64 << size {
                for count in 1..=board {
                    let chosen = block_in_node(free, count, size, Some(board));
                    let on_board = |first| free & ones(board) << first;
                    let mut boards = (0..size).step_by(board as usize).map(on_board);
                    let Some(chosen) = chosen else { continue };
                    assert_eq!((chosen.count_ones(), chosen & !free), (count, 0));
                    let possible = boards.any(|there| there.count_ones() >= count);
                    let split = spans_boards(chosen, Some(board));
                    assert!(
                        !split || !possible,
                        "{count} of {free:b}: {chosen:b} on boards of {board}"
                    );
                    assert!(!split || !count.is_power_of_two(), "{count} of {free:b}: {chosen:b}");
                }
            }
        }
        // Without boards, three are the lowest; with boards, three of one board.
        assert_eq!(block_in_node(0b1111_1000, 3, 8, None), Some(0b11_1000));
        assert_eq!(block_in_node(0b1111_1000, 3, 8, Some(4)), Some(0b111_0000));
    }

    #[test]
    fn a_block_is_allocated_exactly_when_an_aligned_one_is_free() {
        for size in [4, 6, 8, 12] {
            for free in 0..1u64 << size {
                for count in [1, 2, 4, 8].into_iter().filter(|count| size % count == 0) {
                    let chosen = block_in_node(free, count, size, None);
                    let possible = blocks(size, count).any(|block| free & block == block);
                    assert_eq!(chosen.is_some(), possible, "{count} of {free:b}");
                    let Some(chosen) = chosen else { continue };
                    assert!(blocks(size, count).any(|block| block == chosen), "{chosen:b}");
                    // No smaller free block could have served it.
                    let holder = |block: u64| {
                        let mut widths = [8, 4, 2, 1].into_iter().filter(|width| *width <= size);
                        let of = |width| {
                            blocks(size, width).find(|b| b & block == block && free & b == *b)
                        };
                        widths.find_map(of).map_or(0, u64::count_ones)
                    };
                    let least = blocks(size, count).filter(|b| free & b == *b).map(holder).min();
                    assert_eq!(Some(holder(chosen)), least, "{count} of {free:b}: {chosen:b}");
                }
            }
        }
    }

    #[test]
    fn a_request_larger_than_a_node_gets_an_aligned_run_of_entire_nodes() {
        let state = test_cluster(&[8; 8]);
        let mut capacity = FreeCapacity::new(&state, Scope::Idle);
        capacity.take(&GpuSet::on(NodeKey(0), 1));
        let nodes = |set: GpuSet| set.by_node.iter().map(|here| here.node.0).collect::<Vec<_>>();
        let two = allocate(&capacity, request(16)).unwrap();
        assert_eq!(nodes(two.clone()), [2, 3]);
        capacity.take(&two);
        assert_eq!(nodes(allocate(&capacity, request(32)).unwrap()), [4, 5, 6, 7]);
        assert_eq!(allocate(&capacity, request(64)), None);
        // What fits a node is never spread over several.
        assert_eq!(allocate(&capacity, request(8)).unwrap().node_count(), 1);
    }

    proptest! {
        /// Any sequence of allocations and releases: blocks are aligned and disjoint, a free block is
        /// always found, and released blocks coalesce completely.
        #[test]
        fn blocks_are_aligned_and_disjoint_and_coalesce(
            sizes in prop::collection::vec(prop_oneof![Just(4u32), Just(8), Just(16)], 1..6),
            steps in prop::collection::vec((any::<bool>(), 0u32..4, any::<prop::sample::Index>()), 1..80),
        ) {
            let state = test_cluster(&sizes);
            let mut held: Vec<GpuSet> = Vec::new();
            for (allocates, power, which) in steps {
                if !allocates && !held.is_empty() {
                    held.swap_remove(which.index(held.len()));
                    continue;
                }
                let mut capacity = FreeCapacity::new(&state, Scope::Idle);
                held.iter().for_each(|set| capacity.take(set));
                let gpus = 1 << power;
                let free_block = state.keyed_nodes().any(|(key, node)| {
                    let free = capacity.free(key);
                    blocks(node.facts.gpus, gpus).any(|block| free & block == block)
                });
                let fits_a_node = sizes.iter().any(|size| *size >= gpus);
                let chosen = allocate(&capacity, request(gpus));
                if fits_a_node {
                    prop_assert_eq!(chosen.is_some(), free_block, "{} of {:?}", gpus, sizes);
                }
                let Some(chosen) = chosen else { continue };
                prop_assert_eq!(chosen.gpu_count(), gpus);
                for here in &chosen.by_node {
                    prop_assert_eq!(here.gpus & !capacity.free(here.node), 0, "overlap");
                    let first = here.gpus.trailing_zeros();
                    let width = here.gpus.count_ones();
                    prop_assert_eq!(here.gpus, ones(width) << first, "not contiguous");
                    prop_assert!(first.is_multiple_of(width), "not aligned: {:b}", here.gpus);
                }
                held.push(chosen);
            }
            // Releasing everything leaves every node one free block.
            let empty = FreeCapacity::new(&state, Scope::Idle);
            for (key, node) in state.keyed_nodes() {
                let entire = block_in_node(empty.free(key), node.facts.gpus, node.facts.gpus, None);
                prop_assert_eq!(entire, Some(ones(node.facts.gpus)));
            }
        }
    }
}
