//! State of every job, and predictions from it.
//!
//! The predictor contains jobs, their history by class, the limits of each GPU type, and the fitted
//! models; the formulas are in [`crate::model`]. It makes no placement decision. `learning.rs` takes a
//! window in, `surface.rs` makes the job's surface from it.
//!
//! Memory is bounded: about 250 bytes for a window, 13 kB for a job's models and 104 kB at most for
//! a class. With the shipped limits: 200 MB of windows, 260 MB of models, 40 MB of history, and for
//! each GPU type 2 MB of fitted pairs and 10 MB of scores. `benches/fleet.rs` fills the limits:
//! 510 MB.

mod learning;
mod points;
mod scoring;
mod statistical;
mod storage;
mod surface;
mod undeclared;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use wattle_common::Timestamp;
use wattle_common::id::{self, AdmissionId, JobId, WorkloadId};
use wattle_common::job::GpuRequest;
use wattle_common::messages::surface::GPU_TYPES_MAX;
use wattle_common::observation::UnusableWindow;

use crate::calibration::Calibration;
use crate::config::PredictorConfig;
use crate::gpu_types::GpuTypes;
use crate::history::History;
use crate::history::similarity::ClassMatch;
use crate::job::{Job, JobModel};
use crate::method::Learner;
use crate::pooled::Pooled;

/// Result of learning a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learned {
    /// The job's surface may have changed.
    Something,
    /// The window was known already.
    Nothing,
    /// The window contains nothing usable, with the reason.
    Unusable(UnusableWindow),
}

/// Learns from windows and predicts surfaces.
#[derive(Clone, Debug)]
pub struct Predictor {
    config: PredictorConfig,
    jobs: BTreeMap<JobId, Job>,
    /// Models of jobs that have windows.
    models: BTreeMap<JobId, JobModel>,
    /// Number of known jobs of each declared class.
    classes: BTreeMap<WorkloadId, usize>,
    gpu_types: GpuTypes,
    history: History,
    /// Scores of earlier predictions.
    calibration: Calibration,
    /// Pooled models by GPU type, with the number of windows since they were fitted.
    pooled: BTreeMap<String, (Arc<Pooled>, u32)>,
    /// State of the statistical method.
    learner: Learner,
    /// Best matching class of each undeclared job that has windows.
    matches: BTreeMap<JobId, Option<ClassMatch>>,
    /// GPU types of the cluster.
    cluster_gpu_types: BTreeSet<String>,
    /// Most co-tenants in a configuration of a surface.
    neighbours_max: usize,
}

impl Predictor {
    /// An empty predictor.
    #[must_use]
    pub fn new(config: PredictorConfig) -> Self {
        Self {
            learner: Learner::new(config.method),
            matches: BTreeMap::new(),
            cluster_gpu_types: BTreeSet::new(),
            neighbours_max: usize::MAX,
            config,
            jobs: BTreeMap::new(),
            models: BTreeMap::new(),
            classes: BTreeMap::new(),
            gpu_types: GpuTypes::default(),
            history: History::default(),
            calibration: Calibration::default(),
            pooled: BTreeMap::new(),
        }
    }

    /// Leaves out the points of surfaces with more co-tenants than these, for readers that read none of them. All other
    /// points stay as they are.
    #[must_use]
    pub fn without_points_beyond(self, neighbours_max: usize) -> Self {
        Self { neighbours_max, ..self }
    }

    /// Name and limits.
    #[must_use]
    pub fn config(&self) -> &PredictorConfig {
        &self.config
    }

    /// Number of known jobs.
    #[must_use]
    pub fn job_count(&self) -> usize {
        self.jobs.len()
    }

    /// Whether `job` is known.
    #[must_use]
    pub fn knows(&self, job: &JobId) -> bool {
        self.jobs.contains_key(job)
    }

    /// Declared workload class of `job`.
    #[must_use]
    pub fn workload_of(&self, job: &JobId) -> Option<&WorkloadId> {
        self.jobs.get(job)?.workload.as_ref()
    }

    /// Jobs of `class` without a window of their own; their predictions are those of the class.
    pub fn without_windows<'a>(&'a self, class: &'a WorkloadId) -> impl Iterator<Item = &'a JobId> {
        let unseen = |job: &Job| job.workload.as_ref() == Some(class) && job.windows().is_empty();
        self.jobs.iter().filter(move |(_, job)| unseen(job)).map(|(id, _)| id)
    }

    /// All known jobs.
    pub fn jobs(&self) -> impl Iterator<Item = &JobId> {
        self.jobs.keys()
    }

    /// GPU types of the cluster, as reported by [`Self::add_gpu_type`].
    #[must_use]
    pub fn gpu_types(&self) -> &BTreeSet<String> {
        &self.cluster_gpu_types
    }

    /// Adds a GPU type of the cluster; true where it is new. At most as many are kept as one message
    /// can contain ([`Self::surface_on_all`]).
    pub fn add_gpu_type(&mut self, gpu_type: &str) -> bool {
        let known = self.cluster_gpu_types.contains(gpu_type)
            || self.cluster_gpu_types.len() >= GPU_TYPES_MAX;
        if known || id::check(gpu_type).is_err() {
            return false;
        }
        self.gpu_types.restore(gpu_type);
        self.cluster_gpu_types.insert(gpu_type.to_owned())
    }

    /// Records a job's declaration; true where it is new.
    pub fn describe(
        &mut self,
        now: Timestamp,
        job: JobId,
        workload: Option<WorkloadId>,
        gpus: GpuRequest,
        gpu_type: Option<&str>,
    ) -> bool {
        let gpus = GpuRequest { min: gpus.min.max(1), max: gpus.max.max(gpus.min).max(1) };
        let gpu_type = gpu_type.filter(|k| id::check(k).is_ok());
        let fresh = Job::new(now, workload.clone(), gpus, gpu_type.map(str::to_owned));
        let known = self.enter(job.clone(), fresh);
        let new = !known.described || known.workload != workload || known.gpus != gpus;
        known.described = true;
        known.gpus = gpus;
        if known.gpu_type.is_none() {
            known.gpu_type = gpu_type.map(str::to_owned);
        }
        let before = std::mem::replace(&mut known.workload, workload.clone());
        if before != workload {
            self.uncount(before.as_ref());
            self.count(workload.as_ref());
            self.update_match(&job);
        }
        new
    }

    /// Sets the submission of a known job; `None`: not known, which changes nothing.
    pub fn set_submission(&mut self, job: &JobId, admission: Option<AdmissionId>) {
        if let Some(job) = self.jobs.get_mut(job).filter(|_| admission.is_some()) {
            job.admission = admission;
        }
    }

    /// Removes `job`; its contribution to its class remains. True where it was known.
    pub fn forget(&mut self, job: &JobId) -> bool {
        self.retain_for_class(job);
        self.models.remove(job);
        let Some(gone) = self.jobs.remove(job) else { return false };
        self.uncount(gone.workload.as_ref());
        self.update_match(job);
        true
    }

    /// Entry of the job, or `fresh` as a new one; the least recently updated job makes room.
    fn enter(&mut self, job: JobId, fresh: Job) -> &mut Job {
        if !self.jobs.contains_key(&job) {
            while self.jobs.len() >= self.config.jobs_max as usize {
                let oldest = self.jobs.iter().min_by_key(|(_, j)| j.updated_at_us);
                let Some(oldest) = oldest.map(|(id, _)| id.clone()) else { break };
                self.forget(&oldest);
            }
            self.count(fresh.workload.as_ref());
        }
        self.jobs.entry(job).or_insert(fresh)
    }

    fn count(&mut self, class: Option<&WorkloadId>) {
        if let Some(class) = class {
            *self.classes.entry(class.clone()).or_insert(0) += 1;
        }
    }

    fn uncount(&mut self, class: Option<&WorkloadId>) {
        if let Some(class) = class
            && let Some(left) = self.classes.get_mut(class)
        {
            *left -= 1;
            if *left == 0 {
                self.classes.remove(class);
            }
        }
    }

    fn gpu_type_of<'a>(&'a self, job: &'a Job) -> &'a str {
        job.gpu_type
            .as_deref()
            .or(self.config.gpu_type_default.as_deref())
            .or(self.gpu_types.newest())
            .unwrap_or("unknown")
    }
}
