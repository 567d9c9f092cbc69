//! Strong scaling: how a job of fixed global batch scales over GPUs and nodes.
//!
//! Two measured tables, both from other machines than the catalog's GPUs: strong scaling on A100
//! nodes of 8 GPUs (one row per network), and the remaining speed if the same GPUs are spread over
//! more nodes. Between measured GPU counts speed is interpolated over log2 of the count.

use crate::Curve;

/// GPUs per node of the strong-scaling measurements.
const NODE_GPUS: u32 = 8;

/// The scaling of one network.
#[derive(Clone, Debug)]
pub(crate) struct Scaling {
    /// log2 of the GPU count -> speed relative to one GPU.
    pub(crate) strong: Curve,
    /// For each measured GPU count: node count -> remaining share of the packed speed.
    pub(crate) spread: Vec<(u32, Vec<(u32, f64)>)>,
}

impl Scaling {
    /// Speed on `gpus` GPUs of `nodes` nodes, relative to one GPU.
    pub(crate) fn speed(&self, gpus: u32, nodes: u32) -> f64 {
        let packed = if gpus == 1 { 1.0 } else { self.strong.at(f64::from(gpus).log2()) };
        // The strong-scaling rows already use the minimum number of nodes of 8 GPUs.
        let packed_nodes = gpus.div_ceil(NODE_GPUS);
        if nodes <= packed_nodes { packed } else { packed * self.spread_factor(gpus, nodes) }
    }

    /// Remaining share of the packed speed: nearest measured GPU count at or below `gpus`, nearest
    /// measured node count at or below `nodes`; non-increasing in `nodes`.
    fn spread_factor(&self, gpus: u32, nodes: u32) -> f64 {
        let row = self.spread.iter().rev().find(|(n, _)| *n <= gpus).or(self.spread.first());
        let Some((_, row)) = row else { return 1.0 };
        row.iter().filter(|(n, _)| *n <= nodes).map(|(_, factor)| *factor).fold(1.0, f64::min)
    }
}
