//! The reports of the nodes, and the GPUs that may get jobs by them.

use std::collections::BTreeSet;

use wattle_common::bounds::orders::is_in_sequence;
use wattle_common::id::SwitchId;
use wattle_common::messages::{
    AppliedGpu, LaunchReport, LaunchState, NodeDesired, NodeFault, PowerReport, SleepState,
};
use wattle_common::topology::GPUS_PER_NODE_MAX;
use wattle_common::{NodeId, Timestamp};

use crate::live::job_records::JobRecords;
use crate::live::nodes::Nodes;
use crate::live::nodes::reporter::Arrival;
use crate::live::{LiveController, Turn, site_jobs};
use crate::{ClusterState, NodeFacts, Wakefulness};

impl Nodes {
    /// A report counts as a heartbeat only if it is newer than the last: buckets deliver again.
    pub(in crate::live) fn power_reported(&mut self, turn: &mut Turn<'_>, report: PowerReport) {
        let now = turn.now;
        let node = self.state_mut(&report.node);
        let arrival = node.power_agent.reported(&report.instance, report.at_us, now);
        self.power_received(turn, now, report, &arrival);
    }

    /// Returns whether the report is the newest of its launcher.
    pub(in crate::live) fn launch_reported(
        &mut self,
        turn: &mut Turn<'_>,
        report: LaunchReport,
    ) -> bool {
        let now = turn.now;
        let node = self.state_mut(&report.node);
        let arrival = node.launcher.reported(&report.instance, report.at_us, now);
        self.compare_clocks(turn, &report.node);
        self.launch_received(turn, now, report, &arrival)
    }

    /// A stored report of the power agent.
    pub(in crate::live) fn power_restored(&mut self, turn: &mut Turn<'_>, report: PowerReport) {
        let now = turn.now;
        let node = self.state_mut(&report.node);
        let arrival = node.power_agent.restored(&report.instance, report.at_us, now);
        // It was received at an unknown time after it was made.
        let received_at = report.at_us.min(now);
        self.power_received(turn, received_at, report, &arrival);
    }

    /// A stored report of the launcher. Returns whether it is the newest of its launcher.
    pub(in crate::live) fn launch_restored(
        &mut self,
        turn: &mut Turn<'_>,
        report: LaunchReport,
    ) -> bool {
        let now = turn.now;
        let node = self.state_mut(&report.node);
        let arrival = node.launcher.restored(&report.instance, report.at_us, now);
        // It was received at an unknown time after it was made.
        let received_at = report.at_us.min(now);
        self.launch_received(turn, received_at, report, &arrival)
    }

    /// A stored order, with the sleep state of its node.
    pub(in crate::live) fn order_restored(&mut self, now: Timestamp, desired: NodeDesired) {
        let state = self.state_mut(&desired.node);
        state.sleep = desired.sleep;
        // Renewed at once if the clock was ahead when it was written.
        state.ordered_at = Some(desired.issued_at_us).filter(|at| *at <= now).unwrap_or_default();
        state.desired = Some(desired);
    }

    fn power_received(
        &mut self,
        turn: &mut Turn<'_>,
        received_at: Timestamp,
        report: PowerReport,
        arrival: &Arrival,
    ) {
        match arrival {
            Arrival::New => {
                let node = report.node.clone();
                self.state_mut(&node).power = Some((report, received_at));
            }
            Arrival::Old => {}
            Arrival::Second { other } => {
                turn.outbox.alarm(two_report(
                    "power agents",
                    &report.node,
                    &report.instance,
                    other,
                ));
            }
        }
    }

    /// Raises an alarm if the node's clock differs from the placer's.
    fn compare_clocks(&mut self, turn: &mut Turn<'_>, node: &NodeId) {
        let limit = self.config.clock_difference_max();
        let Some(state) = self.states.get_mut(node) else { return };
        let differs = state.launcher.differs_by(limit);
        if std::mem::replace(&mut state.clock_differs, differs) == differs || !differs {
            return;
        }
        let ahead_us = state.launcher.ahead_us().unwrap_or_default();
        let (s, side) =
            (ahead_us.unsigned_abs() / 1_000_000, if ahead_us < 0 { "behind" } else { "ahead of" });
        turn.outbox.alarm(format!(
            "the clock of {node} is {s} s {side} the placer's; its jobs and orders are not affected, \
             but recorded times are: synchronise the clocks, then restart the services that \
             started with the wrong time"
        ));
    }

    fn launch_received(
        &mut self,
        turn: &mut Turn<'_>,
        received_at: Timestamp,
        report: LaunchReport,
        arrival: &Arrival,
    ) -> bool {
        match arrival {
            Arrival::New => {}
            Arrival::Old => return false,
            Arrival::Second { other } => {
                turn.outbox.alarm(two_report("launchers", &report.node, &report.instance, other));
                return false;
            }
        }
        let seen = report.observed_generation;
        let id = report.node.clone();
        if let Some(fault) = &report.fault {
            let NodeFault { kind, error, .. } = fault;
            turn.outbox.alarm(format!(
                "{id} cannot start jobs and gets none until it can: {error}: {}",
                kind.remedy()
            ));
        }
        let node = self.state_mut(&id);
        node.launch = Some((report, received_at));
        // The bucket of orders was lost or restored from an older copy. The next order must be
        // newer than the one the node obeyed, or the node ignores it.
        if node.desired.as_ref().is_none_or(|last| !is_in_sequence(last.generation, seen)) {
            self.order(&id);
        }
        true
    }

    /// Adds a node that a placement names, with at least this many GPUs.
    pub(in crate::live) fn add_for_placement(
        &mut self,
        node: &NodeId,
        gpus: u32,
        controller: &mut LiveController,
    ) {
        self.state_mut(node);
        let state = controller.state();
        let known = state.node_key(node).map(|key| (*state.node(key).facts).clone());
        let facts = known.unwrap_or_else(|| NodeFacts {
            watts: None,
            host: None,
            partitions: Vec::new(),
            id: node.clone(),
            gpu_type: String::new(),
            gpus: 0,
            memory_mib: None,
            healthy: 0,
        });
        if facts.gpus < gpus {
            controller.events().node_known(NodeFacts { gpus, ..facts });
        }
    }

    /// Updates a node in the cluster's state from its reports; a change starts a planning round.
    pub(in crate::live) fn refresh(
        &mut self,
        turn: &mut Turn<'_>,
        node: &NodeId,
        jobs: &JobRecords,
    ) {
        self.watch_sleep(turn, node, jobs);
        let Some(state) = self.states.get(node) else { return };
        if state.wakefulness() == Wakefulness::Asleep {
            turn.controller.nodes_sleep_at_site();
        }
        let Some(facts) = self.facts(turn.now, node, jobs, turn.controller.state()) else { return };
        let Some((power, _)) = &state.power else { return };
        let unlocked = power.gpus.iter().filter(|gpu| gpu.clock_unsupported);
        for gpu in unlocked {
            turn.controller.events().locks_unsupported(&gpu.gpu_type);
        }
        let (switch, board, limit) =
            (power.switch.clone(), power.gpus_per_board, power.node_limit_mw);
        let key = turn.controller.state().node_key(node);
        if key.is_none_or(|key| *turn.controller.state().node(key).facts != facts) {
            turn.controller.events().node_known(facts);
            // A new node gets its first order, new GPUs the site's cap.
            self.order(node);
            turn.outbox.plan_soon();
        }
        if turn.controller.node_limit_known(node, limit) {
            self.order(node);
            turn.outbox.plan_soon();
        }
        self.count_fixed(turn, node);
        self.count_unconfirmed(turn, node);
        let Some(key) = turn.controller.state().node_key(node) else { return };
        turn.controller.events().boards_known(key, board);
        if self.states.get(node).is_some_and(|state| state.switch != switch) {
            let number =
                switch.as_ref().map(|switch| self.number_of(switch, node, turn.controller.state()));
            turn.controller.events().switch_known(key, number);
            self.state_mut(node).switch = switch;
        }
        let wakefulness = self.state_mut(node).wakefulness();
        if turn.controller.state().node(key).wakefulness != wakefulness {
            // Its idle time starts now.
            turn.controller.events().advance_to(turn.now);
            turn.controller.events().wakefulness_changed(key, wakefulness);
        }
    }

    /// The facts of a node for placement, by its reports; `None` before it has reported its GPUs.
    fn facts(
        &self,
        now: Timestamp,
        node: &NodeId,
        jobs: &JobRecords,
        cluster: &ClusterState,
    ) -> Option<NodeFacts> {
        let state = self.states.get(node)?;
        let (power, _) = state.power.as_ref().filter(|(power, _)| !power.gpus.is_empty())?;
        let known_node = cluster.node_key(node).map(|key| cluster.node(key));
        let before = known_node.map(|known| &known.facts);
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
        // GPUs of one type: one that does not report its memory counts as the others.
        let memory = typed.clone().filter_map(|gpu| gpu.memory_mib).min();
        let memory = memory.or_else(|| before?.memory_mib);
        let mut healthy =
            typed.filter(|gpu| gpu.accepts_jobs()).fold(0u64, |bits, gpu| bits | 1 << gpu.gpu);
        healthy &= !self.gpus_with_orphans(node, jobs);
        let site = state.launch.as_ref().and_then(|(report, _)| report.site.as_ref());
        healthy = site_jobs::usable(site, healthy, known_node.map_or(0, |known| known.occupied));
        let not_woken = state.sleep.is_some_and(|sleep| sleep.state == SleepState::WakeFailed);
        // A sleeping node is silent and healthy.
        let awake = state.wakefulness() == Wakefulness::Awake && !state.is_asleep_at_site();
        // The jobs that run there continue.
        let has_fault = state.fault().is_some();
        if has_fault || not_woken || (awake && !self.is_fresh(now, node)) {
            healthy = 0;
        }
        let sleeps = power.can_sleep || state.is_asleep_at_site();
        let sleeps = sleeps || before.is_some_and(|facts| facts.watts.is_some());
        Some(NodeFacts {
            watts: self.config.sleep.watts().filter(|_| sleeps),
            id: node.clone(),
            gpu_type: gpu_type.to_owned(),
            // A failed GPU may be missing in a report; jobs may hold it still.
            gpus: count.max(before.map_or(0, |facts| facts.gpus)),
            memory_mib: memory,
            healthy,
            host: site.map(site_jobs::host_capacity),
            partitions: site.map(|site| site.partitions.clone()).unwrap_or_default(),
        })
    }

    /// The number of a switch: that of the other nodes below it, else the lowest unused number.
    fn number_of(&self, switch: &SwitchId, node: &NodeId, cluster: &ClusterState) -> u32 {
        let mut taken = BTreeSet::new();
        for (other, state) in self.states.iter().filter(|(other, _)| *other != node) {
            let key = cluster.node_key(other);
            let Some(number) = key.and_then(|key| cluster.node(key).switch) else {
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
    fn gpus_with_orphans(&self, node: &NodeId, jobs: &JobRecords) -> u64 {
        let Some((report, _)) = self.states.get(node).and_then(|state| state.launch.as_ref())
        else {
            return 0;
        };
        let mut bits = 0;
        for launched in &report.jobs {
            let lives = matches!(launched.state, LaunchState::Running | LaunchState::Stopping);
            let ordered = jobs.get(&launched.job).is_some_and(|record| {
                let placed = record.placement.iter().flat_map(|placement| &placement.shares);
                record.phase.has_gpus()
                    && record.attempt == launched.attempt
                    && record.has_run(launched)
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
}

/// The alarm about two reporters of the same node.
fn two_report(which: &str, node: &NodeId, instance: &str, other: &str) -> String {
    format!(
        "two {which} report as node {node}: ({instance}) and ({other}); stop one of them, or \
         configure another `node` for it"
    )
}
