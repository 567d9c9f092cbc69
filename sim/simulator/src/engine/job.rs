//! Simulated jobs: their work, progress and speed.

use std::ops::{Index, IndexMut};

use wattle_common::Timestamp;
use wattle_placer::{GpuSet, JobKey, Progress};
use wattle_world::Workload;

use crate::gpus::Part;
use crate::prediction_error::Segment;
use crate::scenario::SimJob;
use crate::simulation::Lengths;

/// A simulated job. The unit of work is one microsecond of exclusive use of its first placement.
pub(super) struct SimulatedJob<'s> {
    pub(super) spec: &'s SimJob,
    pub(super) workload: &'s Workload,
    pub(super) workload_index: u32,
    pub(super) key: Option<JobKey>,
    pub(super) on: Option<GpuSet>,
    /// Total work; known from the first start on.
    pub(super) work_us: f64,
    /// Steps per unit of work.
    pub(super) steps_per_us: f64,
    /// Speed of exclusive use of the current placement, relative to the first placement.
    pub(super) base: f64,
    /// Work done at `at_us`.
    pub(super) done_us: f64,
    /// Work per microsecond.
    pub(super) rate: f64,
    /// Time of the last update of `done_us`.
    pub(super) at_us: u64,
    /// End of the current restart; there is no progress before it.
    pub(super) resume_us: u64,
    /// Number of GPUs at the last stop, until the next start.
    pub(super) stopped_on: Option<u32>,
    /// Number of configurations; events of an older configuration are void.
    pub(super) version: u32,
    /// Start of the current configuration.
    pub(super) configured_us: u64,
    /// Start of the current window.
    pub(super) window_from_us: u64,
    /// Number of closed windows of the current configuration.
    pub(super) windows: usize,
    pub(super) started_us: u64,
    pub(super) ran_us: u64,
    pub(super) attempts: u32,
    pub(super) first_start_us: Option<u64>,
    pub(super) ended_us: Option<u64>,
    /// Number of GPUs of the last placement.
    pub(super) gpus: u32,
    /// Its share of the power of its GPUs above idle, mW, since `charged_us`.
    above_idle_mw: f64,
    charged_us: u64,
    /// Energy above idle up to `charged_us`, mW * microseconds.
    pub(super) above_idle_mw_us: f64,
    /// Number of its GPUs since `charged_us`, shared ones in part.
    gpus_held: f64,
    /// GPU time up to `charged_us`, shared GPUs in part, microseconds.
    pub(super) gpu_us: f64,
    /// Number of windows of its class at the last update of its prior.
    pub(super) prior_of: Option<u32>,
    /// Whether the predictor learns nothing from it ([`crate::sampled`]).
    pub(super) is_left_out: bool,
    /// The current segment, if the policy reads surfaces.
    pub(super) segment: Option<OpenSegment>,
}

/// A segment that has begun: see [`crate::prediction_error`].
pub(super) struct OpenSegment {
    pub(super) since_us: u64,
    /// The job's start; a segment ends with its placement.
    pub(super) attempt: u32,
    pub(super) parts: Vec<Part>,
    pub(super) compared: Segment,
}

impl<'s> SimulatedJob<'s> {
    pub(super) fn new(spec: &'s SimJob, workload: &'s Workload, workload_index: u32) -> Self {
        Self {
            spec,
            workload,
            workload_index,
            key: None,
            on: None,
            work_us: 0.0,
            steps_per_us: 0.0,
            base: 1.0,
            done_us: 0.0,
            rate: 0.0,
            at_us: 0,
            resume_us: 0,
            stopped_on: None,
            version: 0,
            configured_us: 0,
            window_from_us: 0,
            windows: 0,
            started_us: 0,
            ran_us: 0,
            attempts: 0,
            first_start_us: None,
            ended_us: None,
            gpus: 0,
            above_idle_mw: 0.0,
            charged_us: 0,
            above_idle_mw_us: 0.0,
            gpus_held: 0.0,
            gpu_us: 0.0,
            prior_of: None,
            is_left_out: false,
            segment: None,
        }
    }

    /// Whether the job runs in this configuration.
    pub(super) fn runs_in(&self, version: u32) -> bool {
        self.version == version && self.on.is_some()
    }

    /// Adds the energy above idle and the GPU time up to `now_us`; from then on the power is `above_idle_mw` and the
    /// number of GPUs `gpus_held`, of which a shared one counts in part.
    pub(super) fn charge(&mut self, now_us: u64, above_idle_mw: f64, gpus_held: f64) {
        let span_us = now_us.saturating_sub(self.charged_us) as f64;
        self.above_idle_mw_us += self.above_idle_mw * span_us;
        self.gpu_us += self.gpus_held * span_us;
        (self.charged_us, self.above_idle_mw, self.gpus_held) = (now_us, above_idle_mw, gpus_held);
    }

    /// Updates the work done.
    pub(super) fn catch_up(&mut self, now_us: u64) {
        let from_us = self.at_us.max(self.resume_us);
        self.done_us += now_us.saturating_sub(from_us) as f64 * self.rate;
        self.at_us = now_us;
    }

    /// Time at which this work will be done at the current rate.
    pub(super) fn completion_of(&self, work_us: f64) -> u64 {
        let left_us = (work_us - self.done_us).max(0.0) / self.rate;
        self.at_us.max(self.resume_us).saturating_add(left_us.ceil() as u64)
    }

    /// Number of completed steps. The small constant compensates for rounding.
    pub(super) fn step(&self) -> u64 {
        (self.done_us * self.steps_per_us + 1e-6) as u64
    }

    pub(super) fn steps_per_epoch(&self) -> u64 {
        self.spec.steps_per_epoch.unwrap_or(self.workload.steps_per_epoch).max(1)
    }

    pub(super) fn progress(&self, now: Timestamp, lengths: Lengths) -> Progress {
        let (step, epoch) = (self.step(), self.steps_per_epoch());
        Progress {
            at: now,
            step,
            steps_total: lengths
                .are_reported()
                .then_some((self.work_us * self.steps_per_us).ceil() as u64),
            epoch: u32::try_from(step / epoch).ok(),
            steps_per_epoch: Some(epoch),
            steps_per_s: Some(self.rate * self.steps_per_us * 1e6),
        }
    }
}

/// All jobs of the scenario, in its order.
pub(super) struct JobTable<'s> {
    jobs: Vec<SimulatedJob<'s>>,
    /// Index of the job by key.
    by_key: Vec<u32>,
}

impl<'s> JobTable<'s> {
    pub(super) fn new(jobs: Vec<SimulatedJob<'s>>) -> Self {
        Self { jobs, by_key: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.jobs.len()
    }

    /// The jobs in the order of submission.
    pub(super) fn by_submission(&self) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.jobs.len() as u32).collect();
        order.sort_by_key(|&job| self[job].spec.submit);
        order
    }

    /// Assigns the controller's key to a job.
    pub(super) fn assign(&mut self, job: u32, key: JobKey) {
        if self.by_key.len() <= key.index() {
            self.by_key.resize(key.index() + 1, u32::MAX);
        }
        self.by_key[key.index()] = job;
        self[job].key = Some(key);
    }

    /// The job with this key.
    pub(super) fn of(&self, key: JobKey) -> u32 {
        self.by_key[key.index()]
    }
}

impl<'s> Index<u32> for JobTable<'s> {
    type Output = SimulatedJob<'s>;

    fn index(&self, job: u32) -> &SimulatedJob<'s> {
        &self.jobs[job as usize]
    }
}

impl<'s> IndexMut<u32> for JobTable<'s> {
    fn index_mut(&mut self, job: u32) -> &mut SimulatedJob<'s> {
        &mut self.jobs[job as usize]
    }
}
