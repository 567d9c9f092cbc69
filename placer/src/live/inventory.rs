//! The nodes: their GPUs, whether they answer, and whether they may get jobs.

use std::collections::BTreeSet;

use wattle_common::bounds::orders::is_in_sequence;
use wattle_common::id::SwitchId;
use wattle_common::messages::{
    AppliedGpu, LaunchReport, LaunchState, NodeDesired, NodeSleep, PowerReport, SleepState,
};
use wattle_common::topology::GPUS_PER_NODE_MAX;
use wattle_common::{NodeId, Timestamp};

use crate::live::power_shares::ReplacedCaps;
use crate::live::reporter::{Arrival, Reporter};
use crate::live::{Placer, site_jobs};
use crate::{NodeFacts, Wakefulness};

/// The state of one node.
#[derive(Default)]
pub(super) struct NodeState {
    /// The power agent's last report, and when a newer one last arrived.
    pub(super) power: Option<(PowerReport, Timestamp)>,
    /// The launcher's.
    pub(super) launch: Option<(LaunchReport, Timestamp)>,
    /// Its reporters.
    power_agent: Reporter,
    launcher: Reporter,
    /// Whether it is to be compared with the store; it gets no order until then.
    pub(super) adopts: bool,
    /// Whether a report since the placer's start was compared with the store.
    pub(super) is_compared: bool,
    /// Whether its clock difference is alarmed.
    clock_differs: bool,
    /// The order in force.
    pub(super) desired: Option<NodeDesired>,
    /// The caps of orders that were replaced before it reported them.
    pub(super) replaced_caps: ReplacedCaps,
    /// Since when it may have a cap above the desired one under a power limit.
    pub(super) reduces_since: Option<Timestamp>,
    /// When the order was last written; before any time if by an earlier placer.
    pub(super) ordered_at: Timestamp,
    /// Its sleep state; absent: awake.
    pub(super) sleep: Option<NodeSleep>,
    /// Whether its wake command failed and runs again.
    pub(super) wake_again: bool,
    /// When a policy decided to wake it, and the site's scheduler has put it to sleep: the job that is placed
    /// on it wakes it.
    pub(super) woken_by_job_at: Option<Timestamp>,
    /// The leaf switch in the cluster's state.
    switch: Option<SwitchId>,
}

impl Placer {
    pub(super) fn node_mut(&mut self, node: &NodeId) -> &mut NodeState {
        self.nodes.entry(node.clone()).or_default()
    }

    /// A report counts as a heartbeat only if it is newer than the last: buckets deliver again.
    pub(super) fn power_reported(&mut self, now: Timestamp, report: PowerReport) {
        let node = self.node_mut(&report.node);
        let arrival = node.power_agent.reported(&report.instance, report.at_us, now);
        self.power_received(now, report, &arrival);
    }

    pub(super) fn launch_reported(&mut self, now: Timestamp, report: LaunchReport) {
        let node = self.node_mut(&report.node);
        let arrival = node.launcher.reported(&report.instance, report.at_us, now);
        self.compare_clocks(&report.node);
        if arrival == Arrival::New {
            self.compare_with_store(now, &report, true);
        }
        self.launch_received(now, report, &arrival);
    }

    /// A stored report of the power agent.
    pub(super) fn power_restored(&mut self, now: Timestamp, report: PowerReport) {
        let node = self.node_mut(&report.node);
        let arrival = node.power_agent.restored(&report.instance, report.at_us, now);
        self.power_received(report.at_us.min(now), report, &arrival);
    }

    /// A stored report of the launcher.
    pub(super) fn launch_restored(&mut self, now: Timestamp, report: LaunchReport) {
        let node = self.node_mut(&report.node);
        let arrival = node.launcher.restored(&report.instance, report.at_us, now);
        if arrival == Arrival::New {
            self.compare_with_store(now, &report, false);
        }
        self.launch_received(report.at_us.min(now), report, &arrival);
    }

    fn power_received(&mut self, now: Timestamp, report: PowerReport, arrival: &Arrival) {
        match arrival {
            Arrival::New => {
                let node = report.node.clone();
                self.node_mut(&node).power = Some((report, now));
            }
            Arrival::Old => {}
            Arrival::Second { other } => {
                self.second_reporter("power agents", &report.node, &report.instance, other);
            }
        }
    }

    fn second_reporter(&mut self, which: &str, node: &NodeId, instance: &str, other: &str) {
        self.outbox.alarm(format!(
            "two {which} report as node {node}: ({instance}) and ({other}); stop one of them, or \
             configure another `node` for it"
        ));
    }

    /// Raises an alarm if the node's clock differs from the placer's.
    fn compare_clocks(&mut self, node: &NodeId) {
        let limit = self.config.clock_difference_max();
        let Some(state) = self.nodes.get_mut(node) else { return };
        let differs = state.launcher.differs_by(limit);
        if std::mem::replace(&mut state.clock_differs, differs) == differs || !differs {
            return;
        }
        let ahead_us = state.launcher.ahead_us().unwrap_or_default();
        let (s, side) =
            (ahead_us.unsigned_abs() / 1_000_000, if ahead_us < 0 { "behind" } else { "ahead of" });
        self.outbox.alarm(format!(
            "the clock of {node} is {s} s {side} the placer's; its jobs and orders are not affected, \
             but recorded times are: synchronise the clocks, then restart the services that \
             started with the wrong time"
        ));
    }

    fn launch_received(&mut self, now: Timestamp, report: LaunchReport, arrival: &Arrival) {
        let seen = report.observed_generation;
        let id = report.node.clone();
        let node = self.node_mut(&id);
        if let Arrival::Second { other } = arrival {
            self.second_reporter("launchers", &id, &report.instance, other);
        } else if *arrival == Arrival::New {
            node.launch = Some((report, now));
            // The bucket of orders was lost or restored from an older copy. The next order must be
            // newer than the one the node obeyed, or the node ignores it.
            if node.desired.as_ref().is_none_or(|last| !is_in_sequence(last.generation, seen)) {
                self.to_order.insert(id);
            }
        }
    }

    /// Records that the node has at least this many GPUs, since a placement names them.
    pub(super) fn ensure_gpu_count(&mut self, node: &NodeId, gpus: u32) {
        let known = self
            .controller
            .state()
            .node_key(node)
            .map(|key| (*self.controller.state().node(key).facts).clone());
        let facts = known.unwrap_or_else(|| NodeFacts {
            watts: None,
            host: None,
            partitions: Vec::new(),
            id: node.clone(),
            gpu_type: String::new(),
            gpus: 0,
            memory_mib: 0,
            healthy: 0,
        });
        if facts.gpus < gpus {
            self.controller.events().node_known(NodeFacts { gpus, ..facts });
        }
    }

    /// Updates a node in the cluster's state from its reports; a change starts a planning round.
    pub(super) fn refresh(&mut self, now: Timestamp, node: &NodeId) {
        self.watch_sleep(now, node);
        let Some(state) = self.nodes.get(node) else { return };
        if state.wakefulness() == Wakefulness::Asleep {
            self.controller.nodes_sleep_at_site();
        }
        let Some((power, _)) = &state.power else { return };
        let (switch, board) = (power.switch.clone(), power.gpus_per_board);
        if power.gpus.is_empty() {
            return;
        }
        let before = self
            .controller
            .state()
            .node_key(node)
            .map(|key| &self.controller.state().node(key).facts);
        // A GPU that never answered has no type; the node's other GPUs have it, or had it before.
        let is_known = |gpu: &&AppliedGpu| !gpu.gpu_type.is_empty() && gpu.gpu < GPUS_PER_NODE_MAX;
        let known = || power.gpus.iter().filter(is_known);
        let gpu_type = known().map(|gpu| gpu.gpu_type.as_str()).next();
        let gpu_type = gpu_type.or(before.map(|facts| facts.gpu_type.as_str())).unwrap_or_default();
        // GPUs of another type than the node's first are ignored.
        let typed = known().filter(|gpu| gpu.gpu_type == gpu_type);
        let untyped = power.gpus.iter().filter(|gpu| gpu.gpu_type.is_empty());
        let reported = typed.clone().chain(untyped.filter(|gpu| gpu.gpu < GPUS_PER_NODE_MAX));
        let count = reported.map(|gpu| gpu.gpu + 1).max().unwrap_or(0);
        let memory = typed.clone().map(|gpu| gpu.memory_mib).min();
        let memory = memory.or(before.map(|facts| facts.memory_mib)).unwrap_or(0);
        let mut healthy =
            typed.filter(|gpu| gpu.accepts_jobs()).fold(0u64, |bits, gpu| bits | 1 << gpu.gpu);
        healthy &= !self.gpus_with_orphans(node);
        let site = state.launch.as_ref().and_then(|(report, _)| report.site.as_ref());
        let occupied = self
            .controller
            .state()
            .node_key(node)
            .map_or(0, |key| self.controller.state().node(key).occupied);
        healthy = site_jobs::usable(site, healthy, occupied);
        let wakefulness = state.wakefulness();
        let not_woken = state.sleep.is_some_and(|sleep| sleep.state == SleepState::WakeFailed);
        // A sleeping node is silent and healthy.
        let awake = wakefulness == Wakefulness::Awake && !state.is_asleep_at_site();
        if not_woken || (awake && !self.is_fresh(now, node)) {
            healthy = 0;
        }
        let sleeps = power.can_sleep || state.is_asleep_at_site();
        let sleeps = sleeps || before.is_some_and(|facts| facts.watts.is_some());
        let watts = self.config.sleep.watts().filter(|_| sleeps);
        let facts = NodeFacts {
            watts,
            id: node.clone(),
            gpu_type: gpu_type.to_owned(),
            gpus: count.max(before.map_or(0, |facts| facts.gpus)),
            memory_mib: memory,
            healthy,
            host: site.map(site_jobs::host_capacity),
            partitions: site.map(|site| site.partitions.clone()).unwrap_or_default(),
        };
        let limit = power.node_limit_mw;
        if before.is_none_or(|before| **before != facts) {
            self.controller.events().node_known(facts);
            // A new node gets its first order, new GPUs the site's cap.
            self.to_order.insert(node.clone());
            self.outbox.plan_soon();
        }
        if self.controller.node_limit_known(node, limit) {
            self.to_order.insert(node.clone());
            self.outbox.plan_soon();
        }
        self.count_fixed(now, node);
        self.count_unconfirmed(now, node);
        let Some(key) = self.controller.state().node_key(node) else { return };
        self.controller.events().boards_known(key, board);
        if self.nodes.get(node).is_some_and(|state| state.switch != switch) {
            let number = switch.as_ref().map(|switch| self.number_of(switch, node));
            self.controller.events().switch_known(key, number);
            self.node_mut(node).switch = switch;
        }
        if self.controller.state().node(key).wakefulness != wakefulness {
            // Its idle time starts now.
            self.controller.events().advance_to(now);
            self.controller.events().wakefulness_changed(key, wakefulness);
        }
    }

    /// The number of a switch: that of the other nodes below it, else the lowest unused number.
    fn number_of(&self, switch: &SwitchId, node: &NodeId) -> u32 {
        let mut taken = BTreeSet::new();
        for (other, state) in self.nodes.iter().filter(|(other, _)| *other != node) {
            let key = self.controller.state().node_key(other);
            let Some(number) = key.and_then(|key| self.controller.state().node(key).switch) else {
                continue;
            };
            if state.switch.as_ref() == Some(switch) {
                return number;
            }
            taken.insert(number);
        }
        (0..).find(|number| !taken.contains(number)).unwrap_or_default()
    }

    /// GPUs with orphaned processes: of a job that is no longer ordered there.
    fn gpus_with_orphans(&self, node: &NodeId) -> u64 {
        let Some((report, _)) = self.nodes.get(node).and_then(|state| state.launch.as_ref()) else {
            return 0;
        };
        let mut bits = 0;
        for launched in &report.jobs {
            let lives = matches!(launched.state, LaunchState::Running | LaunchState::Stopping);
            let ordered = self.jobs.get(&launched.job).is_some_and(|record| {
                let placed = record.placement.iter().flat_map(|placement| &placement.shares);
                crate::live::has_gpus(record.phase)
                    && record.attempt == launched.attempt
                    && placed.into_iter().any(|share| share.node == *node)
            });
            if lives && !ordered {
                for gpu in launched.gpus.iter().filter(|gpu| **gpu < GPUS_PER_NODE_MAX) {
                    bits |= 1 << gpu;
                }
            }
        }
        bits
    }

    /// Whether both of the node's services have reported recently.
    pub(super) fn is_fresh(&self, now: Timestamp, node: &NodeId) -> bool {
        let Some(state) = self.nodes.get(node) else { return false };
        let patience = self.config.node_stale_after();
        let power = state.power.as_ref().is_some_and(|(_, at)| now.since(*at) <= patience);
        power && state.launch.as_ref().is_some_and(|(_, at)| now.since(*at) <= patience)
    }

    /// Whether the node's launcher has been silent for longer than `node_lost_after_ms`.
    pub(super) fn is_lost(&self, now: Timestamp, node: &NodeId) -> bool {
        let report = self.nodes.get(node).and_then(|state| state.launch.as_ref());
        // The site's scheduler judges its nodes, and its jobs run on while its service is away.
        if report.is_some_and(|(report, _)| report.site.is_some()) {
            return false;
        }
        let last_report =
            report.map_or(self.reports_valid_from, |(_, at)| (*at).max(self.reports_valid_from));
        now.since(last_report) > self.config.node_lost_after()
    }

    /// Restarts the silence of every node, if the placer itself was away: paused, or busy for longer than
    /// nodes may be silent. Reports that were sent meanwhile have not been received.
    pub(super) fn notice_absence(&mut self, now: Timestamp) {
        let away = now.since(self.active_at);
        self.active_at = self.active_at.max(now);
        if away <= self.config.absence_min() {
            return;
        }
        self.reports_valid_from = self.reports_valid_from.max(now);
        for state in self.nodes.values_mut() {
            let power = state.power.as_mut().map(|(_, at)| at);
            for at in power.into_iter().chain(state.launch.as_mut().map(|(_, at)| at)) {
                *at = *at + away;
            }
        }
        self.outbox.alarm(format!(
            "the placer was paused or blocked for {} s; no node counts as silent for that time",
            away.as_secs()
        ));
    }

    /// Whether no GPU of the job on this node is reported as failed. GPUs that only get no new jobs answer.
    pub(super) fn gpus_answer(&self, node: &NodeId, gpus: &[u32]) -> bool {
        let Some((power, _)) = self.nodes.get(node).and_then(|state| state.power.as_ref()) else {
            return true;
        };
        !power.gpus.iter().any(|gpu| !gpu.healthy && gpus.contains(&gpu.gpu))
    }

    /// Whether every node of the cluster has reported.
    pub(super) fn inventory_complete(&self, now: Timestamp) -> bool {
        let known = self.controller.state().nodes().len();
        match self.config.nodes_expected {
            Some(expected) => known >= expected as usize,
            None => known > 0 && now.since(self.started_at) >= self.config.node_stale_after(),
        }
    }
}
