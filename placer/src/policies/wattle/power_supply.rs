//! The power that a limit leaves to the jobs of one GPU type.

use crate::plan::input::PlanningInput;
use crate::power::energy_cost::Charge;
use crate::power::headroom::total_w;
use crate::power::model::{corrected_by_w, least_baseline};
use crate::state::node::Node;

/// Power below the site's limit for the jobs of one GPU type, and what their nodes draw.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PowerSupply {
    /// For the GPUs above idle, and for nodes that are awake above their power asleep, watts.
    pub(super) limit_w: f64,
    /// What an awake node draws beyond its power asleep, watts; 0 where nodes never sleep.
    node_w: f64,
    /// GPUs of a node.
    node_gpus: u32,
    /// Nodes that are awake. They draw power until they sleep, used or not.
    awake: u32,
    /// GPUs of jobs that take no part in the market, and what they draw above idle, watts.
    fixed_gpus: u32,
    fixed_w: f64,
    /// The charge of a used GPU for keeping its node awake, watts.
    share_w: f64,
}

impl PowerSupply {
    /// The supply for the type of these nodes, if it gets `limit_w` watts. `fixed`: GPUs of jobs that take no
    /// part in the market, and what they draw above idle, watts.
    pub(super) fn new<'n>(
        nodes: impl Iterator<Item = &'n Node>,
        charge: Charge,
        limit_w: f64,
        (fixed_gpus, fixed_w): (u32, f64),
    ) -> Self {
        let (mut awake, mut node_gpus) = (0, 0);
        for node in nodes {
            awake += u32::from(node.is_awake());
            node_gpus = node_gpus.max(node.facts.gpus);
        }
        let (node_gpus, share_w) = (node_gpus.max(1), charge.share_w());
        let node_w = share_w * f64::from(node_gpus);
        Self { limit_w, node_w, node_gpus, awake, fixed_gpus, fixed_w, share_w }
    }

    /// What the limits together leave above the least draw of all nodes, and what running jobs draw less than
    /// predicted, watts: the market counts with predictions. `None` without a limit, or where
    /// the draw of some node is unknown.
    pub(super) fn of_site(input: PlanningInput<'_>) -> Option<f64> {
        Some(total_w(input)? - least_baseline(input)?.as_w() + corrected_by_w(input))
    }

    /// The charge of a used GPU for keeping its node awake, watts.
    pub(super) const fn share_w(&self) -> f64 {
        self.share_w
    }

    /// The charged power that the market may hand out, watts.
    pub(super) fn charged_w(&self) -> f64 {
        (self.limit_w - self.fixed_w - f64::from(self.fixed_gpus) * self.share_w).max(0.0)
    }

    /// Whether jobs with this many GPUs and this charged power fit, watts. Nodes count whole: those that are
    /// awake, or those that the GPUs need if these are more.
    pub(super) fn fits(&self, gpus: u32, charged_w: f64) -> bool {
        let above_idle_w = charged_w - f64::from(gpus) * self.share_w;
        let nodes = (self.fixed_gpus + gpus).div_ceil(self.node_gpus).max(self.awake);
        f64::from(nodes) * self.node_w + above_idle_w + self.fixed_w <= self.limit_w + 1e-6
    }
}
