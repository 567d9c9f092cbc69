//! The reports of a node, collected from the buckets and its profiler.

use std::collections::BTreeMap;

use serde::Serialize;
use wattle_common::messages::{
    AppliedGpu, GpuConditionKind, GpuSummary, LaunchReport, LaunchState, NodeDesired, NodeFault,
    NodeSleep, NodeSummary, PowerReport, SleepState,
};
use wattle_common::subject::Reporter;
use wattle_common::{JobId, NodeId, Power, codec};

use crate::Summaries;

/// The states of a GPU ([`Node::state`]): by its condition or a fault of its node, then those of a node that is not
/// awake.
pub const STATES: [&str; 16] = [
    "ok",
    "lost",
    "fault",
    "driver",
    "returns",
    "ECC",
    "repair",
    "memory",
    "MIG",
    "hot",
    "brake",
    "slowed",
    SleepState::EnteringSleep.label(),
    SleepState::Asleep.label(),
    SleepState::Waking.label(),
    SleepState::WakeFailed.label(),
];

/// The reports of a node.
#[derive(Clone, Debug, Serialize)]
pub struct Node {
    /// Its id.
    pub node: NodeId,
    /// The report of its power agent; absent before the first report.
    pub power: Option<PowerReport>,
    /// The report of its launcher; absent before the first report.
    pub launcher: Option<LaunchReport>,
    /// Its sleep state, by its order or by the site's scheduler; absent if it is awake.
    pub sleep: Option<NodeSleep>,
    /// Its sleep state by its order alone.
    #[serde(skip)]
    pub ordered_sleep: Option<NodeSleep>,
    /// The last summary of its profiler; absent without an answer.
    pub summary: Option<NodeSummary>,
}

impl Node {
    /// A node without reports.
    pub const fn new(node: NodeId) -> Self {
        Self { node, power: None, launcher: None, sleep: None, ordered_sleep: None, summary: None }
    }

    fn update_sleep(&mut self) {
        let report = self.launcher.as_ref();
        let report = report.filter(|report| report.site.as_ref().is_some_and(|site| site.asleep));
        let at_site = report.map(|report| NodeSleep {
            state: SleepState::Asleep,
            since_us: self.sleep.map_or(report.at_us, |sleep| sleep.since_us),
        });
        self.sleep = self.ordered_sleep.or(at_site);
    }

    /// The last reading of a GPU; a sleeping node has none.
    #[must_use]
    pub fn reading(&self, gpu: u32) -> Option<&GpuSummary> {
        let summary = self.summary.as_ref().filter(|_| self.sleep.is_none())?;
        summary.gpus.iter().find(|known| known.gpu == gpu)
    }

    /// The GPUs with their last readings.
    pub fn gpus(&self) -> impl Iterator<Item = (&AppliedGpu, Option<&GpuSummary>)> {
        let gpus = self.power.iter().flat_map(|report| &report.gpus);
        gpus.map(|gpu| (gpu, self.reading(gpu.gpu)))
    }

    /// The jobs that run on a GPU of the node.
    pub fn jobs_on(&self, gpu: u32) -> Vec<&JobId> {
        let jobs = self.launcher.iter().flat_map(|report| &report.jobs);
        jobs.filter(|job| matches!(job.state, LaunchState::Running | LaunchState::Stopping))
            .filter(|job| job.gpus.contains(&gpu))
            .map(|job| &job.job)
            .collect()
    }

    /// The configured power of the host of a node that is awake.
    pub fn host_power(&self) -> Option<Power> {
        self.summary.as_ref().filter(|_| self.sleep.is_none())?.power_mw_host
    }

    /// The state of a GPU in one or two words.
    pub fn state(&self, gpu: &AppliedGpu) -> &'static str {
        match (self.sleep, condition(gpu)) {
            (Some(sleep), _) => sleep.state.label(),
            (None, "ok") if self.fault().is_some() => "fault",
            (None, condition) => condition,
        }
    }

    /// Whether new jobs may be placed on a GPU of the node.
    #[must_use]
    pub fn accepts_jobs(&self, gpu: &AppliedGpu) -> bool {
        gpu.accepts_jobs() && self.fault().is_none()
    }

    /// The fault that keeps the node from starting jobs.
    #[must_use]
    pub fn fault(&self) -> Option<&NodeFault> {
        self.launcher.as_ref().and_then(|report| report.fault.as_ref())
    }
}

/// Applies a change of the bucket `actual`.
pub fn reported(
    nodes: &mut BTreeMap<NodeId, Node>,
    key: &str,
    value: Option<&[u8]>,
) -> Result<(), String> {
    let (Some((reporter, node)), Some(value)) = (Reporter::parse(key), value) else {
        return Ok(());
    };
    let known = nodes.entry(node.clone()).or_insert_with(|| Node::new(node));
    let read = match reporter {
        Reporter::Power => codec::decode_json(value).map(|r| known.power = Some(r)),
        Reporter::Launcher => codec::decode_json(value).map(|r| known.launcher = Some(r)),
    };
    known.update_sleep();
    read.map_err(|error| format!("the report {key} cannot be read: {error}"))
}

/// Applies a change of the bucket `desired`.
pub fn desired(
    nodes: &mut BTreeMap<NodeId, Node>,
    key: &str,
    value: Option<&[u8]>,
) -> Result<(), String> {
    let known = NodeId::new(key).ok().and_then(|node| nodes.get_mut(&node));
    let (Some(known), Some(value)) = (known, value) else { return Ok(()) };
    let order: NodeDesired = codec::decode_json(value)
        .map_err(|error| format!("the desired state of {key} cannot be read: {error}"))?;
    known.ordered_sleep = order.sleep;
    known.update_sleep();
    Ok(())
}

/// Adds the summaries to their nodes.
pub fn summarize(nodes: &mut [Node], mut summaries: Summaries) {
    for node in nodes {
        node.summary = summaries.remove(&node.node);
    }
}

/// The cap that a GPU had when it was read; without a reading, that of the power agent's report. Power is
/// compared with it, because the report may be of another instant than the reading.
#[must_use]
pub fn cap_when_read(gpu: &AppliedGpu, reading: Option<&GpuSummary>) -> Option<Power> {
    reading.and_then(|reading| reading.cap_mw).or(gpu.cap_mw)
}

/// The state of a GPU whose node is awake, by its most severe condition.
#[must_use]
pub fn condition(gpu: &AppliedGpu) -> &'static str {
    let health = gpu.health.iter().flat_map(|health| &health.conditions);
    let words = health.filter_map(|condition| word(condition.condition, gpu.healthy)).next();
    words.unwrap_or(if gpu.healthy { "ok" } else { "lost" })
}

/// At most eight characters, so that the table fits 80 columns; `None`: not a state of its own.
const fn word(condition: GpuConditionKind, responds: bool) -> Option<&'static str> {
    match condition {
        GpuConditionKind::DriverFailed | GpuConditionKind::Lost if responds => Some("returns"),
        GpuConditionKind::DriverFailed => Some("driver"),
        GpuConditionKind::Lost => Some("lost"),
        GpuConditionKind::MemoryRepairFailed => Some("memory"),
        GpuConditionKind::EccErrors => Some("ECC"),
        GpuConditionKind::MemoryRepairPending => Some("repair"),
        GpuConditionKind::MigEnabled => Some("MIG"),
        GpuConditionKind::ThermalSlowdown => Some("hot"),
        GpuConditionKind::PowerBrake => Some("brake"),
        GpuConditionKind::HardwareSlowdown => Some("slowed"),
        GpuConditionKind::PersistenceOff | GpuConditionKind::Other => None,
    }
}

#[cfg(test)]
mod tests {
    use wattle_common::Timestamp;
    use wattle_common::messages::SiteNode;
    use wattle_testkit as testkit;

    use super::*;

    #[test]
    fn every_state_has_a_name_of_its_own() {
        let words = GpuConditionKind::ALL
            .iter()
            .flat_map(|kind| [word(*kind, true), word(*kind, false)])
            .flatten();
        for state in words.chain(["ok", "lost", "fault"]) {
            assert!(STATES.contains(&state), "{state}");
        }
        let unique: std::collections::BTreeSet<_> = STATES.iter().collect();
        assert_eq!(unique.len(), STATES.len());
    }

    #[test]
    fn a_node_that_the_site_has_switched_off_is_asleep() {
        let id = testkit::node("n0");
        let mut nodes = BTreeMap::new();
        let mut report = testkit::launch_report("n0", Timestamp::from_s(20), 3, []);
        let mut state = |asleep, at| {
            report.at_us = Timestamp::from_s(at);
            report.site = Some(SiteNode {
                unavailable: None,
                asleep,
                partitions: Vec::new(),
                cpus: 8,
                memory_mib: 1_000,
                gpus_taken: Vec::new(),
            });
            let value = codec::encode_json(&report);
            let key = Reporter::Launcher.key(&id);
            reported(&mut nodes, &key, Some(&value)).expect("readable");
            nodes[&id].sleep
        };
        let asleep = NodeSleep { state: SleepState::Asleep, since_us: Timestamp::from_s(20) };
        assert_eq!(state(true, 20), Some(asleep));
        assert_eq!(state(true, 30), Some(asleep));
        assert_eq!(state(false, 40), None);
    }
}
