//! The nodes: their reports, their GPUs, their sleep and their orders.
//!
//! A method that changes what a node's order follows from marks the node; [`orders`] writes the order at the end
//! of the event if it differs. What jobs contribute to orders is marked by their records.

mod inventory;
mod orders;
mod power_shares;
mod reporter;
mod sleep;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use wattle_common::id::SwitchId;
use wattle_common::messages::{
    LaunchReport, NodeDesired, NodeFault, NodeSleep, PowerReport, SleepState,
};
use wattle_common::{NodeId, Timestamp};

use crate::config::Config;
use crate::live::measures::NodeCounts;
use crate::live::outbox::Outbox;
use crate::{ClusterState, Wakefulness};

use power_shares::ReplacedCaps;
use reporter::Reporter;

/// The state of one node.
#[derive(Default)]
struct NodeState {
    /// The power agent's last report, and when a newer one last arrived.
    power: Option<(PowerReport, Timestamp)>,
    /// The launcher's.
    launch: Option<(LaunchReport, Timestamp)>,
    /// Its reporters.
    power_agent: Reporter,
    launcher: Reporter,
    /// Whether it is to be compared with the store; it gets no order until then.
    awaits_comparison: bool,
    /// Whether a report since the placer's start was compared with the store.
    is_compared: bool,
    /// Whether its clock difference is alarmed.
    clock_differs: bool,
    /// The order in force.
    desired: Option<NodeDesired>,
    /// The caps of orders that were replaced before it reported them.
    replaced_caps: ReplacedCaps,
    /// Since when it may have a cap above the desired one under a power limit.
    reduces_since: Option<Timestamp>,
    /// When the order was last written; before any time if by an earlier placer.
    ordered_at: Timestamp,
    /// Its sleep state; absent: awake.
    sleep: Option<NodeSleep>,
    /// Whether its wake command failed and runs again.
    wake_again: bool,
    /// When a policy decided to wake it, and the site's scheduler has put it to sleep: the job that is placed
    /// on it wakes it.
    woken_by_job_at: Option<Timestamp>,
    /// The leaf switch in the cluster's state.
    switch: Option<SwitchId>,
}

impl NodeState {
    /// The fault that keeps the node from starting jobs.
    fn fault(&self) -> Option<&NodeFault> {
        self.launch.as_ref().and_then(|(report, _)| report.fault.as_ref())
    }
}

/// All nodes, and what the event being handled has changed of them.
pub(super) struct Nodes {
    config: Arc<Config>,
    states: BTreeMap<NodeId, NodeState>,
    started_at: Timestamp,
    /// When the placer last handled an event or a wake.
    active_at: Timestamp,
    /// When the placer last started or the bus last returned: heartbeats missing before do not count.
    reports_valid_from: Timestamp,
    /// The nodes whose orders may differ.
    to_order: BTreeSet<NodeId>,
    /// The nodes whose wake commands are to run.
    to_wake: BTreeSet<NodeId>,
    /// Whether the power that counts for a node has changed since the last plan.
    plan_is_outdated: bool,
    /// Whether an ordered cap or start waits until the caps of other nodes have fallen.
    raises_pending: bool,
}

impl Nodes {
    pub(super) fn new(config: Arc<Config>, now: Timestamp) -> Self {
        Self {
            config,
            states: BTreeMap::new(),
            started_at: now,
            active_at: now,
            reports_valid_from: now,
            to_order: BTreeSet::new(),
            to_wake: BTreeSet::new(),
            // The caps of a plan that was made before the start may be lower.
            plan_is_outdated: true,
            raises_pending: false,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.states.len()
    }

    pub(super) fn contains(&self, node: &NodeId) -> bool {
        self.states.contains_key(node)
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = &NodeId> {
        self.states.keys()
    }

    fn state_mut(&mut self, node: &NodeId) -> &mut NodeState {
        self.states.entry(node.clone()).or_default()
    }

    /// The last report of the node's launcher.
    pub(super) fn launch_report(&self, node: &NodeId) -> Option<&LaunchReport> {
        self.states.get(node)?.launch.as_ref().map(|(report, _)| report)
    }

    /// The last reports of all launchers.
    pub(super) fn launch_reports(&self) -> impl Iterator<Item = &LaunchReport> {
        self.states.values().filter_map(|state| state.launch.as_ref()).map(|(report, _)| report)
    }

    /// The nodes whose faults keep them from starting jobs, with the first cause; `None` if there is none.
    pub(super) fn faults(&self) -> Option<String> {
        let faulty = self.states.iter().filter_map(|(id, state)| Some((id, state.fault()?)));
        let faulty: Vec<(&NodeId, &NodeFault)> = faulty.collect();
        let (first, fault) = faulty.first()?;
        Some(match faulty.len() - 1 {
            0 => format!("{first} cannot start jobs: {}", fault.error),
            others => {
                format!(
                    "{first} and {others} more cannot start jobs ({}; wattle nodes)",
                    fault.error
                )
            }
        })
    }

    /// The last reports of all power agents.
    pub(super) fn power_reports(&self) -> impl Iterator<Item = (&NodeId, &PowerReport)> {
        self.states.iter().filter_map(|(id, state)| Some((id, &state.power.as_ref()?.0)))
    }

    /// The last report of the node's power agent, if it has reported recently.
    pub(super) fn fresh_power_report(&self, now: Timestamp, node: &NodeId) -> Option<&PowerReport> {
        let (report, at) = self.states.get(node)?.power.as_ref()?;
        (now.since(*at) <= self.config.node_stale_after()).then_some(report)
    }

    /// Writes the order of a node at the end of the event, if it differs.
    pub(super) fn order(&mut self, node: &NodeId) {
        self.to_order.insert(node.clone());
    }

    /// Writes the orders of all nodes at the end of the event, if they differ.
    pub(super) fn order_all(&mut self) {
        self.to_order.extend(self.states.keys().cloned());
    }

    /// Whether the order of any node is of a power limit.
    pub(super) fn is_power_limited(&self) -> bool {
        let mut orders = self.states.values().filter_map(|state| state.desired.as_ref());
        orders.any(|order| order.power_limited)
    }

    /// The power that counts for a node has changed: no cap rises before the next plan.
    pub(super) const fn outdate_plan(&mut self) {
        self.plan_is_outdated = true;
    }

    /// A plan was made with the power that counts for each node now.
    pub(super) const fn planned(&mut self) {
        self.plan_is_outdated = false;
    }

    /// Whether both of the node's services have reported recently.
    pub(super) fn is_fresh(&self, now: Timestamp, node: &NodeId) -> bool {
        let Some(state) = self.states.get(node) else { return false };
        let patience = self.config.node_stale_after();
        let power = state.power.as_ref().is_some_and(|(_, at)| now.since(*at) <= patience);
        power && state.launch.as_ref().is_some_and(|(_, at)| now.since(*at) <= patience)
    }

    /// Whether the node's launcher has been silent for longer than `node_lost_after_ms`.
    pub(super) fn is_lost(&self, now: Timestamp, node: &NodeId) -> bool {
        let report = self.states.get(node).and_then(|state| state.launch.as_ref());
        // The site's scheduler judges its nodes, and its jobs run on while its service is away.
        if report.is_some_and(|(report, _)| report.site.is_some()) {
            return false;
        }
        let last_report =
            report.map_or(self.reports_valid_from, |(_, at)| (*at).max(self.reports_valid_from));
        now.since(last_report) > self.config.node_lost_after()
    }

    /// How long a launcher may be silent before its node's jobs are queued again.
    pub(super) fn lost_after(&self) -> Duration {
        self.config.node_lost_after()
    }

    /// The bus is connected again: heartbeats missing until now do not count as silence.
    pub(super) fn bus_returned(&mut self, now: Timestamp) {
        self.reports_valid_from = self.reports_valid_from.max(now);
    }

    /// Restarts the silence of every node, if the placer itself was away: paused, or busy for longer than
    /// nodes may be silent. Reports that were sent meanwhile have not been received.
    pub(super) fn notice_absence(&mut self, now: Timestamp, outbox: &mut Outbox) {
        let away = now.since(self.active_at);
        self.active_at = self.active_at.max(now);
        if away <= self.config.absence_min() {
            return;
        }
        self.reports_valid_from = self.reports_valid_from.max(now);
        for state in self.states.values_mut() {
            let power = state.power.as_mut().map(|(_, at)| at);
            for at in power.into_iter().chain(state.launch.as_mut().map(|(_, at)| at)) {
                *at = *at + away;
            }
        }
        outbox.alarm(format!(
            "the placer was paused or blocked for {} s; no node counts as silent for that time",
            away.as_secs()
        ));
    }

    /// Whether no GPU of the job on this node is reported as failed. GPUs that only get no new jobs answer.
    pub(super) fn gpus_answer(&self, node: &NodeId, gpus: &[u32]) -> bool {
        let Some((power, _)) = self.states.get(node).and_then(|state| state.power.as_ref()) else {
            return true;
        };
        !power.gpus.iter().any(|gpu| !gpu.healthy && gpus.contains(&gpu.gpu))
    }

    /// Whether every node of the cluster has reported.
    pub(super) fn inventory_complete(&self, now: Timestamp, state: &ClusterState) -> bool {
        let known = state.nodes().len();
        match self.config.nodes_expected {
            Some(expected) => known >= expected as usize,
            None => known > 0 && now.since(self.started_at) >= self.config.node_stale_after(),
        }
    }

    /// Withholds the orders of all nodes until they are compared with the store.
    pub(super) fn await_comparison_of_all(&mut self) {
        self.states.values_mut().for_each(|state| state.awaits_comparison = true);
    }

    /// Withholds the orders of a node until it is compared with the store.
    pub(super) fn await_comparison(&mut self, node: &NodeId) {
        self.state_mut(node).awaits_comparison = true;
    }

    /// Whether the node gets no order until it is compared with the store.
    pub(super) fn awaits_comparison(&self, node: &NodeId) -> bool {
        self.states.get(node).is_some_and(|state| state.awaits_comparison)
    }

    /// Whether the node is asleep, or changes to or from it.
    pub(super) fn sleeps(&self, node: &NodeId) -> bool {
        let sleep = self.states.get(node).and_then(|state| state.sleep);
        sleep.is_some_and(|sleep| sleep.state != SleepState::WakeFailed)
    }

    /// The nodes that wait for the comparison with the store.
    pub(super) fn awaiting_comparison(&self) -> impl Iterator<Item = &NodeId> {
        self.states.iter().filter(|(_, state)| state.awaits_comparison).map(|(id, _)| id)
    }

    /// Whether a report since the placer's start was compared with the store.
    pub(super) fn is_compared(&self, node: &NodeId) -> bool {
        self.states.get(node).is_some_and(|state| state.is_compared)
    }

    /// A report since the placer's start is compared with the store.
    pub(super) fn note_comparison(&mut self, node: &NodeId) {
        self.state_mut(node).is_compared = true;
    }

    /// Lets a node have orders after the comparison with the store.
    pub(super) fn end_comparison(&mut self, node: &NodeId) {
        self.state_mut(node).awaits_comparison = false;
        self.order(node);
    }

    /// The generation of the node's order in force; 0: none.
    pub(super) fn ordered_generation(&self, node: &NodeId) -> u64 {
        let desired = self.states.get(node).and_then(|state| state.desired.as_ref());
        desired.map_or(0, |desired| desired.generation)
    }

    /// The nodes by whether they accept jobs, cannot start them, are silent or asleep.
    pub(super) fn counts(&self, now: Timestamp) -> NodeCounts {
        let mut counts = NodeCounts::default();
        for (node, state) in &self.states {
            let count = match state.sleep.map(|sleep| sleep.state) {
                Some(SleepState::EnteringSleep | SleepState::Asleep) => &mut counts.asleep,
                Some(SleepState::Waking) => &mut counts.waking,
                None if state.is_asleep_at_site() => match state.wakefulness() {
                    Wakefulness::Asleep => &mut counts.asleep,
                    Wakefulness::Awake | Wakefulness::Waking => &mut counts.waking,
                },
                None | Some(SleepState::WakeFailed) if self.is_fresh(now, node) => {
                    if state.fault().is_some() { &mut counts.faulty } else { &mut counts.ready }
                }
                None | Some(SleepState::WakeFailed) => &mut counts.silent,
            };
            *count += 1;
        }
        counts
    }
}
