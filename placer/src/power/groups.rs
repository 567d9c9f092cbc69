//! Limits of the power of groups of nodes, such as racks, and of single nodes.
//!
//! The limit of a group bounds the power draw of entire nodes. The limit of a node, which its power agent
//! reports, bounds the sum of the caps of its GPUs.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Deserialize;
use wattle_common::{NodeId, Power};

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
    /// Its nodes.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &NodeId> {
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
