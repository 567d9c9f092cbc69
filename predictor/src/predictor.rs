//! What is known of every job, and the questions that can be asked of it.
//!
//! It holds each job's description and windows and hands them to the models; the formulas are
//! theirs. It decides nothing about placement.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use wattle_common::Timestamp;
use wattle_common::id::{JobId, WorkloadId};
use wattle_common::job::GpuRequest;
use wattle_common::messages::{Estimate, JobWindow, Surface, SurfacePoint};

use crate::config::PredictorConfig;

/// What came of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learned {
    /// The job's surface may have changed.
    Something,
    /// It was known already.
    Nothing,
    /// It says nothing that can be used, and why.
    Unusable(&'static str),
}

/// What is known of one job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Job {
    workload: Option<WorkloadId>,
    gpus: GpuRequest,
    gpu_kind: Option<String>,
    heard_at: Timestamp,
    windows: u32,
}

/// Learns from windows, answers with surfaces.
#[derive(Clone, Debug)]
pub struct Predictor {
    config: PredictorConfig,
    jobs: BTreeMap<JobId, Job>,
}

impl Predictor {
    /// A predictor that knows nothing yet.
    #[must_use]
    pub fn new(config: PredictorConfig) -> Self {
        Self { config, jobs: BTreeMap::new() }
    }

    /// Its name and limits.
    #[must_use]
    pub fn config(&self) -> &PredictorConfig {
        &self.config
    }

    /// How many jobs it knows.
    #[must_use]
    pub fn job_count(&self) -> usize {
        self.jobs.len()
    }

    /// Whether it knows `job`.
    #[must_use]
    pub fn knows(&self, job: &JobId) -> bool {
        self.jobs.contains_key(job)
    }

    /// Takes down what a job's owner says of it. True where that was new.
    pub fn describe(
        &mut self,
        now: Timestamp,
        job: JobId,
        workload: Option<WorkloadId>,
        gpus: GpuRequest,
        gpu_kind: Option<&str>,
    ) -> bool {
        let fresh = Job {
            workload,
            gpus,
            gpu_kind: gpu_kind.map(str::to_owned),
            heard_at: now,
            windows: 0,
        };
        self.jobs.insert(job, fresh).is_none()
    }

    /// Learns from a window and answers with the job's new surface; `None` where it learned nothing.
    pub fn observe(&mut self, now: Timestamp, window: &JobWindow) -> Option<Surface> {
        match self.learn(now, window) {
            Learned::Something => self.surface(now, &window.job),
            Learned::Nothing | Learned::Unusable(_) => None,
        }
    }

    /// Learns from a window without computing a surface.
    pub fn learn(&mut self, now: Timestamp, window: &JobWindow) -> Learned {
        let job = self.jobs.entry(window.job.clone()).or_insert_with(|| Job {
            workload: window.workload.clone(),
            gpus: GpuRequest::exactly(window.gpus_total.max(1)),
            gpu_kind: None,
            heard_at: now,
            windows: 0,
        });
        job.gpu_kind = Some(window.gpu_kind.clone());
        job.heard_at = now;
        job.windows += 1;
        Learned::Something
    }

    /// What is expected of `job` in every configuration it could run in; `None` for a job that was
    /// neither described nor seen.
    #[must_use]
    pub fn surface(&self, now: Timestamp, job: &JobId) -> Option<Surface> {
        let known = self.jobs.get(job)?;
        let wide = Estimate { mean: 1.0, low: 1.0, high: 1.0 };
        Some(Surface {
            job: job.clone(),
            predictor: self.config.name.clone(),
            at_us: now,
            gpu_kind: known.gpu_kind.clone().unwrap_or_else(|| "unknown".to_owned()),
            windows: known.windows,
            basis: None,
            class: known.workload.clone(),
            utilization_gpu_percent: None,
            utilization_memory_percent: None,
            memory_mib_max: None,
            points: vec![SurfacePoint {
                gpus: known.gpus.max,
                nodes: 1,
                cap_mw: None,
                clock_mhz_max: None,
                neighbours: Vec::new(),
                steps_per_s: None,
                relative_speed: wide,
                card_power_w: Estimate { mean: 200.0, low: 20.0, high: 700.0 },
            }],
        })
    }

    /// Forgets `job`; what it taught of its class stays. True where it was known.
    pub fn forget(&mut self, job: &JobId) -> bool {
        self.jobs.remove(job).is_some()
    }
}
