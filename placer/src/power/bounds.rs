//! The power limits of feeders and nodes, and what a plan draws within each.
//!
//! A feeder's limit bounds the power draw of entire nodes, each by the part of its power that the feeder carries,
//! once with every feeder in operation and once for each single lost one ([`wattle_common::feeders`]). The limit of a
//! node, which its power agent reports, bounds the sum of the caps of its GPUs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use wattle_common::feeders::{FeederLimit, FeederTree};
use wattle_common::{NodeId, Power};

use crate::plan::input::PlanningInput;
use crate::plan::reason::Reason;
use crate::state::cluster::ClusterState;
use crate::state::gpu_set::{GpuSet, NodeKey};

/// A limit of some nodes.
#[derive(Clone, Debug, PartialEq)]
pub enum PowerBound {
    /// Of the power draw on a feeder.
    Feeder(Arc<FeederLimit>),
    /// Of the sum of the caps of a node's GPUs.
    Node(NodeId, Power),
}

/// The limits of feeders and single nodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PowerBounds {
    all: Vec<PowerBound>,
    /// The nodes that one of them limits.
    nodes: BTreeSet<NodeId>,
}

impl From<Vec<PowerBound>> for PowerBounds {
    fn from(all: Vec<PowerBound>) -> Self {
        let nodes = all.iter().flat_map(|bound| match bound {
            PowerBound::Feeder(limit) => limit.shares.keys().cloned().collect(),
            PowerBound::Node(node, _) => vec![node.clone()],
        });
        Self { nodes: nodes.collect(), all }
    }
}

impl PowerBounds {
    /// Every limit of these feeders, whole and with each single one lost.
    #[must_use]
    pub fn of_feeders(feeders: &FeederTree) -> Self {
        let limits = feeders.limits().into_iter().map(Arc::new);
        limits.map(PowerBound::Feeder).collect::<Vec<_>>().into()
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// All of them.
    pub fn iter(&self) -> std::slice::Iter<'_, PowerBound> {
        self.all.iter()
    }

    /// Whether one of them limits this node.
    #[must_use]
    pub fn cover(&self, node: &NodeId) -> bool {
        self.nodes.contains(node)
    }

    /// The limit of the sum of a node's caps.
    #[must_use]
    pub fn of_node(&self, node: &NodeId) -> Option<Power> {
        self.all.iter().find_map(|bound| match bound {
            PowerBound::Node(known, limit) if known == node => Some(*limit),
            PowerBound::Node(..) | PowerBound::Feeder(_) => None,
        })
    }

    /// Sets the limit of the sum of a node's caps.
    pub(crate) fn set_node(&mut self, node: &NodeId, limit: Option<Power>) {
        let mut all = std::mem::take(&mut self.all);
        all.retain(|bound| !matches!(bound, PowerBound::Node(known, _) if known == node));
        all.extend(limit.map(|limit| PowerBound::Node(node.clone(), limit)));
        *self = all.into();
    }
}

/// What a bound counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    /// The power draw of nodes with hosts and GPUs.
    Nodes,
    /// The caps of GPUs.
    Caps,
}

/// A bound on the nodes of the present cluster.
#[derive(Clone, Debug)]
pub(crate) struct Bound {
    /// What the limit leaves to the nodes, watts.
    pub(crate) limit_w: f64,
    pub(crate) counted: Counted,
    /// The part of each node's power that counts, above 0 to 1; absent: all of every node.
    shares: Option<BTreeMap<NodeKey, f64>>,
    /// Absent: the site's.
    local: Option<Local>,
}

/// The limit of a feeder or node.
#[derive(Clone, Debug)]
struct Local {
    name: Arc<str>,
    /// The feeder that is lost.
    lost: Option<Arc<str>>,
    most: Power,
}

impl Bound {
    /// The bounds in force, those of single nodes and feeders before the site's.
    ///
    /// The bound of a node whose GPUs are not known yet is left to its power agent.
    pub(crate) fn all(input: PlanningInput<'_>) -> Vec<Self> {
        let local = input.limits.power_bounds.iter().filter_map(|bound| Self::of(input, bound));
        let site = input.limits.power_max.map(|limit| Self {
            limit_w: limit.as_w(),
            counted: Counted::Nodes,
            shares: None,
            local: None,
        });
        local.chain(site).collect()
    }

    fn of(input: PlanningInput<'_>, bound: &PowerBound) -> Option<Self> {
        match bound {
            PowerBound::Feeder(limit) => {
                let known = limit.shares.iter();
                let shares: BTreeMap<NodeKey, f64> = known
                    .filter_map(|(node, share)| Some((input.state.node_key(node)?, *share)))
                    .collect();
                (!shares.is_empty()).then(|| Self {
                    limit_w: limit.limit.as_w() - limit.static_load.as_w(),
                    counted: Counted::Nodes,
                    shares: Some(shares),
                    local: Some(Local {
                        name: limit.feeder.as_str().into(),
                        lost: limit.lost.as_ref().map(|lost| lost.as_str().into()),
                        most: limit.limit,
                    }),
                })
            }
            PowerBound::Node(id, limit) => {
                let key = input.state.node_key(id)?;
                let facts = &input.state.node(key).facts;
                input.state.gpu_power(&facts.gpu_type)?;
                Some(Self {
                    // Caps are rounded up to entire watts.
                    limit_w: limit.as_w() - f64::from(facts.gpus),
                    counted: Counted::Caps,
                    shares: Some([(key, 1.0)].into()),
                    local: Some(Local { name: id.as_str().into(), lost: None, most: *limit }),
                })
            }
        }
    }

    /// The part of a node's power that counts.
    pub(crate) fn share(&self, node: NodeKey) -> f64 {
        let Some(shares) = &self.shares else { return 1.0 };
        shares.get(&node).copied().unwrap_or(0.0)
    }

    /// The nodes that it limits, with the parts of their power that count.
    pub(crate) fn shares<'s>(
        &'s self,
        state: &'s ClusterState,
    ) -> impl Iterator<Item = (NodeKey, f64)> + 's {
        let local = self.shares.iter().flatten().map(|(node, share)| (*node, *share));
        let all = self.shares.is_none().then(|| state.keyed_nodes()).into_iter().flatten();
        local.chain(all.map(|(node, _)| (node, 1.0)))
    }

    /// Whether it limits this node.
    pub(crate) fn covers(&self, node: NodeKey) -> bool {
        self.share(node) > 0.0
    }

    /// Whether it limits one of these GPUs.
    pub(crate) fn covers_any(&self, on: &GpuSet) -> bool {
        on.by_node.iter().any(|here| self.covers(here.node))
    }

    /// Whether it is that of a feeder or node.
    pub(crate) const fn is_local(&self) -> bool {
        self.local.is_some()
    }

    /// The limit as configured or reported.
    pub(crate) fn most(&self) -> Power {
        self.local.as_ref().map_or(Power::from_w_f64(self.limit_w), |local| local.most)
    }

    /// The power that counts beside the nodes, watts.
    pub(crate) fn static_w(&self) -> f64 {
        match self.counted {
            Counted::Nodes => self.most().as_w() - self.limit_w,
            Counted::Caps => 0.0,
        }
    }

    /// The name of its feeder, with the lost one, or node; empty: the site's.
    pub(crate) fn name(&self) -> String {
        match &self.local {
            None => String::new(),
            Some(Local { name, lost: None, .. }) => name.to_string(),
            Some(Local { name, lost: Some(lost), .. }) => format!("{name} without {lost}"),
        }
    }

    /// Why a job is stopped.
    pub(crate) fn stop_reason(&self) -> Reason {
        let site = || Reason::PowerLimit { most: Some(Power::from_w_f64(self.limit_w)) };
        self.local_reason().unwrap_or_else(site)
    }

    /// Why a job does not start, if the cluster drew `power_w` with it.
    pub(crate) fn hold_reason(&self, power_w: f64) -> Reason {
        let site = || held_back(power_w, self.limit_w);
        self.local_reason().unwrap_or_else(site)
    }

    fn local_reason(&self) -> Option<Reason> {
        let Local { name, lost, most } = self.local.clone()?;
        Some(Reason::LocalLimit { name, lost, most })
    }
}

/// Why a job does not start, if the cluster drew `power_w` with it; infinite: not known.
pub(crate) fn held_back(power_w: f64, limit_w: f64) -> Reason {
    let drawn = power_w.is_finite().then(|| Power::from_w_f64(power_w));
    Reason::HeldBack { drawn, below: Power::from_w_f64(limit_w) }
}
