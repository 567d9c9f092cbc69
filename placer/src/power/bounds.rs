//! The power bounds that are in force in a planning round, and what a plan draws within each.

use std::collections::BTreeSet;
use std::sync::Arc;

use wattle_common::Power;

use crate::plan::input::PlanningInput;
use crate::plan::reason::Reason;
use crate::power::groups::PowerBound;
use crate::state::gpu_set::{GpuSet, NodeKey};

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
