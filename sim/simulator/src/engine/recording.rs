//! Recording of a run: cluster levels over time, placements with their reasons, and node sleep.
//!
//! Levels are means over spans whose length doubles when their number reaches its limit, so the
//! recording's size is bounded. A recording does not influence decisions or totals.

use wattle_common::job::{GpuRequest, GpuSetting};
use wattle_common::{JobId, NodeId, WorkloadId};
use wattle_placer::{Decision, GpuSet, NodeDecision, Plan, Reason};

use crate::engine::{Engine, node_id};
use crate::gpus::Gpus;
use crate::outcome::us;
use crate::scenario::Scenario;

/// Maximum length of [`Recording::levels`].
const LEVELS_MAX: usize = 2_048;
/// Maximum number of recorded placements; later ones are counted only.
const PLACEMENTS_MAX: usize = 500_000;

/// Recording of a run. Times are in microseconds of the virtual clock.
#[derive(Clone, Debug, PartialEq)]
pub struct Recording {
    /// The first submission.
    pub from_us: u64,
    /// The last completion.
    pub until_us: u64,
    /// The nodes, in the order of the cluster.
    pub nodes: Vec<RecordedNode>,
    /// Means over consecutive spans, from `from_us` on.
    pub levels: Vec<Level>,
    /// Length of a span of the levels.
    pub level_us: u64,
    /// Every job, in the scenario's order.
    pub jobs: Vec<RecordedJob>,
    /// The intervals of node sleep.
    pub sleep_intervals: Vec<SleepInterval>,
    /// Number of placements and sleep intervals beyond the limits.
    pub left_out: usize,
}

/// A node.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedNode {
    /// Name of the node.
    pub id: NodeId,
    /// GPU type.
    pub gpu_type: String,
    /// Number of GPUs.
    pub gpus: u32,
}

/// The cluster's mean state over a span.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Level {
    /// Power of all nodes in watts.
    pub power_w: f64,
    /// Sum of GPU utilizations, each from 0 to 1.
    pub busy_gpus: f64,
    /// Number of awake nodes.
    pub awake_nodes: f64,
    /// Number of queued jobs.
    pub queued: f64,
}

/// A job.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedJob {
    /// Its id.
    pub id: JobId,
    /// Workload.
    pub workload: WorkloadId,
    /// Requested GPUs.
    pub request: GpuRequest,
    /// Submission.
    pub submit_us: u64,
    /// Completion.
    pub finished_us: Option<u64>,
    /// Deadline.
    pub deadline_us: Option<u64>,
    /// Last reason for waiting at the head of the queue.
    pub wait_reason: Option<Reason>,
    /// Reason of its rejection.
    pub rejected: Option<String>,
    /// Its placements in order.
    pub placements: Vec<RecordedPlacement>,
    /// Number of GPU setting changes while it ran.
    pub resets: u32,
}

/// A placement of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedPlacement {
    /// Start.
    pub from_us: u64,
    /// End.
    pub until_us: u64,
    /// The GPUs; node keys are indices into [`Recording::nodes`].
    pub on: GpuSet,
    /// GPU setting at the start.
    pub setting: GpuSetting,
    /// Reason of the placement.
    pub reason: Reason,
    /// Reason of the stop, unless the job completed.
    pub stopped: Option<Reason>,
}

/// An interval of node sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SleepInterval {
    /// Index into [`Recording::nodes`].
    pub node: usize,
    /// Start.
    pub from_us: u64,
    /// Time of the decision to wake the node.
    pub until_us: u64,
}

/// Builds a [`Recording`].
pub(super) struct Recorder {
    recording: Recording,
    placements: usize,
    /// Start of the current sleep of each node.
    asleep_since: Vec<Option<u64>>,
    /// Integrals over each span, in units of [`Level`] times microseconds.
    sums: Vec<Level>,
    /// End of the integrals, relative to the first submission.
    reach_us: u64,
}

impl Recorder {
    pub(super) fn new(scenario: &Scenario, from_us: u64) -> Self {
        let nodes: Vec<RecordedNode> = scenario
            .cluster
            .nodes()
            .enumerate()
            .map(|(i, (gpus, gpu_type))| RecordedNode {
                id: node_id(i),
                gpu_type: gpu_type.to_owned(),
                gpus,
            })
            .collect();
        let job = |spec: &crate::scenario::SimJob| RecordedJob {
            id: spec.id.clone(),
            workload: spec.workload.clone(),
            request: spec.gpus,
            submit_us: us(spec.submit),
            finished_us: None,
            deadline_us: spec.deadline.map(us),
            wait_reason: None,
            rejected: None,
            placements: Vec::new(),
            resets: 0,
        };
        Self {
            asleep_since: vec![None; nodes.len()],
            placements: 0,
            sums: Vec::new(),
            reach_us: 0,
            recording: Recording {
                from_us,
                until_us: from_us,
                nodes,
                levels: Vec::new(),
                level_us: 1_000_000,
                jobs: scenario.jobs.iter().map(job).collect(),
                sleep_intervals: Vec::new(),
                left_out: 0,
            },
        }
    }

    /// Adds an interval in which the levels were constant.
    fn add_interval(&mut self, from_us: u64, until_us: u64, gpus: &Gpus<'_>, queued: usize) {
        let level = Level {
            power_w: gpus.power_mw as f64 / 1e3,
            busy_gpus: gpus.utilization_ppm as f64 / 1e6,
            awake_nodes: gpus.nodes_awake as f64,
            queued: queued as f64,
        };
        let (mut at, until) = (from_us - self.recording.from_us, until_us - self.recording.from_us);
        while until.div_ceil(self.recording.level_us) > LEVELS_MAX as u64 {
            self.coarsen();
        }
        while at < until {
            let span = (at / self.recording.level_us) as usize;
            let end = until.min((span as u64 + 1) * self.recording.level_us);
            if self.sums.len() <= span {
                self.sums.resize(span + 1, Level::default());
            }
            self.sums[span].add(&level, (end - at) as f64);
            at = end;
        }
        self.reach_us = until;
    }

    /// Doubles the length of the spans.
    fn coarsen(&mut self) {
        let pairs = self.sums.chunks(2).map(|pair| {
            let mut sum = pair[0];
            if let Some(second) = pair.get(1) {
                sum.add(second, 1.0);
            }
            sum
        });
        self.sums = pairs.collect();
        self.recording.level_us *= 2;
    }

    /// Records why a job is rejected.
    pub(super) fn rejected(&mut self, job: u32, reason: String) {
        self.recording.jobs[job as usize].rejected = Some(reason);
    }

    fn started(&mut self, job: u32, placement: RecordedPlacement) {
        self.placements += 1;
        if self.placements > PLACEMENTS_MAX {
            self.recording.left_out += 1;
            return;
        }
        self.recording.jobs[job as usize].placements.push(placement);
    }

    /// Ends the job's placement.
    fn ended(&mut self, job: u32, now_us: u64, reason: Option<Reason>) {
        let last = self.recording.jobs[job as usize].placements.last_mut();
        // The current placement may be beyond the limit.
        if let Some(last) = last.filter(|last| last.until_us == u64::MAX) {
            (last.until_us, last.stopped) = (now_us, reason);
        }
    }

    fn woke(&mut self, node: usize, now_us: u64) {
        let Some(from_us) = self.asleep_since[node].take() else { return };
        if self.recording.sleep_intervals.len() < PLACEMENTS_MAX {
            self.recording.sleep_intervals.push(SleepInterval { node, from_us, until_us: now_us });
        } else {
            self.recording.left_out += 1;
        }
    }

    /// The recording up to `until_us`, the last completion.
    pub(super) fn into_recording(mut self, until_us: u64) -> Recording {
        for node in 0..self.asleep_since.len() {
            self.woke(node, until_us);
        }
        let mut recording = self.recording;
        recording.until_us = until_us;
        for placement in recording.jobs.iter_mut().flat_map(|job| &mut job.placements) {
            placement.until_us = placement.until_us.min(until_us);
        }
        recording.sleep_intervals.retain(|interval| interval.from_us < until_us);
        for interval in &mut recording.sleep_intervals {
            interval.until_us = interval.until_us.min(until_us);
        }
        recording.sleep_intervals.sort_by_key(|interval| (interval.node, interval.from_us));
        let spans = (until_us - recording.from_us).div_ceil(recording.level_us) as usize;
        let mean = |(span, sum): (u64, &Level)| {
            // The last span may be partial.
            let end = self.reach_us.min((span + 1) * recording.level_us);
            sum.over(end.saturating_sub(span * recording.level_us).max(1) as f64)
        };
        recording.levels = (0..).zip(&self.sums).take(spans).map(mean).collect();
        recording
    }
}

impl Level {
    fn add(&mut self, other: &Self, times: f64) {
        self.power_w += other.power_w * times;
        self.busy_gpus += other.busy_gpus * times;
        self.awake_nodes += other.awake_nodes * times;
        self.queued += other.queued * times;
    }

    fn over(&self, span: f64) -> Self {
        let mut mean = Self::default();
        mean.add(self, 1.0 / span);
        mean
    }
}

impl Engine<'_> {
    /// Records the levels up to `now_us`.
    pub(super) fn record_levels(&mut self, now_us: u64) {
        if let Some(recorder) = &mut self.recorder {
            recorder.add_interval(
                self.now_us,
                now_us,
                &self.hardware.gpus,
                self.controller.state().queue_len(),
            );
        }
    }

    /// Records a plan. To be called before the plan is applied, while all its keys are valid.
    pub(super) fn record_plan(&mut self, plan: &Plan) {
        let Some(recorder) = &mut self.recorder else { return };
        let now_us = self.now_us;
        for decision in &plan.decisions {
            let job = self.jobs.of(decision.job());
            match decision {
                Decision::Start { on, setting, reason, .. } => {
                    let (on, setting, reason) = (on.clone(), *setting, reason.clone());
                    let (from_us, until_us, stopped) = (now_us, u64::MAX, None);
                    recorder.started(
                        job,
                        RecordedPlacement { from_us, until_us, on, setting, reason, stopped },
                    );
                }
                Decision::Stop { reason, .. } | Decision::Undo { reason, .. } => {
                    recorder.ended(job, now_us, Some(reason.clone()));
                }
                Decision::Set { .. } => recorder.recording.jobs[job as usize].resets += 1,
                Decision::Confirm { .. } | Decision::Reject { .. } => {}
            }
        }
        for decision in &plan.nodes {
            let node = decision.node().index();
            match decision {
                NodeDecision::Sleep { .. } => recorder.asleep_since[node] = Some(now_us),
                NodeDecision::Wake { .. } => recorder.woke(node, now_us),
            }
        }
    }

    /// Records the first blocked job of a plan.
    pub(super) fn record_blocked(&mut self, plan: &Plan) {
        let Some(recorder) = &mut self.recorder else { return };
        if let Some(blocked) = &plan.blocked {
            let job = self.jobs.of(blocked.job);
            recorder.recording.jobs[job as usize].wait_reason = Some(blocked.reason.clone());
        }
    }

    /// Records a completion.
    pub(super) fn record_completion(&mut self, job: u32) {
        if let Some(recorder) = &mut self.recorder {
            recorder.ended(job, self.now_us, None);
            recorder.recording.jobs[job as usize].finished_us = Some(self.now_us);
        }
    }
}
