//! Buddy allocation: aligned power-of-two blocks over nodes and their GPUs.
//!
//! GPUs given out in aligned blocks do not fragment: a block is either whole, or split into its
//! parts, and parts that are free again join. Inside a node a block is 2^k GPUs at a multiple of
//! 2^k; above it, 2^k whole equal nodes at a multiple of 2^k. A cluster or node whose size is no
//! power of two is a forest: 28 nodes are blocks of 16, 8 and 4; a node of 6 GPUs splits into 4 and
//! 2. The elastic policies place with it; the FIFO family does not, since its published figures are
//! those of first fit.

use std::collections::{BTreeMap, BTreeSet};

use crate::state::gpu_set::{GpuSet, NodeGpus, NodeKey, ones};

/// A block of GPUs, as given out by [`Buddy::allocate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Block(u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// Free as a whole, or within a larger block that is.
    Free,
    /// Some of its parts are given out.
    Split,
    /// Given out as a whole.
    Taken,
}

#[derive(Clone, Debug)]
struct Part {
    gpus: u32,
    /// Its first node, and how many.
    node: u32,
    nodes: u32,
    /// Its first GPU within the node; 0 where it spans whole nodes.
    gpu: u32,
    parent: Option<u32>,
    /// Its parts, which lie together in the arena.
    parts: std::ops::Range<u32>,
    used: Use,
}

/// Which blocks of a cluster are free.
#[derive(Clone, Debug)]
pub struct Buddy {
    arena: Vec<Part>,
    /// Largest free blocks by their size, each in the order of their place.
    free: BTreeMap<u32, BTreeSet<u32>>,
    gpus_free: u32,
}

impl Buddy {
    /// A free cluster: how many GPUs each node has, in node order. Blocks of several nodes are made
    /// of equal nodes that stand next to each other.
    #[must_use]
    pub fn new(sizes: &[u32]) -> Self {
        let mut buddy = Self { arena: Vec::new(), free: BTreeMap::new(), gpus_free: 0 };
        let mut first = 0;
        for group in sizes.chunk_by(|a, b| a == b) {
            let (size, count) = (group[0], group.len() as u32);
            if size > 0 {
                let mut at = 0;
                while at < count {
                    let nodes = largest_power(count - at);
                    buddy.plant(first + at, nodes, size);
                    at += nodes;
                }
            }
            first += count;
        }
        buddy
    }

    /// How many GPUs are not given out. They may lie in blocks too small for a request.
    #[must_use]
    pub fn gpus_free(&self) -> u32 {
        self.gpus_free
    }

    /// The size of the largest free block.
    #[must_use]
    pub fn largest_free(&self) -> u32 {
        self.free.last_key_value().map_or(0, |(size, _)| *size)
    }

    /// The smallest block that holds `gpus`, from the smallest free one that does: the lowest place
    /// where there are several. `None` only where no aligned block of that size is free.
    pub fn allocate(&mut self, gpus: u32) -> Option<Block> {
        if gpus == 0 {
            return None;
        }
        let (&size, places) = self.free.range(gpus..).next()?;
        let mut at = *places.first().expect("an empty set of places is removed");
        self.unlist(size, at);
        loop {
            let parts = self.part(at).parts.clone();
            let smallest = parts
                .clone()
                .filter(|&part| self.part(part).gpus >= gpus)
                .min_by_key(|&part| (self.part(part).gpus, part));
            let Some(chosen) = smallest else { break };
            self.part_mut(at).used = Use::Split;
            for part in parts.filter(|&part| part != chosen) {
                self.list(part);
            }
            at = chosen;
        }
        self.part_mut(at).used = Use::Taken;
        self.gpus_free -= self.part(at).gpus;
        Some(Block(at))
    }

    /// Takes a block back; it joins with its neighbours as far as they are free. A block that is
    /// not given out is left alone, and the answer is false.
    pub fn release(&mut self, block: Block) -> bool {
        let mut at = block.0;
        if self.arena.get(at as usize).is_none_or(|part| part.used != Use::Taken) {
            return false;
        }
        self.part_mut(at).used = Use::Free;
        self.gpus_free += self.part(at).gpus;
        while let Some(parent) = self.part(at).parent {
            let parts = self.part(parent).parts.clone();
            if parts.clone().any(|part| self.part(part).used != Use::Free) {
                break;
            }
            for part in parts.filter(|&part| part != at) {
                self.unlist(self.part(part).gpus, part);
            }
            self.part_mut(parent).used = Use::Free;
            at = parent;
        }
        self.list(at);
        true
    }

    /// The GPUs of a block.
    #[must_use]
    pub fn gpus(&self, block: Block) -> GpuSet {
        let part = self.part(block.0);
        if part.nodes == 1 {
            return GpuSet::on(NodeKey(part.node), ones(part.gpus) << part.gpu);
        }
        let gpus = ones(part.gpus / part.nodes);
        let nodes = part.node..part.node + part.nodes;
        GpuSet { by_node: nodes.map(|node| NodeGpus { node: NodeKey(node), gpus }).collect() }
    }

    /// Adds a free block of whole nodes and everything it can be split into.
    fn plant(&mut self, node: u32, nodes: u32, size: u32) {
        let root = self.arena.len() as u32;
        let gpus = nodes * size;
        self.arena.push(Part {
            gpus,
            node,
            nodes,
            gpu: 0,
            parent: None,
            parts: 0..0,
            used: Use::Free,
        });
        self.list(root);
        self.gpus_free += gpus;
        let mut next = root;
        while (next as usize) < self.arena.len() {
            let whole = self.part(next).clone();
            let begin = self.arena.len() as u32;
            let part = Part { parent: Some(next), parts: 0..0, ..whole };
            if whole.nodes > 1 {
                let (half, gpus) = (whole.nodes / 2, whole.gpus / 2);
                for node in [whole.node, whole.node + half] {
                    self.arena.push(Part { node, nodes: half, gpus, ..part.clone() });
                }
            } else if whole.gpus > 1 {
                let mut gpu = whole.gpu;
                let end = whole.gpu + whole.gpus;
                // Halves; or, of a node that is no power of two, the powers it is the sum of.
                let most = whole.gpus.div_ceil(2);
                while gpu < end {
                    let gpus = largest_power((end - gpu).min(largest_at_most(most, whole.gpus)));
                    self.arena.push(Part { gpu, gpus, ..part.clone() });
                    gpu += gpus;
                }
            }
            let parts = begin..self.arena.len() as u32;
            self.part_mut(next).parts = parts;
            next += 1;
        }
    }

    fn part(&self, at: u32) -> &Part {
        &self.arena[at as usize]
    }

    fn part_mut(&mut self, at: u32) -> &mut Part {
        &mut self.arena[at as usize]
    }

    fn list(&mut self, at: u32) {
        self.free.entry(self.part(at).gpus).or_default().insert(at);
    }

    fn unlist(&mut self, size: u32, at: u32) {
        if let Some(places) = self.free.get_mut(&size) {
            places.remove(&at);
            if places.is_empty() {
                self.free.remove(&size);
            }
        }
    }
}

/// The largest part of a block of `gpus`: half of a power of two, the largest power below any other.
const fn largest_at_most(half: u32, gpus: u32) -> u32 {
    if gpus.is_power_of_two() { half } else { largest_power(gpus) }
}

/// The largest power of two that is at most `n`, which is at least 1.
const fn largest_power(n: u32) -> u32 {
    1 << n.ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn show(buddy: &Buddy, block: Option<Block>) -> String {
        let Some(block) = block else { return "no room".to_owned() };
        let by_node = buddy.gpus(block).by_node;
        by_node
            .iter()
            .map(|s| format!("n{}:{:b}", s.node.index(), s.gpus))
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn the_smallest_block_that_fits_is_split() {
        let mut buddy = Buddy::new(&[8, 8, 8]);
        let one = buddy.allocate(1);
        assert_eq!(show(&buddy, one), "n2:1", "the odd node is the smallest free block");
        let four = buddy.allocate(3);
        assert_eq!(show(&buddy, four), "n2:11110000", "three are rounded up to four");
        let two = buddy.allocate(2);
        assert_eq!(show(&buddy, two), "n2:1100");
        let both = buddy.allocate(16);
        assert_eq!(show(&buddy, both), "n0:11111111 n1:11111111");
        assert_eq!((buddy.gpus_free(), buddy.largest_free()), (1, 1));
        let none = buddy.allocate(2);
        assert_eq!(show(&buddy, none), "no room");
        for block in [one, four, two, both] {
            assert!(buddy.release(block.unwrap()));
            assert!(!buddy.release(block.unwrap()), "released twice");
        }
        assert_eq!((buddy.gpus_free(), buddy.largest_free()), (24, 16));
    }

    #[test]
    fn a_node_of_six_is_four_and_two_or_all() {
        let mut buddy = Buddy::new(&[6]);
        let all = buddy.allocate(5).unwrap();
        assert_eq!(buddy.gpus(all).gpu_count(), 6);
        buddy.release(all);
        let four = buddy.allocate(4).unwrap();
        let two = buddy.allocate(2);
        assert_eq!(show(&buddy, two), "n0:110000");
        assert_eq!(buddy.gpus(four).by_node[0].gpus, 0b1111);
    }

    /// Every aligned block there could be, by its definition alone: its GPUs by (node, gpu).
    fn aligned_blocks(sizes: &[u32]) -> Vec<Vec<(u32, u32)>> {
        let mut blocks = Vec::new();
        let mut first = 0usize;
        while first < sizes.len() {
            let size = sizes[first];
            let count = sizes[first..].iter().take_while(|&&s| s == size).count();
            for node in first..first + count {
                for power in [1, 2, 4, 8, 16] {
                    for gpu in (0..size).step_by(power as usize).filter(|g| g + power <= size) {
                        blocks.push((gpu..gpu + power).map(|g| (node as u32, g)).collect());
                    }
                }
            }
            for power in [1usize, 2, 4, 8, 16] {
                for at in (0..count).step_by(power).filter(|at| at + power <= count) {
                    let nodes = first + at..first + at + power;
                    blocks
                        .push(nodes.flat_map(|n| (0..size).map(move |g| (n as u32, g))).collect());
                }
            }
            first += count;
        }
        blocks
    }

    proptest! {
        #[test]
        fn blocks_never_overlap_and_room_is_never_denied(
            groups in prop::collection::vec((1usize..7, 1u32..=8), 1..4),
            steps in prop::collection::vec((any::<bool>(), 1u32..40, any::<prop::sample::Index>()), 1..80),
        ) {
            let sizes: Vec<u32> =
                groups.iter().flat_map(|&(n, size)| std::iter::repeat_n(size, n)).collect();
            let oracle = aligned_blocks(&sizes);
            let mut buddy = Buddy::new(&sizes);
            let total: u32 = sizes.iter().sum();
            let largest = buddy.largest_free();
            let mut held: Vec<(Block, Vec<(u32, u32)>)> = Vec::new();
            for (take, gpus, which) in steps {
                let taken: BTreeSet<(u32, u32)> =
                    held.iter().flat_map(|(_, gpus)| gpus.iter().copied()).collect();
                if take || held.is_empty() {
                    let free = |b: &&Vec<(u32, u32)>| b.iter().all(|gpu| !taken.contains(gpu));
                    let smallest = oracle.iter().filter(free)
                        .filter(|b| b.len() as u32 >= gpus).map(Vec::len).min();
                    let got = buddy.allocate(gpus);
                    let places: Option<Vec<(u32, u32)>> = got.map(|block| {
                        buddy.gpus(block).gpus().map(|(n, g)| (n.0, g)).collect()
                    });
                    prop_assert_eq!(places.is_some(), smallest.is_some(), "asked {} of {:?}", gpus, sizes);
                    // Where sizes are mixed, the smallest free block need not have the smallest part.
                    if sizes.iter().all(|size| size.is_power_of_two()) {
                        prop_assert_eq!(places.as_ref().map(Vec::len), smallest, "asked {} of {:?}", gpus, sizes);
                    }
                    if let Some(places) = places {
                        prop_assert!(places.iter().all(|gpu| !taken.contains(gpu)), "overlap");
                        prop_assert!(oracle.contains(&places), "not aligned: {:?}", places);
                        held.push((got.unwrap(), places));
                    }
                } else {
                    let (block, _) = held.swap_remove(which.index(held.len()));
                    prop_assert!(buddy.release(block));
                }
                let given: usize = held.iter().map(|(_, gpus)| gpus.len()).sum();
                prop_assert_eq!(buddy.gpus_free(), total - given as u32);
            }
            for (block, _) in held {
                buddy.release(block);
            }
            prop_assert_eq!((buddy.gpus_free(), buddy.largest_free()), (total, largest), "coalesced");
        }
    }
}
