//! An open window: the samples of one job under constant conditions.
//!
//! A window begins and ends at a sampling instant. Energy, steps and utilisation are all counted
//! between those two instants, so that they are consistent.

use std::time::Duration;

use wattle_common::id::ProjectId;
use wattle_common::messages::{JobWindow, Neighbour};
use wattle_common::units::Energy;
use wattle_common::{
    AdmissionId, Frequency, GpuIndex, JobId, NodeId, Power, Timestamp, WorkloadId,
};

use crate::period_detection::{Period, Sample, SampleSeries};
use crate::steps::StepMeter;

/// The placer's record of a job that is placed on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeclaredJob {
    /// Its submission; absent: an earlier version accepted it.
    pub(crate) admission: Option<AdmissionId>,
    pub(crate) workload: Option<WorkloadId>,
    pub(crate) user: Option<String>,
    pub(crate) project: Option<ProjectId>,
    /// Its GPUs on this node.
    pub(crate) gpus: Vec<GpuIndex>,
    pub(crate) gpus_total: u32,
    pub(crate) nodes_total: u32,
}

/// The conditions that are constant within a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Conditions {
    pub(crate) declared: DeclaredJob,
    /// The submission whose processes run.
    pub(crate) admission: Option<AdmissionId>,
    pub(crate) attempt: u32,
    /// The cap of each of its GPUs.
    pub(crate) caps: Vec<Option<Power>>,
    /// The clock lock of each of its GPUs.
    pub(crate) locks: Vec<Option<Frequency>>,
    pub(crate) neighbours: Vec<Neighbour>,
    /// Whether a process of no job is on a GPU.
    pub(crate) unknown_processes: bool,
}

impl Conditions {
    fn equal<T: Copy + PartialEq>(all: &[Option<T>]) -> Option<T> {
        let first = *all.first()?;
        first.filter(|_| all.iter().all(|one| *one == first))
    }

    /// The cap, if it is known and equal on all GPUs.
    pub(crate) fn cap(&self) -> Option<Power> {
        Self::equal(&self.caps)
    }

    /// The lock, if it is equal on all GPUs.
    pub(crate) fn lock(&self) -> Option<Frequency> {
        Self::equal(&self.locks)
    }
}

/// The mean of readings, some of which may be missing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mean {
    sum: u64,
    count: u64,
}

impl Mean {
    pub(crate) fn add(&mut self, value: Option<u64>) {
        if let Some(value) = value {
            self.sum += value;
            self.count += 1;
        }
    }

    pub(crate) fn get(self) -> Option<f64> {
        (self.count > 0).then(|| self.sum as f64 / self.count as f64)
    }

    pub(crate) fn rounded(self) -> Option<u64> {
        (self.count > 0).then(|| (self.sum + self.count / 2) / self.count)
    }
}

/// The job's part of one GPU's sample.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct JobGpuSample {
    pub(crate) power: Option<Power>,
    /// Power at the instant, where `power` may be a mean.
    pub(crate) power_instant: Option<Power>,
    /// Energy since the instant before, of all tenants.
    pub(crate) energy: Option<Energy>,
    /// The job's part of it.
    pub(crate) energy_job: Option<Energy>,
    pub(crate) busy: Option<u8>,
    pub(crate) busy_job: Option<u64>,
    pub(crate) memory_busy: Option<u8>,
    pub(crate) memory_mib_job: Option<u64>,
    pub(crate) clock: Option<Frequency>,
}

/// An open window.
#[derive(Clone, Debug)]
pub(crate) struct OpenWindow {
    pub(crate) conditions: Conditions,
    pub(crate) from: Timestamp,
    pub(crate) until: Timestamp,
    pub(crate) samples: u32,
    /// The job's reports up to `until`.
    pub(crate) meter: StepMeter,
    /// Sums of energy; `None` once a part is unknown.
    energy: Option<Energy>,
    energy_job: Option<Energy>,
    power: Mean,
    busy: Mean,
    busy_job: Mean,
    memory_busy: Mean,
    clock: Mean,
    memory_mib_max_job: Option<u64>,
    pub(crate) step: Option<u64>,
    pub(crate) epoch: Option<u32>,
    pub(crate) global_batch: Option<u32>,
    /// Samples for period detection, if the job reports no steps.
    series: SampleSeries,
}

impl OpenWindow {
    /// A window that begins at a sampling instant; `meter` holds the job's last report under the
    /// same conditions.
    pub(crate) fn new(now: Timestamp, conditions: Conditions, meter: StepMeter) -> Self {
        Self {
            conditions,
            from: now,
            until: now,
            samples: 0,
            meter,
            energy: Some(Energy::ZERO),
            energy_job: Some(Energy::ZERO),
            power: Mean::default(),
            busy: Mean::default(),
            busy_job: Mean::default(),
            memory_busy: Mean::default(),
            clock: Mean::default(),
            memory_mib_max_job: None,
            step: None,
            epoch: None,
            global_batch: None,
            series: SampleSeries::default(),
        }
    }

    /// Whether the job has its GPUs exclusively.
    fn exclusive(&self) -> bool {
        self.conditions.neighbours.is_empty() && !self.conditions.unknown_processes
    }

    /// Adds a sample for period detection.
    fn listen(&mut self, now: Timestamp, parts: &[JobGpuSample]) {
        let exclusive = self.exclusive();
        let span_s = now.since(self.until).as_secs_f64();
        let sum = |of: fn(&JobGpuSample) -> Option<f64>| -> Option<f32> {
            let total: Option<f64> = parts.iter().map(of).sum();
            total.map(|total| total as f32)
        };
        let busy = if exclusive {
            |p: &JobGpuSample| p.busy.map(f64::from)
        } else {
            |p: &JobGpuSample| p.busy_job.map(|b| b as f64)
        };
        let mean = |total: f32| total / parts.len().max(1) as f32;
        self.series.push(Sample {
            at_s: now.since(self.from).as_secs_f64(),
            // A mean over a second hides a shorter step.
            power_w: sum(|p| p.power_instant.or(p.power).map(Power::as_w)),
            spent_w: sum(|p| p.energy.map(Energy::as_j)).map(|j| (f64::from(j) / span_s) as f32),
            busy_percent: sum(busy).map(mean),
            memory_percent: sum(|p| p.memory_busy.map(f64::from)).map(mean).filter(|_| exclusive),
        });
    }

    /// Adds a sampling instant with one part for each of the job's GPUs. `reports`: whether the
    /// job reports steps.
    pub(crate) fn add(&mut self, now: Timestamp, parts: &[JobGpuSample], reports: bool) {
        if reports {
            self.series = SampleSeries::default();
        } else {
            self.listen(now, parts);
        }
        self.until = now;
        self.samples += 1;
        let sum = |total: Option<Energy>, part: Option<Energy>| Some(total? + part?);
        for part in parts {
            self.energy = sum(self.energy, part.energy);
            self.energy_job = sum(self.energy_job, part.energy_job);
            self.power.add(part.power.map(Power::as_mw));
            self.busy.add(part.busy.map(u64::from));
            self.busy_job.add(part.busy_job);
            self.memory_busy.add(part.memory_busy.map(u64::from));
            self.clock.add(part.clock.map(|clock| clock.as_mhz().into()));
            self.memory_mib_max_job = self.memory_mib_max_job.max(part.memory_mib_job);
        }
    }

    pub(crate) fn length(&self) -> Duration {
        self.until.since(self.from)
    }

    /// The message of the closed window.
    pub(crate) fn into_message(
        self,
        job: JobId,
        node: NodeId,
        gpu_type: String,
        early: bool,
    ) -> JobWindow {
        let span = self.length();
        let gpus = self.conditions.declared.gpus.len() as u64;
        let sampled = self.power.rounded().map(|mw| Power::from_mw(mw * gpus));
        let rate = self.meter.rate();
        // A reported rate takes precedence over a detected one.
        let period: Option<Period> =
            if rate.is_none() { self.series.detect_period(!self.exclusive()).ok() } else { None };
        JobWindow {
            job,
            admission: self.conditions.admission.clone(),
            node,
            gpu_type,
            early,
            attempt: self.conditions.attempt,
            from_us: self.from,
            until_us: self.until,
            cap_mw: self.conditions.cap(),
            clock_mhz_mean: self.clock.rounded().map(|mhz| Frequency::from_mhz(mhz as u32)),
            clock_mhz_max: self.conditions.lock(),
            steps: rate.map(|rate| rate.steps),
            steps_per_s: rate.map(|rate| rate.per_s).or(period.map(|r| 1.0 / r.period_s)),
            steps_per_s_error: rate.map(|rate| rate.error).or(period.map(|r| r.error)),
            steps_inferred: period.is_some(),
            step: self.step,
            epoch: self.epoch,
            power_mw_gpus: self.energy.and_then(|energy| energy.mean_power(span)).or(sampled),
            power_mw_job: self.energy_job.and_then(|energy| energy.mean_power(span)),
            energy_mj_gpus: self.energy,
            utilization_gpu_percent: self.busy.get(),
            utilization_gpu_percent_job: self.busy_job.get(),
            utilization_memory_percent: self.memory_busy.get(),
            memory_mib_max_job: self.memory_mib_max_job,
            samples: self.samples,
            neighbours: self.conditions.neighbours,
            workload: self.conditions.declared.workload,
            gpus: self.conditions.declared.gpus,
            gpus_total: self.conditions.declared.gpus_total,
            nodes_total: self.conditions.declared.nodes_total,
            global_batch: self.global_batch,
        }
    }
}
