//! The power of each feeder by the plan in force: its status for views, and what its configuration lacks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use wattle_common::feeders::{FeederLimit, FeederTree};
use wattle_common::messages::{FeederStatus, FeedersStatus};
use wattle_common::{NodeId, Power, Timestamp};

use crate::live::outbox::Outbox;
use crate::live::{Action, LiveController};
use crate::power::bounds::PowerBound;
use crate::power::model::{expected_by_node, least_by_node};

/// Least time between two statuses.
const STATUS_LEAST: Duration = Duration::from_secs(5);
/// Longest time between two statuses.
const STATUS_MOST: Duration = Duration::from_secs(60);

/// The power of each feeder.
pub(super) struct Feeders {
    tree: Arc<FeederTree>,
    /// The limits with every feeder in operation, in the order of the tree.
    whole: Vec<Option<FeederLimit>>,
    /// The last status.
    stored: Option<FeedersStatus>,
}

impl Feeders {
    pub(super) fn new(tree: Arc<FeederTree>) -> Self {
        let whole = tree.wholes();
        Self { tree, whole, stored: None }
    }

    /// The statuses of the feeders; `None` while the power of a node is not known.
    pub(super) fn statuses(&self, controller: &LiveController) -> Option<Vec<FeederStatus>> {
        let state = controller.state();
        let expected = expected_by_node(controller.input())?;
        let node_w = |node: &NodeId| {
            let expected = state.node_key(node).and_then(|key| expected.get(key.index()));
            expected.copied().map_or(0.0, Power::as_w)
        };
        let mut worst: BTreeMap<&str, (f64, &FeederLimit)> = BTreeMap::new();
        for limit in limits(controller) {
            let drawn_w = limit.power_w(node_w);
            let known = worst.entry(limit.feeder.as_str()).or_insert((drawn_w, limit));
            if drawn_w > known.0 {
                *known = (drawn_w, limit);
            }
        }
        let status = |(feeder, whole): (_, &Option<FeederLimit>)| {
            let feeder: &wattle_common::feeders::Feeder = feeder;
            let whole_w = match whole {
                Some(whole) => whole.power_w(node_w),
                None => feeder.static_load_mw.as_w(),
            };
            let worst = worst.get(feeder.name.as_str()).filter(|(drawn_w, _)| *drawn_w > whole_w);
            FeederStatus {
                feeder: feeder.clone(),
                power_mw_expected: Power::from_w_f64(whole_w),
                power_mw_worst: Power::from_w_f64(worst.map_or(whole_w, |(drawn_w, _)| *drawn_w)),
                lost: worst.and_then(|(_, limit)| limit.lost.clone()),
            }
        };
        Some(self.tree.feeders().iter().zip(&self.whole).map(status).collect())
    }

    /// Stores the status where it has changed or is old, and raises alarms about the configuration.
    pub(super) fn store(
        &mut self,
        now: Timestamp,
        controller: &LiveController,
        outbox: &mut Outbox,
        out: &mut Vec<Action>,
    ) {
        let age = self.stored.as_ref().map(|stored| now.since(stored.at_us));
        if self.tree.is_empty() || age.is_some_and(|age| age < STATUS_LEAST) {
            return;
        }
        let Some(feeders) = self.statuses(controller) else { return };
        let is_same = self.stored.as_ref().is_some_and(|stored| stored.feeders == feeders);
        if is_same && age.is_some_and(|age| age < STATUS_MOST) {
            return;
        }
        self.raise_alarms(controller, outbox);
        let connections = self.tree.connections().to_vec();
        let power_margin = controller.power_margin();
        let status = FeedersStatus { at_us: now, feeders, connections, power_margin };
        self.stored = Some(status.clone());
        out.push(Action::StoreFeedersStatus(Box::new(status)));
    }

    fn raise_alarms(&self, controller: &LiveController, outbox: &mut Outbox) {
        let nodes = controller.state().nodes();
        let without = nodes.iter().filter(|node| !self.tree.feeds(&node.facts.id));
        for node in without {
            let id = &node.facts.id;
            outbox.alarm(format!(
                "{id} is on no feeder, so no limit of a feeder counts its power: add it to a table [[node]] of the \
                 placer's configuration"
            ));
        }
        let least = least_by_node(controller.input());
        let idle = |node: &NodeId| {
            let key = controller.state().node_key(node)?;
            least.as_ref()?.get(key.index()).copied()
        };
        if let Err(error) = self.tree.check_idle(idle) {
            outbox.alarm_of(format!("feeder idle {:?}", error.place), error.problem);
        }
    }
}

/// The limits in force of feeders.
fn limits(controller: &LiveController) -> impl Iterator<Item = &FeederLimit> {
    controller.limits().power_bounds.iter().filter_map(|bound| match bound {
        PowerBound::Feeder(limit) => Some(&**limit),
        PowerBound::Node(..) | PowerBound::Target(..) => None,
    })
}
