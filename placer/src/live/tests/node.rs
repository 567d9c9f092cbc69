//! A node of the small cluster: what it runs, how it sleeps, what it says of itself. It does as the
//! agents of a real one do, and decides nothing.

use std::collections::{BTreeMap, BTreeSet};

use wattle_common::messages::{
    AppliedGpu, LaunchReport, LaunchState, LaunchedJob, NodeDesired, PowerReport, SleepResult,
    SleepState,
};
use wattle_common::{Frequency, GpuIndex, JobId, NodeId, Power, Timestamp};

pub(super) struct Node {
    pub(super) id: NodeId,
    pub(super) kind: &'static str,
    /// The leaf switch it is below, and GPUs on each of its boards.
    pub(super) place: (Option<&'static str>, Option<u32>),
    pub(super) gpus: u32,
    pub(super) sick: BTreeSet<GpuIndex>,
    /// Cards of which nothing could ever be read.
    pub(super) unread: BTreeSet<GpuIndex>,
    pub(super) cut_off: bool,
    /// It has been reached again and has not looked at its orders yet.
    pub(super) returned: bool,
    /// Why it carries out no cap.
    pub(super) refuses: Option<String>,
    pub(super) seen: Option<NodeDesired>,
    pub(super) runs: BTreeMap<(JobId, u32), LaunchedJob>,
    pub(super) nap: Nap,
}

/// How a node sleeps.
#[derive(Default)]
pub(super) struct Nap {
    /// Whether it can.
    pub(super) can: bool,
    /// Whether it sleeps.
    pub(super) asleep: bool,
    /// When it will have woken.
    pub(super) wakes_at: Option<Timestamp>,
    /// Whether wake commands reach it.
    pub(super) deaf: bool,
    /// Why its sleep command fails.
    pub(super) fails: Option<String>,
    /// What became of the last order to sleep.
    pub(super) answer: Option<SleepResult>,
    /// What it said last before it slept.
    pub(super) last: Option<(PowerReport, LaunchReport)>,
}

impl Node {
    pub(super) fn is_silent(&self) -> bool {
        self.cut_off || self.nap.asleep
    }

    /// What lies of it in the bucket `actual`.
    pub(super) fn said(&self, now: Timestamp) -> (PowerReport, LaunchReport) {
        let last = self.nap.last.clone().filter(|_| self.nap.asleep);
        last.unwrap_or_else(|| (self.power(now), self.launch(now)))
    }

    /// As a power agent does: each order once.
    pub(super) fn fall_asleep(&mut self, desired: &NodeDesired) {
        let Some(sleep) = desired.sleep.filter(|s| s.state == SleepState::EnteringSleep) else {
            return;
        };
        let requested_at_us = sleep.since_us;
        if self.nap.answer.as_ref().is_some_and(|answer| answer.requested_at_us >= requested_at_us)
        {
            return;
        }
        assert!(!self.runs.values().any(is_live), "{} is sent to sleep under a job", self.id);
        let error = self.nap.fails.clone();
        self.nap.asleep = error.is_none();
        self.nap.answer = Some(SleepResult { requested_at_us, error });
    }

    pub(super) fn power(&self, now: Timestamp) -> PowerReport {
        PowerReport {
            node: self.id.clone(),
            at_us: now,
            observed_generation: self.seen.as_ref().map_or(0, |seen| seen.generation),
            lease_until_us: None,
            gpus: (0..self.gpus).map(|gpu| self.card(gpu)).collect(),
            can_sleep: self.nap.can,
            sleep_result: self.nap.answer.clone(),
            switch: self.place.0.map(|switch| switch.parse().unwrap()),
            gpus_per_board: self.place.1,
        }
    }

    fn card(&self, gpu: GpuIndex) -> AppliedGpu {
        let card = AppliedGpu {
            gpu,
            uuid: format!("GPU-{gpu}"),
            gpu_type: self.kind.to_owned(),
            memory_mib: 32_768,
            healthy: !self.sick.contains(&gpu),
            cap_mw: None,
            cap_mw_default: Some(Power::from_w(250)),
            cap_mw_min: Some(Power::from_w(100)),
            cap_mw_max: None,
            clock_mhz_max: None,
            clock_mhz_supported_min: Some(Frequency::from_mhz(135)),
            clock_mhz_supported_max: Some(Frequency::from_mhz(1_380)),
            last_error: self.refuses.clone(),
        };
        if !self.unread.contains(&gpu) {
            return card;
        }
        let (uuid, gpu_type) = (String::new(), String::new());
        AppliedGpu { uuid, gpu_type, memory_mib: 0, healthy: false, last_error: None, ..card }
    }

    pub(super) fn launch(&self, now: Timestamp) -> LaunchReport {
        let named = |run: &LaunchedJob| {
            let mut jobs = self.seen.iter().flat_map(|seen| &seen.jobs);
            jobs.any(|job| job.job == run.job && job.attempt == run.attempt)
        };
        LaunchReport {
            node: self.id.clone(),
            at_us: now,
            observed_generation: self.seen.as_ref().map_or(0, |seen| seen.generation),
            jobs: self.runs.values().filter(|run| is_live(run) || named(run)).cloned().collect(),
        }
    }
}

pub(super) fn is_live(run: &LaunchedJob) -> bool {
    matches!(run.state, LaunchState::Running | LaunchState::Stopping)
}
