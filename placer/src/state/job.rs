//! One queued or running job: facts, state, progress and surfaces.
//!
//! Facts come from the job's specification and never change. The state, the surfaces and the progress
//! are updated by the event methods of [`crate::ClusterState`].

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use wattle_common::job::{Flexibility, GpuRequest, GpuSetting, JobSpec, NodeNeeds, SiteJob};
use wattle_common::messages::{JobProgressed, Surface};
use wattle_common::{JobId, Timestamp, WorkloadId};

use crate::state::gpu_set::{GpuSet, JobKey};
use crate::state::left_settings::LeftSettings;
use crate::state::operating_points::OperatingPoints;
use crate::state::restarts::Restarts;
use crate::state::surface_index::SurfaceIndex;

/// The part of a job's specification that placement reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobFacts {
    /// Its id.
    pub id: JobId,
    /// Its workload, if declared.
    pub workload: Option<WorkloadId>,
    /// The user who submitted it, if stated.
    pub user: Option<Arc<str>>,
    /// Its project, if it names one.
    pub project: Option<Arc<str>>,
    /// The minimum and maximum number of GPUs.
    pub request: GpuRequest,
    /// Whether it requires GPUs without co-tenants.
    pub exclusive: bool,
    /// Whether its owner consents to sharing its GPUs.
    pub consents_to_sharing: bool,
    /// How much slower than at the default setting of the same GPUs it may run, per mille.
    pub max_slowdown_permille: Option<u32>,
    /// What it gives up during a grid event.
    pub flexibility: Option<Flexibility>,
    /// Jobs of higher priority are placed first.
    pub priority: u8,
    /// Whether it can be preempted: it has a checkpoint signal.
    pub can_stop: bool,
    /// The latest completion time.
    pub deadline: Option<Timestamp>,
    /// Longest total deferral for cleaner or cheaper energy; absent: none.
    pub slack: Option<Duration>,
    /// Its run time without co-tenants, if declared.
    pub duration_alone: Option<Duration>,
    /// The time limit of a run, at which the site's scheduler ends it, if known.
    pub time_limit: Option<Duration>,
    /// The priority that the site's scheduler gave it, as Slurm's multifactor priority; 0 if unknown. Of the
    /// policies only `backfill` reads it.
    pub site_priority: u32,
    /// Peak device memory on each GPU, if declared.
    pub memory_mib_max: Option<u64>,
    /// The required GPU type; absent: any.
    pub gpu_type: Option<Arc<str>>,
    /// The rules of the site's scheduler, if that runs it.
    pub site: Option<SiteFacts>,
    /// When it was submitted.
    pub submitted_at: Timestamp,
}

/// What the site's scheduler requires of a job's placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteFacts {
    /// Number of its nodes; the GPU indices are the same on each.
    pub nodes: u32,
    /// The partition whose nodes it may use; absent: any node.
    pub partition: Option<Arc<str>>,
    /// CPUs and memory that the job needs on each node.
    pub needs: NodeNeeds,
}

impl JobFacts {
    /// A job that requests GPUs and declares nothing else, submitted at time zero.
    #[must_use]
    pub const fn new(id: JobId, request: GpuRequest) -> Self {
        Self {
            id,
            workload: None,
            user: None,
            project: None,
            request,
            exclusive: false,
            consents_to_sharing: false,
            max_slowdown_permille: None,
            flexibility: None,
            priority: 0,
            can_stop: false,
            deadline: None,
            slack: None,
            duration_alone: None,
            time_limit: None,
            site_priority: 0,
            memory_mib_max: None,
            gpu_type: None,
            site: None,
            submitted_at: Timestamp::EPOCH,
        }
    }

    /// The project, or the user of a job without one.
    pub(crate) fn project_or_user(&self) -> Option<&Arc<str>> {
        self.project.as_ref().or(self.user.as_ref())
    }
}

impl From<&JobSpec> for JobFacts {
    fn from(spec: &JobSpec) -> Self {
        let placed_by_site = spec.site.as_ref().is_some_and(|site| site.placed_by_site);
        let site = |site: &SiteJob| SiteFacts {
            nodes: site.nodes.unwrap_or(1),
            partition: site.partition.as_deref().map(Arc::from),
            needs: site.needs,
        };
        Self {
            id: spec.job.clone(),
            workload: spec.workload.clone(),
            user: spec.user.as_deref().map(Arc::from),
            project: spec.project.as_ref().map(|project| Arc::from(project.as_str())),
            request: spec.gpus,
            exclusive: spec.exclusive || placed_by_site,
            consents_to_sharing: spec.consents_to_sharing,
            max_slowdown_permille: spec.max_slowdown_permille,
            flexibility: spec.flexibility,
            priority: spec.priority,
            can_stop: spec.checkpoint_signal.is_some() && !placed_by_site,
            deadline: spec.deadline_at_us,
            slack: spec.slack_ms.map(Duration::from_millis),
            duration_alone: spec.duration_ms_estimate.map(Duration::from_millis),
            time_limit: spec.time_limit_ms.map(Duration::from_millis),
            site_priority: 0,
            memory_mib_max: spec.memory_mib_max,
            gpu_type: spec.gpu_type.as_deref().map(Arc::from),
            site: spec.site.as_ref().map(site),
            submitted_at: spec.submitted_at_us,
        }
    }
}

/// The state of a job with respect to its GPUs.
#[derive(Clone, Debug, PartialEq)]
pub enum State {
    /// It holds no GPUs.
    Queued,
    /// It holds these GPUs. Its processes may still be starting.
    Running {
        /// Its GPUs.
        on: GpuSet,
        /// The cap and clock of its GPUs.
        setting: GpuSetting,
        /// When it got these GPUs.
        since: Timestamp,
        /// The early observation of its placement, after which the placement may be undone.
        trial: Option<Trial>,
    },
    /// It was requested to stop and still holds its GPUs.
    Stopping {
        /// Its GPUs.
        on: GpuSet,
        /// Their cap and clock until the job has stopped.
        setting: GpuSetting,
    },
}

impl State {
    /// The GPUs it holds.
    #[must_use]
    pub fn gpus(&self) -> Option<&GpuSet> {
        match self {
            Self::Queued => None,
            Self::Running { on, .. } | Self::Stopping { on, .. } => Some(on),
        }
    }
    /// The early observation under way, if any.
    #[must_use]
    pub fn trial(&self) -> Option<&Trial> {
        match self {
            Self::Running { trial, .. } => trial.as_ref(),
            Self::Queued | Self::Stopping { .. } => None,
        }
    }
}

/// An early trial: the progress of all jobs that share GPUs in a placement.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    /// When it began.
    pub since: Timestamp,
    /// The observed job and its co-tenants, as long as they run.
    pub marks: Vec<Mark>,
}

/// The progress of one job at the beginning of an trial.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mark {
    /// The job.
    pub job: JobKey,
    /// Time and step of its first report after the observation began. An earlier report would
    /// overestimate the rate.
    pub from: Option<(Timestamp, u64)>,
}

/// The last reported progress of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Progress {
    /// The time of the report.
    pub at: Timestamp,
    /// Steps completed since the job's first start.
    pub step: u64,
    /// Total steps of the job.
    pub steps_total: Option<u64>,
    /// Epochs completed.
    pub epoch: Option<u32>,
    /// Steps per epoch.
    pub steps_per_epoch: Option<u64>,
    /// Steps per second over the last reports.
    pub steps_per_s: Option<f64>,
}

impl From<&JobProgressed> for Progress {
    fn from(message: &JobProgressed) -> Self {
        Self {
            at: message.at_us,
            step: message.step,
            steps_total: message.steps_total,
            epoch: message.epoch,
            steps_per_epoch: message.steps_per_epoch,
            steps_per_s: message.steps_per_s,
        }
    }
}

/// A predictor's estimates for a job on one GPU type.
#[derive(Clone, Debug)]
pub struct KnownSurface {
    /// The surface.
    pub surface: Arc<Surface>,
    /// Its points without co-tenants.
    pub operating_points: Arc<OperatingPoints>,
}

/// One queued or running job.
#[derive(Clone, Debug)]
pub struct Job {
    /// The facts of its specification.
    pub facts: JobFacts,
    /// Its position in the queue, by priority and then by arrival. A stopped job keeps it.
    pub arrival: u64,
    /// Its state.
    pub state: State,
    /// Its surface on the GPU type that it holds, otherwise the first one received.
    pub surface: Option<Arc<Surface>>,
    /// The index of [`Self::surface`], once it is needed.
    pub(crate) surface_index: OnceLock<SurfaceIndex>,
    /// Its progress, once reported.
    pub progress: Option<Progress>,
    /// The operating points of [`Self::surface`].
    pub operating_points: Option<Arc<OperatingPoints>>,
    /// Its surfaces on other GPU types, sorted by type.
    pub other_surfaces: Vec<KnownSurface>,
    /// GPU time before its current placement.
    pub attained: Duration,
    /// Run time before its current placement.
    pub ran: Duration,
    /// The number of GPUs on which it continues at once after this stop.
    pub next_gpus: Option<u32>,
    /// The type of those GPUs; absent: any.
    pub next_gpu_type: Option<Arc<str>>,
    /// GPU sets on which its placement was undone; they are not tried again.
    pub undone_on: Vec<GpuSet>,
    /// The settings that its GPUs left lately. Not known after a restart of the placer.
    pub settings_left: LeftSettings,
    /// Its restarts: measured costs, sizes it left.
    pub restarts: Restarts,
}

impl Job {
    /// A queued job without progress or surface.
    #[must_use]
    pub const fn new(facts: JobFacts, arrival: u64) -> Self {
        Self {
            facts,
            arrival,
            state: State::Queued,
            surface: None,
            surface_index: OnceLock::new(),
            operating_points: None,
            other_surfaces: Vec::new(),
            progress: None,
            attained: Duration::ZERO,
            ran: Duration::ZERO,
            next_gpus: None,
            next_gpu_type: None,
            undone_on: Vec::new(),
            settings_left: LeftSettings::new(),
            restarts: Restarts::new(),
        }
    }
    /// The cap and clock of its GPUs, while it holds some.
    #[must_use]
    pub const fn setting(&self) -> Option<GpuSetting> {
        match &self.state {
            State::Running { setting, .. } | State::Stopping { setting, .. } => Some(*setting),
            State::Queued => None,
        }
    }
    /// GPU time by `now`: the sum of GPUs times seconds over its placements.
    #[must_use]
    pub fn gpu_time(&self, now: Timestamp) -> Duration {
        match &self.state {
            State::Running { on, since, .. } => self.attained + now.since(*since) * on.gpu_count(),
            State::Queued | State::Stopping { .. } => self.attained,
        }
    }
    /// Time by `now` during which it held GPUs.
    #[must_use]
    pub fn run_time(&self, now: Timestamp) -> Duration {
        match &self.state {
            State::Running { since, .. } => self.ran + now.since(*since),
            State::Queued | State::Stopping { .. } => self.ran,
        }
    }
    /// Its operating points on each GPU type with a surface, beginning with
    /// [`Self::operating_points`].
    pub fn all_operating_points(&self) -> impl Iterator<Item = &Arc<OperatingPoints>> {
        self.operating_points
            .iter()
            .chain(self.other_surfaces.iter().map(|known| &known.operating_points))
    }
    /// Its operating points on this GPU type.
    #[must_use]
    pub fn operating_points_on(&self, gpu_type: &str) -> Option<&OperatingPoints> {
        self.all_operating_points()
            .find(|operating_points| operating_points.gpu_type == gpu_type)
            .map(Arc::as_ref)
    }
    /// Its surface on this GPU type.
    #[must_use]
    pub fn surface_on(&self, gpu_type: &str) -> Option<&Surface> {
        let other_surfaces = self.other_surfaces.iter().map(|known| &known.surface);
        let mut all = self.surface.iter().chain(other_surfaces);
        all.find(|surface| surface.gpu_type == gpu_type).map(Arc::as_ref)
    }
    /// [`Self::surface`] with its index.
    pub(crate) fn indexed_surface(&self) -> Option<(&Surface, &SurfaceIndex)> {
        let surface = self.surface.as_deref()?;
        Some((surface, self.surface_index.get_or_init(|| SurfaceIndex::new(surface))))
    }
    /// A surface was received. It replaces the one of the same GPU type only.
    pub(crate) fn surface_received(
        &mut self,
        surface: Arc<Surface>,
        operating_points: Arc<OperatingPoints>,
    ) {
        let gpu_type = surface.gpu_type.as_str();
        if self.surface.as_ref().is_none_or(|known| known.gpu_type == gpu_type) {
            self.surface_index.take();
            (self.surface, self.operating_points) = (Some(surface), Some(operating_points));
            return;
        }
        let order = |known: &KnownSurface| known.surface.gpu_type.as_str().cmp(gpu_type);
        match self.other_surfaces.binary_search_by(order) {
            Ok(at) => self.other_surfaces[at] = KnownSurface { surface, operating_points },
            Err(at) => self.other_surfaces.insert(at, KnownSurface { surface, operating_points }),
        }
    }
    /// Makes the surface of this GPU type, if known, the main one.
    pub(crate) fn use_gpu_type(&mut self, gpu_type: &str) {
        if self.surface.as_ref().is_some_and(|surface| surface.gpu_type == gpu_type) {
            return;
        }
        let Some(at) =
            self.other_surfaces.iter().position(|known| known.surface.gpu_type == gpu_type)
        else {
            return;
        };
        self.surface_index.take();
        let KnownSurface { surface, operating_points } = self.other_surfaces.remove(at);
        let before =
            (self.surface.replace(surface), self.operating_points.replace(operating_points));
        if let (Some(surface), Some(operating_points)) = before {
            self.surface_received(surface, operating_points);
        }
    }
    /// The unit of its work ([`OperatingPoints::unit_rate`]).
    #[must_use]
    pub fn unit_rate(&self) -> Option<f64> {
        self.operating_points.as_ref()?.unit_rate()
    }
    /// The number of GPUs that it holds, or with which it continues at once.
    #[must_use]
    pub fn intended_gpus(&self) -> Option<u32> {
        match &self.state {
            State::Running { on, .. } => Some(on.gpu_count()),
            State::Stopping { .. } | State::Queued => self.next_gpus,
        }
    }
    /// Peak device memory on one GPU, MiB: the larger of declared and measured.
    #[must_use]
    pub fn memory_mib_max(&self) -> Option<u64> {
        let measured = self.surface.as_ref().and_then(|s| s.memory_mib_max);
        match (self.facts.memory_mib_max, measured) {
            (Some(declared), Some(measured)) => Some(declared.max(measured)),
            (one, other) => one.or(other),
        }
    }
}
