//! The power limits of feeders and nodes, and what a plan draws within each.
//!
//! A feeder's limit bounds the power draw of entire nodes, each by the part of its power that the feeder carries,
//! once with every feeder in operation and once for each single lost one ([`wattle_common::feeders`]). A grid event of a
//! feeder bounds the same power with every feeder in operation ([`crate::power::carried`]). The limit of a node, which its power agent reports, bounds the sum of the caps of its GPUs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use wattle_common::feeders::{FeederLimit, FeederTree};
use wattle_common::{FeederId, NodeId, Power};

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
    /// Of the power draw on a feeder with every feeder in operation, by its grid events now.
    Target(Arc<FeederLimit>, Power),
}

/// The limits of feeders and single nodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PowerBounds {
    all: Vec<PowerBound>,
    /// The nodes that one of them limits.
    nodes: BTreeSet<NodeId>,
    /// The nodes that grid events of their feeders limit.
    targeted: BTreeSet<NodeId>,
}

impl From<Vec<PowerBound>> for PowerBounds {
    fn from(all: Vec<PowerBound>) -> Self {
        let nodes = all.iter().flat_map(|bound| match bound {
            PowerBound::Feeder(limit) | PowerBound::Target(limit, _) => {
                limit.shares.keys().cloned().collect()
            }
            PowerBound::Node(node, _) => vec![node.clone()],
        });
        let targeted = all.iter().flat_map(|bound| match bound {
            PowerBound::Target(of, _) => of.shares.keys().cloned().collect(),
            PowerBound::Feeder(_) | PowerBound::Node(..) => Vec::new(),
        });
        Self { nodes: nodes.collect(), targeted: targeted.collect(), all }
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

    /// Whether grid events of a feeder limit this node.
    #[must_use]
    pub fn is_targeted(&self, node: &NodeId) -> bool {
        self.targeted.contains(node)
    }

    /// The limit of the sum of a node's caps.
    #[must_use]
    pub fn of_node(&self, node: &NodeId) -> Option<Power> {
        self.all.iter().find_map(|bound| match bound {
            PowerBound::Node(known, limit) if known == node => Some(*limit),
            _ => None,
        })
    }

    /// Sets the limits of feeders by their events.
    pub(crate) fn set_targets(&mut self, targets: &[(Arc<FeederLimit>, Power)]) {
        let mut all = std::mem::take(&mut self.all);
        all.retain(|bound| !matches!(bound, PowerBound::Target(..)));
        all.extend(targets.iter().map(|(of, most)| PowerBound::Target(Arc::clone(of), *most)));
        *self = all.into();
    }

    /// The limits of feeders by their events.
    pub(crate) fn targets(&self) -> Vec<(Arc<FeederLimit>, Power)> {
        let target = |bound: &PowerBound| match bound {
            PowerBound::Target(of, most) => Some((Arc::clone(of), *most)),
            PowerBound::Feeder(_) | PowerBound::Node(..) => None,
        };
        self.all.iter().filter_map(target).collect()
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
    /// The feeder whose grid events set it.
    target_of: Option<FeederId>,
}

impl Bound {
    /// The bounds in force, those of single nodes and feeders before the site's.
    ///
    /// The bound of a node whose GPUs are not known yet is left to its power agent.
    pub(crate) fn all(input: PlanningInput<'_>) -> Vec<Self> {
        let local = input.limits.power_bounds.iter().filter_map(|bound| Self::of(input, bound));
        local.chain(input.limits.power_max.map(Self::of_site)).collect()
    }

    /// That of the site.
    fn of_site(limit: Power) -> Self {
        Self { limit_w: limit.as_w(), counted: Counted::Nodes, shares: None, local: None }
    }

    /// That of a feeder; `None`: none of its nodes is known.
    fn on_feeder(
        state: &ClusterState,
        of: &FeederLimit,
        most: Power,
        is_target: bool,
    ) -> Option<Self> {
        let known = of.shares.iter();
        let known = known.filter_map(|(node, share)| Some((state.node_key(node)?, *share)));
        let shares: BTreeMap<NodeKey, f64> = known.collect();
        (!shares.is_empty()).then(|| Self {
            limit_w: most.as_w() - of.static_load.as_w(),
            counted: Counted::Nodes,
            shares: Some(shares),
            local: Some(Local {
                name: of.feeder.as_str().into(),
                lost: of.lost.as_ref().map(|lost| lost.as_str().into()),
                most,
                target_of: is_target.then(|| of.feeder.clone()),
            }),
        })
    }

    /// A limit of the site or a feeder by grid events; `None`: the feeder carries no known node.
    pub(crate) fn of_events(
        input: PlanningInput<'_>,
        feeder: Option<&FeederId>,
        most: Power,
    ) -> Option<Self> {
        match feeder {
            None => Some(Self::of_site(most)),
            Some(feeder) => {
                Self::on_feeder(input.state, input.limits.carried.on(feeder)?, most, true)
            }
        }
    }

    fn of(input: PlanningInput<'_>, bound: &PowerBound) -> Option<Self> {
        match bound {
            PowerBound::Feeder(limit) => Self::on_feeder(input.state, limit, limit.limit, false),
            PowerBound::Target(of, most) => Self::on_feeder(input.state, of, *most, true),
            PowerBound::Node(id, limit) => {
                let key = input.state.node_key(id)?;
                let facts = &input.state.node(key).facts;
                input.state.gpu_power(&facts.gpu_type)?;
                Some(Self {
                    // Caps are rounded up to entire watts.
                    limit_w: limit.as_w() - f64::from(facts.gpus),
                    counted: Counted::Caps,
                    shares: Some([(key, 1.0)].into()),
                    local: Some(Local {
                        name: id.as_str().into(),
                        lost: None,
                        most: *limit,
                        target_of: None,
                    }),
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

    /// The part of the power of these GPUs that counts.
    pub(crate) fn part_of(&self, on: &GpuSet) -> f64 {
        if self.shares.is_none() {
            return 1.0;
        }
        let here = on.by_node.iter();
        let counted = here.map(|here| self.share(here.node) * f64::from(here.gpus.count_ones()));
        counted.sum::<f64>() / f64::from(on.gpu_count().max(1))
    }

    /// The largest part of a node's power that counts.
    pub(crate) fn most_share(&self) -> f64 {
        let Some(shares) = &self.shares else { return 1.0 };
        shares.values().copied().fold(0.0, f64::max)
    }

    /// The feeder whose grid events set it.
    pub(crate) fn target_of(&self) -> Option<&FeederId> {
        self.local.as_ref()?.target_of.as_ref()
    }

    /// Whether grid events may have set it: promises then decide which jobs give way.
    pub(crate) fn is_of_events(&self) -> bool {
        self.local.is_none() || self.target_of().is_some()
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
        let Local { name, lost, most, .. } = self.local.clone()?;
        Some(Reason::LocalLimit { name, lost, most })
    }
}

/// Why a job does not start, if the cluster drew `power_w` with it; infinite: not known.
pub(crate) fn held_back(power_w: f64, limit_w: f64) -> Reason {
    let drawn = power_w.is_finite().then(|| Power::from_w_f64(power_w));
    Reason::HeldBack { drawn, below: Power::from_w_f64(limit_w) }
}
