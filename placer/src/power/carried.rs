//! What each feeder carries with every feeder in operation: the part of each node's power, and static loads.
//!
//! The target of a grid event is kept in this state. That a feeder may be lost is what its own limits are for
//! ([`crate::power::bounds`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use wattle_common::FeederId;
use wattle_common::feeders::{FeederLimit, FeederTree};
use wattle_common::messages::site_minute::FEEDERS_RECORDED;

/// What each feeder with nodes on it carries.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Carried {
    by_feeder: BTreeMap<FeederId, Arc<FeederLimit>>,
    /// The feeders whose power is recorded in every minute.
    recorded: BTreeSet<FeederId>,
}

impl Carried {
    /// By these feeders.
    #[must_use]
    pub fn by(tree: &FeederTree) -> Self {
        let wholes = tree.wholes();
        let mut order = tree.in_order();
        order.sort_by_key(|(_, depth)| *depth);
        let nearest = order.iter().filter_map(|(at, _)| wholes[*at].as_ref());
        let recorded = nearest.take(FEEDERS_RECORDED).map(|limit| limit.feeder.clone()).collect();
        let known = wholes.into_iter().flatten();
        let by_feeder = known.map(|limit| (limit.feeder.clone(), Arc::new(limit))).collect();
        Self { by_feeder, recorded }
    }

    /// What a feeder carries; `None`: no node, or it is unknown.
    #[must_use]
    pub fn on(&self, feeder: &FeederId) -> Option<&Arc<FeederLimit>> {
        self.by_feeder.get(feeder)
    }

    /// The feeders whose power is recorded while events name these.
    #[must_use]
    pub fn recorded(&self, named: &BTreeSet<&FeederId>) -> Vec<Arc<FeederLimit>> {
        let is_recorded =
            |feeder: &FeederId| self.recorded.contains(feeder) || named.contains(feeder);
        let found = self.by_feeder.iter().filter(|(feeder, _)| is_recorded(feeder));
        found.map(|(_, limit)| Arc::clone(limit)).collect()
    }
}
