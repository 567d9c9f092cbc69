//! One job of a simulation: how much it has to do, how much is done, how fast it goes.

use wattle_common::Timestamp;
use wattle_placer::{GpuSet, JobKey, Progress};
use wattle_world::Workload;

use crate::cards::Part;
use crate::prediction_error::Stretch;
use crate::scenario::SimJob;
use crate::simulation::Lengths;

/// One job on its way. Work is counted in microseconds alone at its first placement.
pub(super) struct Running<'s> {
    pub(super) spec: &'s SimJob,
    pub(super) workload: &'s Workload,
    pub(super) workload_index: u32,
    pub(super) key: Option<JobKey>,
    pub(super) on: Option<GpuSet>,
    /// Known once it has started.
    pub(super) work_us: f64,
    /// Steps in a microsecond of work.
    pub(super) steps_per_us: f64,
    /// How fast its placement is alone, relative to its first one.
    pub(super) base: f64,
    pub(super) done_us: f64,
    /// Work done in a microsecond.
    pub(super) rate: f64,
    /// When `done_us` was true.
    pub(super) at_us: u64,
    /// Until when it makes no progress, since it is being started anew.
    pub(super) resume_us: u64,
    /// The GPUs it was stopped on, where it was.
    pub(super) stopped_on: Option<u32>,
    /// Counts its configurations; an event of an older one is void.
    pub(super) version: u32,
    pub(super) configured_us: u64,
    pub(super) window_from_us: u64,
    pub(super) windows: usize,
    pub(super) started_us: u64,
    pub(super) ran_us: u64,
    pub(super) attempts: u32,
    /// Windows its class had when its prior was last asked for.
    pub(super) prior_of: Option<u32>,
    /// The stretch it is on, where its policy reads surfaces.
    pub(super) stretch: Option<OnStretch>,
}

/// A stretch that has begun: see [`crate::prediction_error`].
pub(super) struct OnStretch {
    pub(super) since_us: u64,
    /// Counts placements, so that a stretch does not outlast one.
    pub(super) attempt: u32,
    pub(super) parts: Vec<Part>,
    pub(super) compared: Stretch,
}

impl Running<'_> {
    pub(super) fn catch_up(&mut self, now_us: u64) {
        let from_us = self.at_us.max(self.resume_us);
        self.done_us += now_us.saturating_sub(from_us) as f64 * self.rate;
        self.at_us = now_us;
    }

    /// When it will have done so much work, at its present rate.
    pub(super) fn will_have_done(&self, work_us: f64) -> u64 {
        let left_us = (work_us - self.done_us).max(0.0) / self.rate;
        self.at_us.max(self.resume_us).saturating_add(left_us.ceil() as u64)
    }

    /// Whole steps done. The small share makes up for the last bit of a sum.
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
                .are_told()
                .then_some((self.work_us * self.steps_per_us).ceil() as u64),
            epoch: u32::try_from(step / epoch).ok(),
            steps_per_epoch: Some(epoch),
            steps_per_s: Some(self.rate * self.steps_per_us * 1e6),
        }
    }
}
