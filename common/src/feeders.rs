//! Feeders: a tree of power limits above the nodes.
//!
//! A feeder is a board, a circuit or a PDU. Its limit bounds the power of all nodes and static loads below it. A
//! node has one or more feeds and draws an equal part of its power from each. When a feeder is lost, everything
//! below it is without supply: a node draws all its power from its other feeds, and a node that has fewer feeds left
//! than it needs draws nothing.
//!
//! Each limit holds with every feeder in operation and with any single one lost. Both are sums of the nodes' powers
//! with fixed shares ([`FeederLimit`]), so the same sums serve planning, the plan checker and every view.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::bounds::{OutOfBounds, invalid};
use crate::id::{FeederId, NodeId};
use crate::total::Total;
use crate::units::Power;

/// Most feeders of a site.
pub const FEEDERS_MAX: usize = 1_000;
/// Most feeds of a node.
pub const FEEDS_MAX: usize = 8;
/// Most names of feeders in an error.
const NAMES_MAX: usize = 20;

/// A feeder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Feeder {
    /// Its name.
    pub name: FeederId,
    /// The feeder that supplies it; absent: a supply of the site.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<FeederId>,
    /// Limit of the power drawn from it.
    pub limit_mw: Power,
    /// Power of the loads on it that are not nodes, without those of feeders below it.
    pub static_load_mw: Power,
}

/// Nodes with the same feeds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// The nodes.
    pub nodes: BTreeSet<NodeId>,
    /// Their feeders.
    pub feeds: Vec<FeederId>,
    /// The least number of feeds with which a node runs.
    pub min_feeds: u32,
}

/// What a feeder's error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The feeder at this index.
    Feeder(usize),
    /// The connection at this index.
    Connection(usize),
}

/// Why feeders and connections are no tree of limits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct FeederError {
    /// What is wrong.
    pub place: Place,
    /// Why, and the remedy.
    pub problem: String,
}

fn at_feeder(index: usize, problem: String) -> FeederError {
    FeederError { place: Place::Feeder(index), problem }
}

fn at_connection(index: usize, problem: String) -> FeederError {
    FeederError { place: Place::Connection(index), problem }
}

/// The feeds of a node, as indices of feeders.
#[derive(Clone, Debug, PartialEq)]
struct Feeds {
    of: Vec<usize>,
    least: usize,
}

/// The limit of a feeder, with every feeder in operation or with one lost.
#[derive(Clone, Debug, PartialEq)]
pub struct FeederLimit {
    /// The feeder.
    pub feeder: FeederId,
    /// The lost feeder; absent: none.
    pub lost: Option<FeederId>,
    /// The feeder's limit.
    pub limit: Power,
    /// Static load on it and below it.
    pub static_load: Power,
    /// The part of each node's power that it carries, above 0 to 1; without the nodes of which it carries nothing.
    pub shares: BTreeMap<NodeId, f64>,
}

impl FeederLimit {
    /// The power that it carries if each node draws this much, watts. Static load is included.
    pub fn power_w(&self, node_w: impl Fn(&NodeId) -> f64) -> f64 {
        let nodes = self.shares.iter().map(|(node, share)| share * node_w(node));
        self.static_load.as_w() + nodes.sum::<f64>()
    }

    /// Whether this limit holds wherever `other`, of the same feeder, holds.
    fn is_implied_by(&self, other: &Self) -> bool {
        let of = |node| other.shares.get(node).copied().unwrap_or(0.0);
        self.static_load <= other.static_load
            && self.shares.iter().all(|(node, share)| *share <= of(node))
    }
}

/// Feeders as a tree, and the nodes on them. By default there are none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FeederTree {
    feeders: Vec<Feeder>,
    connections: Vec<Connection>,
    /// Each feeder with those that supply it, itself first.
    supplies: Vec<Vec<usize>>,
    nodes: BTreeMap<NodeId, Feeds>,
}

impl FeederTree {
    /// The tree of these feeders and connections.
    ///
    /// # Errors
    /// The first place that is invalid, with the remedy.
    pub fn new(feeders: Vec<Feeder>, connections: Vec<Connection>) -> Result<Self, FeederError> {
        Self::with_idle(feeders, connections, |_| None)
    }

    /// The tree of these feeders and connections, each limit of which is at least what the nodes on it draw without
    /// jobs. Nodes of which that is not known do not count.
    ///
    /// # Errors
    /// The first place that is invalid, with the remedy.
    pub fn with_idle(
        feeders: Vec<Feeder>,
        connections: Vec<Connection>,
        idle: impl Fn(&NodeId) -> Option<Power>,
    ) -> Result<Self, FeederError> {
        let supplies = supplies(&feeders)?;
        let index = |name: &FeederId| feeders.iter().position(|feeder| feeder.name == *name);
        let mut nodes = BTreeMap::new();
        for (at, connection) in connections.iter().enumerate() {
            let first = connection.nodes.first();
            let name = first.map(ToString::to_string).unwrap_or_default();
            let wrong = |problem: String| Err(at_connection(at, problem));
            if first.is_none() {
                return wrong("a table [[node]] names no node; give name".to_owned());
            }
            let feeds = &connection.feeds;
            if feeds.is_empty() || feeds.len() > FEEDS_MAX {
                return wrong(if feeds.is_empty() {
                    format!("node {name} is on no feeder; name one or more in feeds")
                } else {
                    format!(
                        "node {name} has {} feeds; at most {FEEDS_MAX} are supported",
                        feeds.len()
                    )
                });
            }
            let mut of = Vec::new();
            for feed in feeds {
                let Some(known) = index(feed) else {
                    return wrong(format!(
                        "node {name} is on the unknown feeder {feed}; correct it, or add a [[feeder]] of this name"
                    ));
                };
                if of.contains(&known) {
                    return wrong(format!("node {name} names its feed {feed} twice; name it once"));
                }
                of.push(known);
            }
            let least = connection.min_feeds as usize;
            if !(1..=of.len()).contains(&least) {
                return wrong(format!(
                    "min_feeds = {least} of node {name}: give 1 to {}, the number of its feeds",
                    of.len()
                ));
            }
            for node in &connection.nodes {
                let feeds = Feeds { of: of.clone(), least };
                if nodes.insert(node.clone(), feeds).is_some() {
                    return wrong(format!("node {node} is in two tables [[node]]; keep one"));
                }
            }
        }
        let tree = Self { feeders, connections, supplies, nodes };
        tree.check_idle(idle)?;
        Ok(tree)
    }

    /// Checks each limit against the static load on it and what its nodes draw without jobs. Nodes of which that is not
    /// known do not count.
    ///
    /// # Errors
    /// The first feeder whose limit is lower, with the least possible one.
    pub fn check_idle(&self, idle: impl Fn(&NodeId) -> Option<Power>) -> Result<(), FeederError> {
        let idle_w = |node: &NodeId| idle(node).map_or(0.0, Power::as_w);
        let mut worst: BTreeMap<&FeederId, (f64, Option<FeederId>)> = BTreeMap::new();
        for limit in self.limits() {
            let drawn = (limit.power_w(idle_w), limit.lost);
            let feeder = self.feeders.iter().find(|feeder| feeder.name == limit.feeder);
            let Some(feeder) = feeder else { continue };
            let known = worst.entry(&feeder.name).or_insert((0.0, None));
            if drawn.0 > known.0 {
                *known = drawn;
            }
        }
        for (at, feeder) in self.feeders.iter().enumerate() {
            let load_w = self.static_load(at, None).as_w();
            let (drawn_w, lost) = worst.get(&feeder.name).unwrap_or(&(0.0, None));
            let least = Power::from_w_f64((drawn_w.max(load_w) - 1e-6).ceil());
            if feeder.limit_mw.as_w() + 1e-6 < drawn_w.max(load_w) {
                let (what, lost) = if *drawn_w > load_w {
                    ("what its nodes draw without jobs", lost.as_ref())
                } else {
                    ("the static load on it", None)
                };
                return Err(at_feeder(at, below(feeder, least, what, lost)));
            }
        }
        Ok(())
    }

    /// Whether there are no feeders.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.feeders.is_empty()
    }

    /// The feeders, in the order in which they were given.
    #[must_use]
    pub fn feeders(&self) -> &[Feeder] {
        &self.feeders
    }

    /// The connections, in the order in which they were given.
    #[must_use]
    pub fn connections(&self) -> &[Connection] {
        &self.connections
    }

    /// Whether a node is on one of the feeders.
    #[must_use]
    pub fn feeds(&self, node: &NodeId) -> bool {
        self.nodes.contains_key(node)
    }

    /// The indices of the feeders with their depths, each after the one that supplies it.
    #[must_use]
    pub fn in_order(&self) -> Vec<(usize, usize)> {
        let mut order = Vec::with_capacity(self.feeders.len());
        let mut left: Vec<(usize, usize)> = self.below(None, 0);
        while let Some((feeder, depth)) = left.pop() {
            order.push((feeder, depth));
            left.extend(self.below(Some(feeder), depth + 1));
        }
        order
    }

    /// The feeders that this one supplies, the last one first.
    fn below(&self, parent: Option<usize>, depth: usize) -> Vec<(usize, usize)> {
        let all = self.supplies.iter().enumerate().rev();
        let own = all.filter(|(_, supplies)| supplies.get(1).copied() == parent);
        own.map(|(feeder, _)| (feeder, depth)).collect()
    }

    /// Every limit with every feeder in operation and with any single one lost, without those that another one
    /// implies. The limits of a feeder follow each other.
    #[must_use]
    pub fn limits(&self) -> Vec<FeederLimit> {
        let mut all = Vec::new();
        for (feeder, nodes) in self.nodes_below().iter().enumerate() {
            let mut kept: Vec<FeederLimit> = self.limit(feeder, None, nodes).into_iter().collect();
            for lost in self.losses(feeder, nodes) {
                let Some(limit) = self.limit(feeder, Some(lost), nodes) else { continue };
                if !kept.iter().any(|known| limit.is_implied_by(known)) {
                    kept.retain(|known| !known.is_implied_by(&limit));
                    kept.push(limit);
                }
            }
            all.extend(kept);
        }
        all
    }

    /// The limit of the feeder at this index with every feeder in operation; absent if no node is below it.
    #[must_use]
    pub fn whole(&self, feeder: usize) -> Option<FeederLimit> {
        self.limit(feeder, None, &self.nodes_below()[feeder])
    }

    /// The limits of all feeders with every feeder in operation, in the order in which the feeders were given; absent
    /// where no node is below the feeder.
    #[must_use]
    pub fn wholes(&self) -> Vec<Option<FeederLimit>> {
        let below = self.nodes_below();
        below.iter().enumerate().map(|(feeder, nodes)| self.limit(feeder, None, nodes)).collect()
    }

    /// Checks that an event may name a feeder: the feeder exists and carries a node.
    ///
    /// # Errors
    /// The feeders that exist, or how to configure some.
    pub fn check_event(&self, feeder: &FeederId) -> Result<(), OutOfBounds> {
        if self.is_empty() {
            let expected = "no feeder, so that the event limits the whole site, or tables [[feeder]] and [[node]] in the \
                            placer's configuration, because this site has none";
            return Err(invalid("feeder", feeder, expected));
        }
        let Some(at) = self.feeders.iter().position(|known| known.name == *feeder) else {
            let names = self.in_order().into_iter().map(|(at, _)| self.feeders[at].name.as_str());
            let names: Vec<&str> = names.collect();
            let more = names.len().saturating_sub(NAMES_MAX);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let known = names[..names.len().min(NAMES_MAX)].join(", ");
            return Err(invalid("feeder", feeder, format_args!("one of {known}{more}")));
        };
        if self.whole(at).is_none() {
            return Err(invalid("feeder", feeder, "a feeder with nodes on it or below it"));
        }
        Ok(())
    }

    /// The power of each feeder with every feeder in operation, by the nodes' readings. A node without a reading, or
    /// of which only a part is known, makes the sum a lower bound.
    pub fn measured(&self, reading: impl Fn(&NodeId) -> Total<Power>) -> Vec<Total<Power>> {
        let below = self.nodes_below();
        let of = |(feeder, nodes): (usize, &Vec<&NodeId>)| {
            let mut sum = Total::default();
            let load = self.static_load(feeder, None);
            if load > Power::ZERO {
                sum.add(Some(load));
            }
            for node in nodes {
                let share = self.share(feeder, None, &self.nodes[*node]);
                let read = reading(node);
                let part = read.known().map(|power| power.scale(share));
                if read.is_complete() { sum.add(part) } else { sum.add_at_least(part) }
            }
            sum
        };
        below.iter().enumerate().map(of).collect()
    }

    /// The nodes with a feed on or below each feeder.
    fn nodes_below(&self) -> Vec<Vec<&NodeId>> {
        let mut below = vec![Vec::new(); self.feeders.len()];
        for (node, feeds) in &self.nodes {
            let above = feeds.of.iter().flat_map(|feed| &self.supplies[*feed]);
            for feeder in above.collect::<BTreeSet<_>>() {
                below[*feeder].push(node);
            }
        }
        below
    }

    /// The feeders whose loss may raise the power of this one: those of the other feeds of the nodes below it.
    fn losses(&self, feeder: usize, nodes: &[&NodeId]) -> BTreeSet<usize> {
        let feeds = nodes.iter().flat_map(|node| &self.nodes[*node].of);
        let others: BTreeSet<usize> =
            feeds.copied().filter(|feed| !self.supplies[*feed].contains(&feeder)).collect();
        let above = others.iter().flat_map(|feed| self.supplies[*feed].iter().copied());
        above.filter(|lost| !self.supplies[feeder].contains(lost)).collect()
    }

    fn limit(&self, feeder: usize, lost: Option<usize>, nodes: &[&NodeId]) -> Option<FeederLimit> {
        let shares =
            nodes.iter().map(|&node| (node.clone(), self.share(feeder, lost, &self.nodes[node])));
        let shares: BTreeMap<NodeId, f64> = shares.filter(|(_, share)| *share > 0.0).collect();
        let own = &self.feeders[feeder];
        (!shares.is_empty()).then(|| FeederLimit {
            feeder: own.name.clone(),
            lost: lost.map(|lost| self.feeders[lost].name.clone()),
            limit: own.limit_mw,
            static_load: self.static_load(feeder, lost),
            shares,
        })
    }

    /// The part of a node's power that a feeder carries.
    fn share(&self, feeder: usize, lost: Option<usize>, feeds: &Feeds) -> f64 {
        let has_supply =
            |feed: &&usize| lost.is_none_or(|lost| !self.supplies[**feed].contains(&lost));
        let left = feeds.of.iter().filter(has_supply).count();
        if left < feeds.least {
            return 0.0;
        }
        let carried = feeds.of.iter().filter(has_supply);
        let carried = carried.filter(|feed| self.supplies[**feed].contains(&feeder)).count();
        carried as f64 / left.max(1) as f64
    }

    /// Static load on a feeder and below it.
    fn static_load(&self, feeder: usize, lost: Option<usize>) -> Power {
        let below = self.feeders.iter().zip(&self.supplies).filter(|(_, supplies)| {
            supplies.contains(&feeder) && lost.is_none_or(|lost| !supplies.contains(&lost))
        });
        below.map(|(feeder, _)| feeder.static_load_mw).sum()
    }
}

fn below(feeder: &Feeder, least: Power, what: &str, lost: Option<&FeederId>) -> String {
    let if_lost = lost.map(|lost| format!(" if {lost} is lost")).unwrap_or_default();
    format!(
        "the limit of feeder {}, {} W, is below {what}{if_lost}: give at least {} W",
        feeder.name,
        feeder.limit_mw.as_w().floor(),
        least.as_w().ceil()
    )
}

/// Each feeder with those that supply it, itself first.
fn supplies(feeders: &[Feeder]) -> Result<Vec<Vec<usize>>, FeederError> {
    if feeders.len() > FEEDERS_MAX {
        let problem = format!("{} feeders; at most {FEEDERS_MAX} are supported", feeders.len());
        return Err(at_feeder(FEEDERS_MAX, problem));
    }
    let mut names = BTreeMap::new();
    for (at, feeder) in feeders.iter().enumerate() {
        if names.insert(&feeder.name, at).is_some() {
            let problem = format!("two feeders have the name {}; rename one", feeder.name);
            return Err(at_feeder(at, problem));
        }
    }
    let mut all = Vec::with_capacity(feeders.len());
    for (at, feeder) in feeders.iter().enumerate() {
        let mut supplies = vec![at];
        let mut above = feeder.parent.as_ref();
        while let Some(parent) = above {
            let Some(&next) = names.get(parent) else {
                return Err(at_feeder(
                    supplies[supplies.len() - 1],
                    format!(
                        "the parent of feeder {}, {parent}, is unknown; correct it, or add a [[feeder]] of this \
                         name",
                        feeders[supplies[supplies.len() - 1]].name
                    ),
                ));
            };
            if supplies.contains(&next) {
                let from = supplies.iter().position(|known| *known == next).unwrap_or(0);
                let cycle = supplies[from..].iter().map(|known| feeders[*known].name.to_string());
                let problem = format!(
                    "the parents of {} form a cycle; remove one of them",
                    cycle.collect::<Vec<_>>().join(", ")
                );
                return Err(at_feeder(next, problem));
            }
            supplies.push(next);
            above = feeders[next].parent.as_ref();
        }
        all.push(supplies);
    }
    Ok(all)
}

#[cfg(test)]
mod tests;
