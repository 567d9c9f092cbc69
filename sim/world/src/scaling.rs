//! How a job of fixed global batch scales over GPUs and nodes.
//!
//! Two measured tables, each of another machine than the cards here, and so carried: strong scaling
//! on A100 nodes of 8 (one row per network), and what is left when the same GPUs are spread over
//! more nodes. Between the measured counts speed is interpolated over log2 of the count.

use crate::Curve;

/// GPUs on a node of the strong-scaling measurements.
const NODE_GPUS: u32 = 8;

/// How one network scales.
#[derive(Clone, Debug)]
pub(crate) struct Scaling {
    /// log2 of GPUs -> speed relative to one.
    pub(crate) strong: Curve,
    /// For each measured number of GPUs: nodes -> share of the packed speed that is left.
    pub(crate) spread: Vec<(u32, Vec<(u32, f64)>)>,
}

impl Scaling {
    /// Speed on `gpus` GPUs of `nodes` nodes, relative to one GPU.
    pub(crate) fn speed(&self, gpus: u32, nodes: u32) -> f64 {
        let packed = if gpus == 1 { 1.0 } else { self.strong.at(f64::from(gpus).log2()) };
        // The strong-scaling rows are already spread over as many nodes of 8 as they must be.
        if nodes <= gpus.div_ceil(NODE_GPUS) { packed } else { packed * self.left(gpus, nodes) }
    }

    /// What is left of the packed speed: the row of the nearest measured number of GPUs at or
    /// below, the nearest measured number of nodes at or below; never less for fewer nodes.
    fn left(&self, gpus: u32, nodes: u32) -> f64 {
        let row = self.spread.iter().rev().find(|(n, _)| *n <= gpus).or(self.spread.first());
        let Some((_, row)) = row else { return 1.0 };
        row.iter().filter(|(n, _)| *n <= nodes).map(|(_, left)| *left).fold(1.0, f64::min)
    }
}
