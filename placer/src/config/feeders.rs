//! Feeders in a configuration: `[[feeder]]` and `[[node]]`.
//!
//! ```toml
//! [[feeder]]
//! name = "board-a"
//! voltage = 400          # between two phases; of one phase its own
//! amperage = 125         # of the breaker
//! phases = 3             # 1 or 3
//! power_factor = 0.95
//! max_utilization = 80   # the percentage that may be used continuously
//! static_load_w = 500    # what else is on it
//!
//! [[feeder]]
//! name = "pdu-a1"
//! parent = "board-a"
//! limit_w = 45_000
//!
//! [[node]]
//! name = ["n0", "n1"]    # or one name
//! feeds = ["pdu-a1", "pdu-b1"]
//! min_feeds = 1          # the feeds without which a node stops
//! idle_w = 900           # what it draws without jobs, if known
//! ```
//!
//! The usable power of a circuit is its apparent power, volts times amperes, and for three phases times the square
//! root of 3, times the power factor and the percentage.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_spanned::Spanned;
use wattle_common::config::Problem;
use wattle_common::feeders::{Connection, Feeder, FeederError, FeederTree, Place};
use wattle_common::topology::NODES_MAX;
use wattle_common::{FeederId, NodeId, Power};

/// Highest power in a configuration, watts.
const WATTS_MAX: f64 = 1e12;

/// A feeder.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeederConfig {
    /// Its name.
    pub name: FeederId,
    /// The feeder that supplies it; absent: a supply of the site.
    #[serde(default)]
    pub parent: Option<FeederId>,
    /// Limit of the power drawn from it, watts; or the five values below.
    #[serde(default)]
    pub limit_w: Option<f64>,
    /// Nominal voltage, V: between two phases, or of the single phase.
    #[serde(default)]
    pub voltage: Option<f64>,
    /// Rated current of the breaker, A.
    #[serde(default)]
    pub amperage: Option<f64>,
    /// Number of phases, 1 or 3.
    #[serde(default)]
    pub phases: Option<u32>,
    /// Active over apparent power of the loads, above 0 to 1.
    #[serde(default)]
    pub power_factor: Option<f64>,
    /// The percentage of the current that may be used continuously, 1 to 100.
    #[serde(default)]
    pub max_utilization: Option<f64>,
    /// Power of the loads on it that are not nodes, watts.
    #[serde(default)]
    pub static_load_w: f64,
}

/// Nodes with the same feeds.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeConfig {
    /// The node, or a list of nodes.
    pub name: Names,
    /// Its feeders. It draws an equal part of its power from each.
    pub feeds: Vec<FeederId>,
    /// The least number of feeds with which it runs.
    #[serde(default = "default_min_feeds")]
    pub min_feeds: u32,
    /// What it draws awake without jobs, watts; with it, limits are checked at the start.
    #[serde(default)]
    pub idle_w: Option<f64>,
}

const fn default_min_feeds() -> u32 {
    1
}

/// One name or several.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(
    untagged,
    expecting = "give the name of a node or a list of names, of letters, digits, - and _"
)]
pub enum Names {
    /// One.
    One(NodeId),
    /// Several.
    Several(Vec<NodeId>),
}

impl Names {
    fn as_slice(&self) -> &[NodeId] {
        match self {
            Self::One(name) => std::slice::from_ref(name),
            Self::Several(names) => names,
        }
    }
}

/// The feeders of any configuration; its other keys are ignored.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Feeders {
    /// The feeders.
    #[serde(default)]
    pub feeder: Vec<Spanned<FeederConfig>>,
    /// The nodes on them.
    #[serde(default)]
    pub node: Vec<Spanned<NodeConfig>>,
}

impl Feeders {
    /// The tree, checked with the configured draw of the nodes without jobs.
    ///
    /// # Errors
    /// The first place that is invalid, with the remedy.
    pub fn tree(&self) -> Result<FeederTree, Problem> {
        tree(&self.feeder, &self.node)
    }

    /// The place of an error of the tree.
    #[must_use]
    pub fn at(&self, place: Place) -> Option<usize> {
        at(&self.feeder, &self.node, place)
    }
}

/// The tree of these feeders and nodes, checked with what is configured of the nodes' draw without jobs.
///
/// # Errors
/// The first place that is invalid, with the remedy.
pub(super) fn tree(
    feeders: &[Spanned<FeederConfig>],
    nodes: &[Spanned<NodeConfig>],
) -> Result<FeederTree, Problem> {
    let mut all = Vec::with_capacity(feeders.len());
    for config in feeders {
        let problem = |text| Problem { at: Some(config.span().start), text };
        let config = config.get_ref();
        all.push(Feeder {
            name: config.name.clone(),
            parent: config.parent.clone(),
            limit_mw: limit(config).map_err(problem)?,
            static_load_mw: checked("static_load_w", &config.name, config.static_load_w, true)
                .map_err(problem)?,
        });
    }
    let mut connections = Vec::with_capacity(nodes.len());
    let mut idle = BTreeMap::new();
    let mut count = 0;
    for config in nodes {
        let problem = |text| Problem { at: Some(config.span().start), text };
        let config = config.get_ref();
        let names = config.name.as_slice();
        let own: BTreeSet<NodeId> = names.iter().cloned().collect();
        count += names.len();
        if own.len() < names.len() || count > NODES_MAX {
            let first = names.first().map(ToString::to_string).unwrap_or_default();
            return Err(problem(if count > NODES_MAX {
                format!("more than {NODES_MAX} nodes are named")
            } else {
                format!("the list of {first} names a node twice; name it once")
            }));
        }
        if let Some(watts) = config.idle_w {
            let name = own.first().map(ToString::to_string).unwrap_or_default();
            let watts = checked("idle_w", &name, watts, true).map_err(problem)?;
            idle.extend(own.iter().map(|node| (node.clone(), watts)));
        }
        connections.push(Connection {
            nodes: own,
            feeds: config.feeds.clone(),
            min_feeds: config.min_feeds,
        });
    }
    let problem =
        |error: FeederError| Problem { at: at(feeders, nodes, error.place), text: error.problem };
    FeederTree::with_idle(all, connections, |node| idle.get(node).copied()).map_err(problem)
}

fn at(
    feeders: &[Spanned<FeederConfig>],
    nodes: &[Spanned<NodeConfig>],
    place: Place,
) -> Option<usize> {
    let span = match place {
        Place::Feeder(index) => feeders.get(index)?.span(),
        Place::Connection(index) => nodes.get(index)?.span(),
    };
    Some(span.start)
}

/// The limit of a feeder in watts, or by its circuit.
fn limit(config: &FeederConfig) -> Result<Power, String> {
    let FeederConfig { name, .. } = config;
    let circuit = [
        ("voltage", config.voltage),
        ("amperage", config.amperage),
        ("phases", config.phases.map(f64::from)),
        ("power_factor", config.power_factor),
        ("max_utilization", config.max_utilization),
    ];
    let missing = circuit.iter().filter(|(_, value)| value.is_none()).map(|(key, _)| *key);
    let missing: Vec<&str> = missing.collect();
    if let Some(watts) = config.limit_w {
        if missing.len() < circuit.len() {
            return Err(format!(
                "feeder {name} has limit_w and values of a circuit; keep limit_w or the others"
            ));
        }
        return checked("limit_w", name, watts, false);
    }
    if missing.len() == circuit.len() {
        return Err(format!(
            "feeder {name} has no limit; add limit_w, or voltage, amperage, phases, power_factor and \
             max_utilization"
        ));
    }
    if !missing.is_empty() {
        return Err(format!("the circuit of feeder {name} lacks {}; add it", missing.join(", ")));
    }
    let [volts, amperes, phases, factor, percent] = circuit.map(|(_, value)| value.unwrap_or(0.0));
    let by_phases = match config.phases {
        Some(1) => 1.0,
        Some(3) => 3.0_f64.sqrt(),
        _ => return Err(format!("phases = {phases} of feeder {name}: give 1 or 3")),
    };
    if !(factor > 0.0 && factor <= 1.0) {
        return Err(format!("power_factor = {factor} of feeder {name}: give a share above 0 to 1"));
    }
    if !(1.0..=100.0).contains(&percent) {
        return Err(format!(
            "max_utilization = {percent} of feeder {name}: give a percentage from 1 to 100, as in 80"
        ));
    }
    checked("voltage", name, volts, false)?;
    checked("amperage", name, amperes, false)?;
    let watts = volts * amperes * by_phases * factor * percent / 100.0;
    checked("the circuit", name, watts, false)
}

fn checked(
    key: &str,
    name: &impl std::fmt::Display,
    value: f64,
    may_be_zero: bool,
) -> Result<Power, String> {
    if value.is_finite() && value <= WATTS_MAX && (value > 0.0 || (may_be_zero && value == 0.0)) {
        return Ok(Power::from_w_f64(value));
    }
    let least = if may_be_zero { "0 or more" } else { "a number greater than 0" };
    Err(format!("{key} = {value} of {name}: give {least}"))
}
