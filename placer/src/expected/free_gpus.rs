//! The free GPUs of the forward schedule, as numbers by node.
//!
//! Placement is that of [`crate::allocation::first_fit`]: the first node in node order with enough free GPUs, or of a
//! job larger than a node the first entirely free nodes of one shape. Which GPUs of a node are free has no effect on
//! when a job starts, so they are counted. Nodes of a shape are kept by their number of free GPUs, so that a placement
//! takes logarithmic time.

use std::collections::BTreeSet;

/// GPUs of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// Index of the node.
    pub(super) node: u32,
    /// Number of its GPUs.
    pub(super) gpus: u32,
}

/// Nodes that are equal in GPU type, number of GPUs and device memory.
#[derive(Clone, Debug)]
struct Shape {
    /// GPUs of each node.
    size: u32,
    /// The nodes with this number of free GPUs.
    by_free: Vec<BTreeSet<u32>>,
}

/// A node.
#[derive(Clone, Copy, Debug)]
struct Node {
    shape: u32,
    free: u32,
}

/// The shapes on which a job may run, by index.
pub(super) type Shapes = [u32];

/// The free GPUs.
#[derive(Clone, Debug, Default)]
pub(super) struct FreeGpus {
    shapes: Vec<Shape>,
    nodes: Vec<Node>,
}

impl FreeGpus {
    /// Adds a shape; returns its index.
    pub(super) fn add_shape(&mut self, size: u32) -> u32 {
        self.shapes.push(Shape { size, by_free: vec![BTreeSet::new(); size as usize + 1] });
        self.shapes.len() as u32 - 1
    }

    /// Adds the next node in node order, with this many free GPUs, at most the size of its shape.
    pub(super) fn add_node(&mut self, shape: u32, free: u32) {
        let of = &mut self.shapes[shape as usize];
        let free = free.min(of.size);
        of.by_free[free as usize].insert(self.nodes.len() as u32);
        self.nodes.push(Node { shape, free });
    }

    pub(super) fn size_of(&self, shape: u32) -> u32 {
        self.shapes[shape as usize].size
    }

    pub(super) fn shape_of(&self, node: u32) -> u32 {
        self.nodes[node as usize].shape
    }

    pub(super) fn free(&self, node: u32) -> u32 {
        self.nodes[node as usize].free
    }

    fn set_free(&mut self, node: u32, free: u32) {
        let Node { shape, free: before } = self.nodes[node as usize];
        let of = &mut self.shapes[shape as usize];
        debug_assert!(free <= of.size, "node {node} has {free} free GPUs of {}", of.size);
        let free = free.min(of.size);
        of.by_free[before as usize].remove(&node);
        of.by_free[free as usize].insert(node);
        self.nodes[node as usize].free = free;
    }

    /// GPUs become free.
    pub(super) fn release(&mut self, part: Part) {
        self.set_free(part.node, self.free(part.node) + part.gpus);
    }

    /// Takes free GPUs.
    ///
    /// # Panics
    /// In debug builds if fewer are free.
    pub(super) fn take(&mut self, part: Part) {
        let free = self.free(part.node);
        debug_assert!(free >= part.gpus, "node {} has {free} free GPUs", part.node);
        self.set_free(part.node, free.saturating_sub(part.gpus));
    }

    /// Whether one node of these shapes can hold this many GPUs.
    pub(super) fn fits_a_node(&self, shapes: &Shapes, gpus: u32) -> bool {
        shapes.iter().any(|shape| self.size_of(*shape) >= gpus)
    }

    /// Whether some node has this many free GPUs, or a larger job has its entirely free nodes.
    pub(super) fn has_room(&self, shapes: &Shapes, gpus: u32) -> bool {
        if self.fits_a_node(shapes, gpus) {
            return shapes.iter().any(|shape| {
                let of = &self.shapes[*shape as usize];
                (gpus..=of.size).any(|free| !of.by_free[free as usize].is_empty())
            });
        }
        self.entire_nodes(shapes, gpus, |_| true).is_some()
    }

    /// The entirely free nodes of these shapes.
    pub(super) fn entirely_free(&self, shapes: &Shapes) -> impl Iterator<Item = u32> {
        let shapes = shapes.iter().map(|shape| &self.shapes[*shape as usize]);
        let entire =
            shapes.filter_map(|of| of.by_free.get(of.size as usize).filter(|_| of.size > 0));
        entire.flatten().copied()
    }

    /// The first placement that `accepts` permits, node by node.
    pub(super) fn first_fit(
        &self,
        shapes: &Shapes,
        gpus: u32,
        accepts: impl Fn(u32) -> bool,
    ) -> Option<Vec<Part>> {
        if !self.fits_a_node(shapes, gpus) {
            return self.entire_nodes(shapes, gpus, accepts);
        }
        let first = |shape: &u32| {
            let of = &self.shapes[*shape as usize];
            let nodes = (gpus..=of.size).filter_map(|free| {
                of.by_free[free as usize].iter().copied().find(|node| accepts(*node))
            });
            nodes.min()
        };
        let node = shapes.iter().filter_map(first).min()?;
        Some(vec![Part { node, gpus }])
    }

    fn entire_nodes(
        &self,
        shapes: &Shapes,
        gpus: u32,
        accepts: impl Fn(u32) -> bool,
    ) -> Option<Vec<Part>> {
        shapes.iter().find_map(|shape| {
            let of = &self.shapes[*shape as usize];
            if of.size == 0 {
                return None;
            }
            let entire = of.by_free[of.size as usize].iter().copied();
            entire_parts(entire.filter(|node| accepts(*node)), of.size, gpus)
        })
    }
}

/// The parts of a job on the first of these nodes, which are entirely free; `None` if they are too few.
pub(super) fn entire_parts(
    nodes: impl Iterator<Item = u32>,
    size: u32,
    gpus: u32,
) -> Option<Vec<Part>> {
    let mut left = gpus;
    let mut parts = Vec::new();
    for node in nodes.take(gpus.div_ceil(size) as usize) {
        parts.push(Part { node, gpus: left.min(size) });
        left -= left.min(size);
    }
    (left == 0).then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_shapes() -> FreeGpus {
        let mut free = FreeGpus::default();
        let (small, large) = (free.add_shape(4), free.add_shape(8));
        free.add_node(large, 3);
        free.add_node(small, 4);
        free.add_node(large, 8);
        free.add_node(large, 8);
        free
    }

    #[test]
    fn the_first_node_in_node_order_with_enough_free_gpus_is_taken() {
        let free = two_shapes();
        let on = |shapes: &[u32], gpus| {
            let parts = free.first_fit(shapes, gpus, |_| true)?;
            Some(parts.iter().map(|part| (part.node, part.gpus)).collect::<Vec<_>>())
        };
        assert_eq!(on(&[0, 1], 2), Some(vec![(0, 2)]));
        assert_eq!(on(&[0, 1], 4), Some(vec![(1, 4)]));
        assert_eq!(on(&[1], 4), Some(vec![(2, 4)]));
        assert_eq!(on(&[1], 12), Some(vec![(2, 8), (3, 4)]), "entirely free nodes");
        assert_eq!(on(&[1], 17), None);
        assert_eq!(on(&[0], 5), None);
    }

    #[test]
    fn taken_gpus_are_free_again_after_their_release() {
        let mut free = two_shapes();
        let part = Part { node: 2, gpus: 8 };
        free.take(part);
        assert!(!free.has_room(&[1], 12) && free.has_room(&[1], 8));
        free.release(part);
        assert!(free.has_room(&[1], 12));
        assert_eq!((free.free(2), free.shape_of(2), free.size_of(1)), (8, 1, 8));
    }
}
