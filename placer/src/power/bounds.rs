//! Power bounds: the power limit of the site, of groups of nodes such as racks, and of single nodes.
//!
//! The site's limit and a group's limit bound the power draw of entire nodes. A node's own limit, which its
//! power agent reports, bounds the sum of the caps of its GPUs.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Deserialize;
use wattle_common::{NodeId, Power};

use crate::plan::input::PlanningInput;
use crate::plan::reason::Reason;
use crate::state::gpu_set::{GpuSet, NodeKey};

/// Most power groups of a site.
pub const GROUPS_MAX: usize = 1_000;

/// A group of nodes with a power limit, as configured.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PowerGroup {
    /// Its name, such as that of a rack.
    pub name: String,
    /// Its nodes; a node may be in several groups.
    pub nodes: BTreeSet<NodeId>,
    /// Limit of the power draw of its nodes together, kW.
    pub limit_kw: f64,
}

impl PowerGroup {
    /// The limit.
    #[must_use]
    pub fn limit(&self) -> Power {
        Power::from_w_f64(self.limit_kw * 1_000.0)
    }

    /// Checks the groups of a site.
    ///
    /// # Errors
    /// The first group that is invalid, and why.
    pub fn check(groups: &[Self]) -> Result<(), String> {
        if groups.len() > GROUPS_MAX {
            return Err(format!("{} groups; the limit is {GROUPS_MAX}", groups.len()));
        }
        let mut names = BTreeSet::new();
        for group in groups {
            let name = &group.name;
            if name.is_empty() {
                return Err("a group has no name".to_owned());
            }
            if !names.insert(name) {
                return Err(format!("two groups have the name {name}"));
            }
            if group.nodes.is_empty() {
                return Err(format!("group {name} has no nodes"));
            }
            if !(group.limit_kw.is_finite() && group.limit_kw > 0.0 && group.limit_kw < 1e9) {
                return Err(format!("limit_kw of group {name} must be greater than 0"));
            }
        }
        Ok(())
    }
}

/// A limit of some nodes.
#[derive(Clone, Debug, PartialEq)]
pub enum PowerBound {
    /// Of the power draw of a group of nodes.
    Group(Arc<PowerGroup>),
    /// Of the sum of the caps of a node's GPUs.
    Node(NodeId, Power),
}

impl PowerBound {
    fn nodes(&self) -> impl Iterator<Item = &NodeId> {
        let (group, node) = match self {
            Self::Group(group) => (Some(group.nodes.iter()), None),
            Self::Node(node, _) => (None, Some(node)),
        };
        group.into_iter().flatten().chain(node)
    }

    /// Whether it limits this node.
    #[must_use]
    pub fn covers(&self, node: &NodeId) -> bool {
        match self {
            Self::Group(group) => group.nodes.contains(node),
            Self::Node(limited, _) => limited == node,
        }
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
    pub(crate) limit_w: f64,
    pub(crate) counted: Counted,
    /// Its nodes; absent: all.
    nodes: Option<BTreeSet<NodeKey>>,
    /// Its name and limit; absent: the site's.
    group: Option<(Arc<str>, Power)>,
}

impl Bound {
    /// The bounds in force, those of single nodes and groups before the site's.
    ///
    /// The bound of a node whose GPUs are not known yet is left to its power agent.
    pub(crate) fn all(input: PlanningInput<'_>) -> Vec<Self> {
        let local = input.limits.power_bounds.iter().filter_map(|bound| Self::of(input, bound));
        let site = input.limits.power_max.map(|limit| Self {
            limit_w: limit.as_w(),
            counted: Counted::Nodes,
            nodes: None,
            group: None,
        });
        local.chain(site).collect()
    }

    fn of(input: PlanningInput<'_>, bound: &PowerBound) -> Option<Self> {
        let keys: BTreeSet<NodeKey> =
            bound.nodes().filter_map(|node| input.state.node_key(node)).collect();
        let first = *keys.first()?;
        Some(match bound {
            PowerBound::Group(group) => Self {
                limit_w: group.limit().as_w(),
                counted: Counted::Nodes,
                nodes: Some(keys),
                group: Some((group.name.as_str().into(), group.limit())),
            },
            PowerBound::Node(id, limit) => {
                let facts = &input.state.node(first).facts;
                input.state.gpu_power(&facts.gpu_type)?;
                Self {
                    // Caps are rounded up to entire watts.
                    limit_w: limit.as_w() - f64::from(facts.gpus),
                    counted: Counted::Caps,
                    nodes: Some(keys),
                    group: Some((id.as_str().into(), *limit)),
                }
            }
        })
    }

    /// Whether it limits this node.
    pub(crate) fn covers(&self, node: NodeKey) -> bool {
        self.nodes.as_ref().is_none_or(|nodes| nodes.contains(&node))
    }

    /// Whether it limits one of these GPUs.
    pub(crate) fn covers_any(&self, on: &GpuSet) -> bool {
        on.by_node.iter().any(|here| self.covers(here.node))
    }

    /// The name of its group or node; empty: the site's.
    pub(crate) fn name(&self) -> String {
        self.group.as_ref().map(|(name, _)| name.to_string()).unwrap_or_default()
    }

    /// Why a job is stopped.
    pub(crate) fn stop_reason(&self) -> Reason {
        let site = || Reason::PowerLimit { most: Some(Power::from_w_f64(self.limit_w)) };
        self.group_reason().unwrap_or_else(site)
    }

    /// Why a job does not start, if the cluster drew `power_w` with it.
    pub(crate) fn hold_reason(&self, power_w: f64) -> Reason {
        let site = || Reason::HeldBack {
            drawn: Power::from_w_f64(power_w),
            below: Power::from_w_f64(self.limit_w),
        };
        self.group_reason().unwrap_or_else(site)
    }

    fn group_reason(&self) -> Option<Reason> {
        let (name, most) = self.group.clone()?;
        Some(Reason::GroupLimit { name, most })
    }
}
