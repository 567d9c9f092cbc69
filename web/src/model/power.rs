//! The power of the cluster: readings, nodes without one, the limit in force, and the curve over the last time.

use std::collections::BTreeSet;
use std::time::Duration;

use wattle_common::messages::{BudgetRecord, BudgetStatus};
use wattle_common::total::Total;
use wattle_common::{GpuIndex, NodeId, Power};
use wattle_view::node::Node;

use super::history::Point;
use super::{Model, Now};

/// Age from which a summary is no reading any more, wall time: profilers publish one a second, and in a
/// large cluster one in three seconds is received.
const READING_VALID: Duration = Duration::from_secs(7);
/// Age from which a report of a node is overdue, wall time: twice the longest heartbeat.
const REPORT_VALID: Duration = Duration::from_secs(20);
/// Interval of the points of the power curve, wall time.
const HISTORY_EVERY: Duration = Duration::from_secs(5);

/// The power of the awake nodes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Drawn {
    /// Measured power of the GPUs. One without a meter, or without a reading now, is missing.
    pub gpus: Total<Power>,
    /// Configured power of the hosts.
    pub hosts: Power,
    /// Whether each GPU of each awake node has a reading.
    pub is_complete: bool,
}

impl Drawn {
    /// The sum; `None`: no GPU has a reading.
    #[must_use]
    pub fn known(&self) -> Option<Power> {
        self.gpus.known().map(|gpus| gpus + self.hosts)
    }
}

impl Model {
    /// Notes whether the bus is connected, drops readings that are too old, and adds a point to the power
    /// curve. While the bus is away the last readings remain.
    pub fn tick(&mut self, connected: bool, now: Now) {
        self.occupancy.tick(connected, now.at);
        self.lost_since = (!connected).then(|| self.lost_since.unwrap_or(now.steady));
        if !connected {
            self.history.interrupt(now.at);
            return;
        }
        self.follow_limit(now);
        self.follow_awake(now);
        let summarized = &self.summarized;
        self.summaries.retain(|node, _| {
            let received = summarized.get(node).copied().unwrap_or_default();
            now.steady.saturating_sub(received) <= READING_VALID
        });
        let due = self.history_at.is_none_or(|at| now.steady.saturating_sub(at) >= HISTORY_EVERY);
        if due && !self.nodes.is_empty() {
            let drawn = self.drawn();
            let (power, is_partial, limit) = (drawn.known(), !drawn.is_complete, self.limit);
            self.history.push(Point { at: now.at, power, is_partial, limit });
            self.history_at = Some(now.steady);
        }
    }

    /// A budget is in force when the placer has planned for it.
    fn follow_limit(&mut self, now: Now) {
        let set = self.budget.as_ref();
        let is_planned = |status: &BudgetStatus, set: &BudgetRecord| {
            status.observed_generation == 0 || status.observed_generation >= set.generation
        };
        if self.status.as_ref().zip(set).is_none_or(|(status, set)| is_planned(status, set)) {
            self.limit = set.and_then(|set| set.budget.power_at(now.at));
        }
    }

    fn follow_awake(&mut self, now: Now) {
        let awake = self.nodes.values().filter(|node| node.sleep.is_none());
        let since = awake.map(|node| {
            let id = node.node.clone();
            let since = self.awake_since.get(&id).copied().unwrap_or(now.steady);
            (id, since)
        });
        self.awake_since = since.collect();
    }

    /// The power limit in force.
    #[must_use]
    pub const fn limit(&self) -> Option<Power> {
        self.limit
    }

    /// The awake nodes of which a GPU has no reading: their power is not known.
    #[must_use]
    pub fn unread(&self) -> Vec<&NodeId> {
        let is_read = |node: &Node| {
            self.summaries.get(&node.node).is_some_and(|summary| {
                let reports = node.power.iter().flat_map(|report| &report.gpus);
                reports.filter(|gpu| !gpu.no_meter).map(|gpu| gpu.gpu).all(|gpu| {
                    let reading = summary.gpus.iter().find(|reading| reading.gpu == gpu);
                    reading.is_some_and(|reading| reading.power_mw_mean.is_some())
                })
            })
        };
        let nodes = self.nodes.values().filter(|node| node.sleep.is_none() && !is_read(node));
        nodes.map(|node| &node.node).collect()
    }

    /// Whether an awake node sends no readings, for longer than a profiler needs to begin.
    #[must_use]
    pub fn is_unread(&self, node: &Node, now: Now) -> bool {
        let until = self.lost_since.unwrap_or(now.steady);
        let awake = self.awake_since.get(&node.node);
        let long = awake.is_some_and(|since| until.saturating_sub(*since) > READING_VALID);
        node.sleep.is_none() && long && !self.summaries.contains_key(&node.node)
    }

    /// Whether an awake node is silent: a report is overdue, or it sends no readings.
    #[must_use]
    pub fn is_silent(&self, node: &Node, now: Now) -> bool {
        [true, false].into_iter().any(|power| self.is_overdue(node, power, now))
            || self.is_unread(node, now)
    }

    /// The power of the awake nodes.
    #[must_use]
    pub fn drawn(&self) -> Drawn {
        let mut drawn = Drawn { is_complete: self.unread().is_empty(), ..Drawn::default() };
        let ids: BTreeSet<&NodeId> = self.nodes.keys().chain(self.summaries.keys()).collect();
        for id in ids {
            let node = self.nodes.get(id);
            if node.is_some_and(|node| node.sleep.is_some()) {
                continue;
            }
            let summary = self.summaries.get(id);
            let read = summary.map(|summary| summary.gpus.as_slice()).unwrap_or_default();
            let reported = node.and_then(|node| node.power.as_ref());
            let reported = reported.into_iter().flat_map(|report| &report.gpus);
            let gpus: BTreeSet<GpuIndex> =
                reported.map(|gpu| gpu.gpu).chain(read.iter().map(|gpu| gpu.gpu)).collect();
            for gpu in gpus {
                let reading = read.iter().find(|reading| reading.gpu == gpu);
                drawn.gpus.add(reading.and_then(|reading| reading.power_mw_mean));
            }
            drawn.hosts += summary.and_then(|summary| summary.power_mw_host).unwrap_or_default();
        }
        drawn.is_complete &= drawn.gpus.is_complete();
        drawn
    }

    /// Measured power of the GPUs and configured power of the hosts: a lower bound where a reading is missing.
    #[must_use]
    pub fn power(&self) -> Option<Power> {
        self.drawn().known()
    }

    /// Whether a report of the node is overdue while it is awake; `power`: that of its power agent, else
    /// that of its launcher.
    #[must_use]
    pub fn is_overdue(&self, node: &Node, power: bool, now: Now) -> bool {
        let until = self.lost_since.unwrap_or(now.steady);
        let at = self.reported.get(&(power, node.node.clone()));
        node.sleep.is_none() && at.is_none_or(|at| until.saturating_sub(*at) > REPORT_VALID)
    }
}

#[cfg(test)]
mod tests {
    use wattle_common::subject::BUDGET_SET;
    use wattle_common::{Budget, Timestamp};
    use wattle_testkit as testkit;

    use super::super::tests::{budget_status, example, json, now, summary};
    use super::*;

    #[test]
    fn old_readings_are_dropped_unless_the_bus_is_away() {
        let mut model = example();
        assert_eq!(model.power(), Some(Power::from_w(680)));
        model.summary(&json(&summary("n1", 50)), now(104));
        model.tick(false, now(120));
        assert_eq!(model.lost_since(), Some(Duration::from_secs(120)));
        assert_eq!(model.power(), Some(Power::from_w(540)), "the last readings remain");
        model.tick(true, now(108));
        assert_eq!(model.power(), Some(Power::from_w(200)), "n0 is silent");
        assert_eq!(model.lost_since(), None);
    }

    #[test]
    fn a_silent_node_is_a_gap_in_the_curve() {
        let mut model = example();
        let last = |model: &Model| *model.history.points().last().unwrap();
        assert_eq!(
            (last(&model).power, last(&model).is_partial),
            (Some(Power::from_w(680)), false)
        );
        model.summary(&json(&summary("n0", 120)), now(108));
        model.tick(true, now(108));
        assert_eq!((last(&model).power, last(&model).is_partial), (Some(Power::from_w(340)), true));
        assert_eq!(model.unread(), [&testkit::node("n1")]);
        let node = &model.nodes[&testkit::node("n1")];
        assert!(model.is_silent(node, now(108)) && !model.is_overdue(node, true, now(108)));
        // A GPU without a reading is as unknown as a node.
        let mut lost = summary("n1", 120);
        lost.gpus[1].power_mw_mean = None;
        model.summary(&json(&lost), now(109));
        assert_eq!(model.unread(), [&testkit::node("n1")]);
        model.summary(&json(&summary("n1", 120)), now(110));
        assert_eq!(model.unread().len(), 0);
        model.tick(false, now(113));
        assert_eq!(last(&model).power, None, "no readings while the bus is away");
        model.tick(false, now(120));
        assert_eq!(model.history.points().filter(|point| point.power.is_none()).count(), 1);
    }

    #[test]
    fn a_gpu_without_a_meter_makes_the_sum_a_lower_bound() {
        let mut model = example();
        let gpu = |index, no_meter| wattle_common::messages::AppliedGpu {
            no_meter,
            ..testkit::applied_gpu(index, "v100")
        };
        let report =
            testkit::power_report("n1", Timestamp::from_s(100), [gpu(0, false), gpu(1, true)]);
        model.report("power.n1", Some(&json(&report)), now(101));
        let mut partial = summary("n1", 120);
        partial.gpus[1].power_mw_mean = None;
        model.summary(&json(&partial), now(101));
        let drawn = model.drawn();
        assert_eq!(drawn.known(), Some(Power::from_w(560)));
        assert_eq!(drawn.gpus.missing("GPU").as_deref(), Some("1 of 4 GPUs has no reading"));
        assert!(!drawn.is_complete && model.unread().is_empty(), "the node is read completely");
        model.tick(true, now(107));
        assert!(model.history.points().last().unwrap().is_partial);
    }

    #[test]
    fn a_limit_is_in_force_once_the_placer_has_planned_for_it() {
        let mut model = example();
        let mut set = |generation, watts: Option<u64>, observed, s| {
            let budget = Budget { power_mw: watts.map(Power::from_w), ..Budget::default() };
            let record =
                BudgetRecord { generation, budget, since_us: Timestamp::EPOCH, intensity: None };
            model.budget(BUDGET_SET, Some(&json(&record)));
            model.status = Some(BudgetStatus { observed_generation: observed, ..budget_status() });
            for node in ["n0", "n1"] {
                model.summary(&json(&summary(node, 120)), now(s));
            }
            model.tick(true, now(s));
            model.history.points().last().unwrap().limit.map(|limit| limit.as_w() as u64)
        };
        assert_eq!(set(1, None, 1, 110), None);
        assert_eq!(set(2, Some(900), 1, 120), None, "stored, and not planned for");
        assert_eq!(set(2, Some(900), 2, 130), Some(900));
        assert_eq!(set(3, None, 2, 140), Some(900), "in force until the next round");
        assert_eq!(set(3, None, 3, 150), None);
        let limits = model.history.points().map(|point| point.limit.is_some());
        assert_eq!(limits.collect::<Vec<_>>(), [false, false, false, true, true, false]);
    }

    #[test]
    fn reports_are_overdue_after_two_heartbeats() {
        let model = example();
        let node = &model.nodes[&testkit::node("n0")];
        assert!(!model.is_overdue(node, true, now(119)));
        assert!(model.is_overdue(node, true, now(121)) && model.is_overdue(node, false, now(121)));
    }
}
