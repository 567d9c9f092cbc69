//! A simulated node: its running jobs, its sleep state and its reports. It follows orders as the agents of
//! a real node do and makes no decisions.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use wattle_common::messages::{
    AppliedGpu, DesiredJob, GpuCondition, GpuConditionKind, GpuHealth, LaunchReport, LaunchState,
    LaunchedJob, NodeDesired, NodeFault, NodeFaultKind, PowerReport, SiteNode, SleepResult,
    SleepState,
};
use wattle_common::{AdmissionId, Frequency, GpuIndex, JobId, NodeId, Power, Timestamp};

/// A run's job, submission and attempt.
pub(super) type RunKey = (JobId, Option<AdmissionId>, u32);

pub(super) struct Node {
    pub(super) id: NodeId,
    pub(super) gpu_type: &'static str,
    /// Its leaf switch, and the number of GPUs per board.
    pub(super) place: (Option<&'static str>, Option<u32>),
    pub(super) gpus: u32,
    /// The process of its services, and how far its clock is behind.
    pub(super) instance: u32,
    pub(super) behind: Duration,
    pub(super) unhealthy: BTreeSet<GpuIndex>,
    /// GPUs with a condition.
    pub(super) conditions: BTreeMap<GpuIndex, GpuConditionKind>,
    /// GPUs that have never been read.
    pub(super) unread: BTreeSet<GpuIndex>,
    pub(super) cut_off: bool,
    /// Whether it can start no jobs, and the fault that its launcher has noticed.
    pub(super) is_broken: bool,
    pub(super) fault: Option<NodeFault>,
    /// Whether it is reachable again and has not read its orders yet.
    pub(super) reconnected: bool,
    /// Error with which it refuses caps.
    pub(super) refuses: Option<String>,
    /// Limit of the sum of its caps.
    pub(super) limit: Option<Power>,
    /// Whether its agent sets no caps.
    pub(super) advises: bool,
    /// GPUs that support no cap.
    pub(super) without_cap: BTreeSet<GpuIndex>,
    /// The node in the site's scheduler. Runs that no order names continue there.
    pub(super) site: Option<SiteNode>,
    pub(super) seen: Option<NodeDesired>,
    /// Whether the store has an older order than `seen`.
    pub(super) reads_older_order: bool,
    /// Whether ends that no order names are reported.
    pub(super) keeps_ends: bool,
    pub(super) runs: BTreeMap<RunKey, LaunchedJob>,
    pub(super) sleep: SimulatedSleep,
}

/// Sleep state of a simulated node.
#[derive(Default)]
pub(super) struct SimulatedSleep {
    /// Whether the node can sleep.
    pub(super) can: bool,
    /// Whether the node is asleep.
    pub(super) asleep: bool,
    /// End of the current wake-up.
    pub(super) wakes_at: Option<Timestamp>,
    /// Whether wake commands are lost.
    pub(super) ignores_orders: bool,
    /// Error of the sleep command, if it fails.
    pub(super) fails: Option<String>,
    /// Result of the last sleep order.
    pub(super) answer: Option<SleepResult>,
    /// Last reports before it slept or was cut off.
    pub(super) last: Option<(PowerReport, LaunchReport)>,
}

impl Node {
    pub(super) fn is_silent(&self) -> bool {
        self.cut_off || self.sleep.asleep
    }

    /// The state of a start that a fault of the node prevents, as its launcher reports it.
    pub(super) fn prevent(&mut self, now: Timestamp) -> LaunchState {
        let (kind, error) = (NodeFaultKind::Disk, "no space left on device".to_owned());
        let since_us = self.fault.as_ref().map_or(now, |fault| fault.since_us);
        self.fault = Some(NodeFault { kind, error: error.clone(), since_us });
        LaunchState::Refused { error, node_fault: Some(kind) }
    }

    /// The node's reports in the bucket `actual`.
    pub(super) fn reports(&self, now: Timestamp) -> (PowerReport, LaunchReport) {
        let last = self.sleep.last.clone().filter(|_| self.is_silent());
        last.unwrap_or_else(|| (self.power(now), self.launch(now)))
    }

    /// Carries out a sleep order, each order once, as a power agent does.
    pub(super) fn fall_asleep(&mut self, desired: &NodeDesired) {
        let Some(sleep) = desired.sleep.filter(|s| s.state == SleepState::EnteringSleep) else {
            return;
        };
        let requested_at_us = sleep.since_us;
        if self
            .sleep
            .answer
            .as_ref()
            .is_some_and(|answer| answer.requested_at_us >= requested_at_us)
        {
            return;
        }
        assert!(!self.runs.values().any(is_live), "{} is put to sleep with a running job", self.id);
        let error = self.sleep.fails.clone();
        self.sleep.asleep = error.is_none();
        self.sleep.answer = Some(SleepResult { requested_at_us, error });
    }

    pub(super) fn power(&self, now: Timestamp) -> PowerReport {
        PowerReport {
            instance: format!("process {}", self.instance),
            node: self.id.clone(),
            at_us: now - self.behind,
            observed_generation: self.seen.as_ref().map_or(0, |seen| seen.generation),
            lease_until_us: None,
            gpus: (0..self.gpus).map(|gpu| self.gpu(gpu)).collect(),
            can_sleep: self.sleep.can,
            sleep_result: self.sleep.answer.clone(),
            switch: self.place.0.map(|switch| switch.parse().unwrap()),
            gpus_per_board: self.place.1,
            node_limit_mw: self.limit,
            advise_only: self.advises,
            driver_error: None,
            read_at_us: None,
        }
    }

    fn health(&self, gpu: GpuIndex) -> Option<GpuHealth> {
        let condition = *self.conditions.get(&gpu)?;
        let since_us = Timestamp::from_s(1);
        Some(GpuHealth {
            no_new_jobs: condition.keeps_jobs_away(),
            conditions: vec![GpuCondition { condition, since_us, detail: None }],
            ..GpuHealth::default()
        })
    }

    fn gpu(&self, gpu: GpuIndex) -> AppliedGpu {
        let default = Power::from_w(250);
        let ordered = self.seen.iter().flat_map(|seen| &seen.gpus).find(|known| known.gpu == gpu);
        let cap_unsupported = self.without_cap.contains(&gpu);
        let sets = self.refuses.is_none() && !self.advises && !cap_unsupported;
        let cap = ordered.filter(|_| sets).and_then(|gpu| gpu.cap_mw);
        let applied = AppliedGpu {
            gpu,
            uuid: format!("GPU-{gpu}"),
            gpu_type: self.gpu_type.to_owned(),
            memory_mib: Some(32_768),
            healthy: !self.unhealthy.contains(&gpu),
            cap_mw: Some(cap.unwrap_or(default)),
            cap_mw_default: Some(default),
            cap_mw_min: Some(Power::from_w(100)),
            cap_mw_max: None,
            clock_mhz_max: None,
            clock_mhz_supported_min: Some(Frequency::from_mhz(135)),
            clock_mhz_supported_max: Some(Frequency::from_mhz(1_380)),
            cap_mw_advised: ordered.filter(|_| self.advises).and_then(|gpu| gpu.cap_mw),
            clock_mhz_max_advised: None,
            last_error: self.refuses.clone(),
            no_meter: false,
            cap_unsupported,
            clock_unsupported: false,
            health: self.health(gpu),
        };
        if !self.unread.contains(&gpu) {
            return applied;
        }
        let (uuid, gpu_type) = (String::new(), String::new());
        AppliedGpu { uuid, gpu_type, memory_mib: None, healthy: false, last_error: None, ..applied }
    }

    pub(super) fn launch(&self, now: Timestamp) -> LaunchReport {
        let named = |run: &LaunchedJob| {
            let mut jobs = self.seen.iter().flat_map(|seen| &seen.jobs);
            let of = |job: &DesiredJob| (job.job == run.job) && (job.admission == run.admission);
            jobs.any(|job| of(job) && job.attempt == run.attempt)
        };
        LaunchReport {
            instance: format!("process {}", self.instance),
            node: self.id.clone(),
            at_us: now - self.behind,
            observed_generation: self.seen.as_ref().map_or(0, |seen| seen.generation),
            jobs: self
                .runs
                .values()
                .filter(|run| {
                    is_live(run) || named(run) || self.reads_older_order || self.keeps_ends
                })
                .cloned()
                .collect(),
            has_ended: self.reads_older_order,
            fault: self.fault.clone(),
            site: self.site.clone(),
        }
    }
}

pub(super) fn is_live(run: &LaunchedJob) -> bool {
    matches!(run.state, LaunchState::Running | LaunchState::Stopping)
}
