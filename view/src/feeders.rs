//! The feeders as a tree, with measured and expected power against their limits.

use serde::Serialize;
use wattle_common::feeders::FeederTree;
use wattle_common::messages::{FeedersStatus, NodeSummary};
use wattle_common::total::Total;
use wattle_common::{FeederId, NodeId, Power};

use crate::node::Node;

/// A feeder in the tree.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Its name.
    pub feeder: FeederId,
    /// Number of feeders between it and a supply of the site, with that supply.
    pub depth: usize,
    /// Its limit.
    pub limit_mw: Power,
    /// Measured power with the configured power of hosts and static loads; absent: no reading.
    pub measured_mw: Option<Power>,
    /// Whether that is a lower bound, because a reading is missing.
    pub is_partial: bool,
    /// Expected power by the plan in force.
    pub expected_mw: Power,
    /// The highest expected power if any single feeder is lost.
    pub worst_mw: Power,
    /// The lost feeder of that power; absent: no loss raises it.
    pub lost: Option<FeederId>,
    /// Number of nodes on it.
    pub nodes: usize,
}

impl Row {
    /// What is above its limit, in words.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        let Self { feeder, limit_mw: limit, measured_mw, worst_mw, lost, is_partial, .. } = self;
        let at_least = if *is_partial { "at least " } else { "" };
        let above = format!("above its limit of {limit}");
        match (measured_mw, lost) {
            (Some(measured), _) if measured > limit => {
                Some(format!("feeder {feeder} draws {at_least}{measured}, {above}"))
            }
            (_, Some(lost)) if worst_mw > limit => {
                Some(format!("feeder {feeder} would draw {worst_mw} if {lost} were lost, {above}"))
            }
            (_, None) if worst_mw > limit => {
                Some(format!("feeder {feeder} is expected to draw {worst_mw}, {above}"))
            }
            _ => None,
        }
    }
}

/// The measured power of a node: its GPUs and the configured power of its host. A node that sleeps or has no reading
/// has a missing part.
#[must_use]
pub fn drawn(node: Option<&Node>, summary: Option<&NodeSummary>) -> Total<Power> {
    let mut drawn = Total::default();
    let awake = node.filter(|node| node.sleep.is_none());
    let Some(report) = awake.and_then(|node| node.power.as_ref()) else {
        drawn.add(None);
        return drawn;
    };
    for gpu in &report.gpus {
        let read = summary.and_then(|read| read.gpus.iter().find(|read| read.gpu == gpu.gpu));
        drawn.add(read.and_then(|read| read.power_mw_mean));
    }
    drawn.add(summary.and_then(|summary| summary.power_mw_host));
    drawn
}

/// The feeders, each after the one that supplies it. Empty if the status is no tree.
#[must_use]
pub fn rows(status: &FeedersStatus, reading: impl Fn(&NodeId) -> Total<Power>) -> Vec<Row> {
    let feeders = status.feeders.iter().map(|status| status.feeder.clone()).collect();
    let Ok(tree) = FeederTree::new(feeders, status.connections.clone()) else { return Vec::new() };
    let measured = tree.measured(reading);
    let row = |(at, depth): (usize, usize)| {
        let own = &status.feeders[at];
        Row {
            feeder: own.feeder.name.clone(),
            depth,
            limit_mw: own.feeder.limit_mw,
            measured_mw: measured[at].known(),
            is_partial: !measured[at].is_complete(),
            expected_mw: own.power_mw_expected,
            worst_mw: own.power_mw_worst,
            lost: own.lost.clone(),
            nodes: tree.whole(at).map_or(0, |whole| whole.shares.len()),
        }
    };
    tree.in_order().into_iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use wattle_common::Timestamp;
    use wattle_testkit as testkit;

    use super::*;

    #[test]
    fn an_absent_reading_is_no_zero() {
        let status = testkit::feeders_status();
        let node = |name: &str| {
            let mut node = Node::new(testkit::node(name));
            let gpus = [testkit::applied_gpu(0, "v100")];
            node.power = Some(testkit::power_report(name, Timestamp::from_s(1), gpus));
            node
        };
        let summary =
            testkit::node_summary("n0", [Some(Power::from_w(200))], Some(Power::from_w(100)));
        let rows = |read: bool| {
            rows(&status, |id| {
                let summary = (read || id.as_str() == "n1").then_some(&summary);
                drawn(Some(&node(id.as_str())), summary)
            })
        };
        let shown = |rows: Vec<Row>| -> Vec<(String, usize, Option<Power>, bool, usize)> {
            rows.into_iter()
                .map(|r| (r.feeder.to_string(), r.depth, r.measured_mw, r.is_partial, r.nodes))
                .collect()
        };
        let w = |watts| Some(Power::from_w(watts));
        // n0 is on both PDUs, n1 on the first alone; board-a has a static load of 50 W.
        let complete = [
            ("board-a".to_owned(), 0, w(500), false, 2),
            ("pdu-a".to_owned(), 1, w(450), false, 2),
            ("board-b".to_owned(), 0, w(150), false, 1),
            ("pdu-b".to_owned(), 1, w(150), false, 1),
        ];
        assert_eq!(shown(rows(true)), complete);
        let silent = [
            ("board-a".to_owned(), 0, w(350), true, 2),
            ("pdu-a".to_owned(), 1, w(300), true, 2),
            ("board-b".to_owned(), 0, None, true, 1),
            ("pdu-b".to_owned(), 1, None, true, 1),
        ];
        assert_eq!(shown(rows(false)), silent);
        let faults: Vec<String> = rows(true).iter().filter_map(Row::fault).collect();
        assert_eq!(
            faults,
            ["feeder pdu-b would draw 950 W if board-a were lost, above its limit of 900 W"]
        );
    }
}
