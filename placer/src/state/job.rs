//! What the placer knows of one job while it waits or runs.
//!
//! Facts come from its owner and never change; the state, the surface and the progress come from
//! outside through [`crate::PlanningInput`]'s update methods. Nothing here decides.

use std::sync::Arc;
use std::time::Duration;

use wattle_common::job::{GpuRequest, GpuSetting, JobSpec};
use wattle_common::messages::{JobProgressed, Surface};
use wattle_common::{JobId, Timestamp, WorkloadId};

use crate::state::gpu_set::{GpuSet, JobKey};
use crate::state::operating_points::OperatingPoints;

/// What a job's owner says of it, as far as placing it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobFacts {
    /// Its id.
    pub id: JobId,
    /// Which kind of job it is, where its owner says so.
    pub workload: Option<WorkloadId>,
    /// How many GPUs.
    pub request: GpuRequest,
    /// Never to share a GPU.
    pub exclusive: bool,
    /// Who has more is served first.
    pub priority: u8,
    /// Whether it can be asked to checkpoint and stop; without that it runs to its end.
    pub can_stop: bool,
    /// When it must be done.
    pub deadline: Option<Timestamp>,
    /// How long its owner lets it wait in all for cleaner or cheaper energy; absent: not at all.
    pub slack: Option<Duration>,
    /// How long it takes alone, where its owner knows.
    pub duration_alone: Option<Duration>,
    /// Peak device memory on each GPU, where its owner knows.
    pub memory_mib_max: Option<u64>,
    /// The kind of GPU it must have, where its owner names one.
    pub gpu_type: Option<Arc<str>>,
    /// When it was submitted.
    pub submitted_at: Timestamp,
}

impl From<&JobSpec> for JobFacts {
    fn from(spec: &JobSpec) -> Self {
        Self {
            id: spec.job.clone(),
            workload: spec.workload.clone(),
            request: spec.gpus,
            exclusive: spec.exclusive,
            priority: spec.priority,
            can_stop: spec.checkpoint_signal.is_some(),
            deadline: spec.deadline_at_us,
            slack: spec.slack_ms.map(Duration::from_millis),
            duration_alone: spec.duration_ms_estimate.map(Duration::from_millis),
            memory_mib_max: spec.memory_mib_max,
            gpu_type: spec.gpu_type.as_deref().map(Arc::from),
            submitted_at: spec.submitted_at_us,
        }
    }
}

/// Where a job is in its life, as far as its GPUs go.
#[derive(Clone, Debug, PartialEq)]
pub enum State {
    /// It waits.
    Queued,
    /// It has these GPUs (its processes may still be starting).
    Running {
        /// Its GPUs.
        on: GpuSet,
        /// What they are set to.
        setting: GpuSetting,
        /// Since when.
        since: Timestamp,
        /// Its placement is being observed and may be undone.
        observation: Option<Observation>,
    },
    /// It was asked to stop and still holds its GPUs.
    Stopping {
        /// Its GPUs.
        on: GpuSet,
        /// Their cap and clock until it has stopped.
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
    /// The observation that runs, if one does.
    #[must_use]
    pub fn observation(&self) -> Option<&Observation> {
        match self {
            Self::Running { observation, .. } => observation.as_ref(),
            Self::Queued | Self::Stopping { .. } => None,
        }
    }
}

/// A placement under observation: what everyone on those GPUs has done since.
#[derive(Clone, Debug, PartialEq)]
pub struct Observation {
    /// Since when.
    pub since: Timestamp,
    /// The newcomer and all who were there before it, as long as they run.
    pub marks: Vec<Mark>,
}

/// Where one job stood when its observation began.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mark {
    /// The job.
    pub job: JobKey,
    /// Its first report after the observation began: when, and how many steps. A report from
    /// before it would be stale, and make the job look faster than it is.
    pub from: Option<(Timestamp, u64)>,
}

/// How far a job is, as last reported.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Progress {
    /// When it was so.
    pub at: Timestamp,
    /// Steps done since the job's beginning.
    pub step: u64,
    /// Steps after which it is done.
    pub steps_total: Option<u64>,
    /// Epochs completed.
    pub epoch: Option<u32>,
    /// Steps in an epoch.
    pub steps_per_epoch: Option<u64>,
    /// Steps a second over the last reports.
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

/// What a predictor says of a job on one kind of GPU.
#[derive(Clone, Debug)]
pub struct KnownSurface {
    /// All of it.
    pub surface: Arc<Surface>,
    /// What it says of the job alone.
    pub menu: Arc<OperatingPoints>,
}

/// One job that waits or runs.
#[derive(Clone, Debug)]
pub struct Job {
    /// What its owner says.
    pub facts: JobFacts,
    /// Its place in the queue, by priority and then by arrival; kept when it returns there.
    pub arrival: u64,
    /// Where it is in its life.
    pub state: State,
    /// What a predictor says of it on the kind of GPU that it has, or was first spoken of.
    pub surface: Option<Arc<Surface>>,
    /// How far it is, once it has said so.
    pub progress: Option<Progress>,
    /// What its surface says of it alone, in the order of [`OperatingPoints`]'s choices.
    pub menu: Option<Arc<OperatingPoints>>,
    /// What is said of it on other kinds of GPU, by kind.
    pub elsewhere: Vec<KnownSurface>,
    /// GPU time it has had before its present placement.
    pub attained: Duration,
    /// How long it has run before its present placement.
    pub ran: Duration,
    /// It was stopped to go on at once on so many GPUs.
    pub next_gpus: Option<u32>,
    /// Of which kind they are to be, where that was chosen.
    pub next_kind: Option<Arc<str>>,
    /// GPU sets it was taken off again: they are not tried a second time.
    pub undone_on: Vec<GpuSet>,
}

impl Job {
    /// A job that has just come and of which nothing else is known.
    #[must_use]
    pub const fn new(facts: JobFacts, arrival: u64) -> Self {
        Self {
            facts,
            arrival,
            state: State::Queued,
            surface: None,
            menu: None,
            elsewhere: Vec::new(),
            progress: None,
            attained: Duration::ZERO,
            ran: Duration::ZERO,
            next_gpus: None,
            next_kind: None,
            undone_on: Vec::new(),
        }
    }
    /// GPU time it has had by `now`: GPUs times seconds, the sum over its placements.
    #[must_use]
    pub fn gpu_time(&self, now: Timestamp) -> Duration {
        match &self.state {
            State::Running { on, since, .. } => self.attained + now.since(*since) * on.gpu_count(),
            State::Queued | State::Stopping { .. } => self.attained,
        }
    }
    /// How long it has had GPUs by `now`, however many.
    #[must_use]
    pub fn run_time(&self, now: Timestamp) -> Duration {
        match &self.state {
            State::Running { since, .. } => self.ran + now.since(*since),
            State::Queued | State::Stopping { .. } => self.ran,
        }
    }
    /// Its menus, of each kind of GPU that something is said of; first that of [`Self::menu`].
    pub fn menus(&self) -> impl Iterator<Item = &Arc<OperatingPoints>> {
        self.menu.iter().chain(self.elsewhere.iter().map(|told| &told.menu))
    }
    /// Its menu on GPUs of this kind.
    #[must_use]
    pub fn menu_on(&self, kind: &str) -> Option<&OperatingPoints> {
        self.menus().find(|menu| menu.gpu_type == kind).map(Arc::as_ref)
    }
    /// Its surface on GPUs of this kind.
    #[must_use]
    pub fn surface_on(&self, kind: &str) -> Option<&Surface> {
        let elsewhere = self.elsewhere.iter().map(|told| &told.surface);
        let mut all = self.surface.iter().chain(elsewhere);
        all.find(|surface| surface.gpu_type == kind).map(Arc::as_ref)
    }
    /// A predictor has spoken. What it says of one kind of GPU leaves what is known of others.
    pub(crate) fn surface_received(&mut self, surface: Arc<Surface>, menu: Arc<OperatingPoints>) {
        let kind = surface.gpu_type.as_str();
        if self.surface.as_ref().is_none_or(|known| known.gpu_type == kind) {
            (self.surface, self.menu) = (Some(surface), Some(menu));
            return;
        }
        let known = |told: &KnownSurface| told.surface.gpu_type.as_str().cmp(kind);
        match self.elsewhere.binary_search_by(known) {
            Ok(at) => self.elsewhere[at] = KnownSurface { surface, menu },
            Err(at) => self.elsewhere.insert(at, KnownSurface { surface, menu }),
        }
    }
    /// Its own surface and menu are from now on those of this kind, where anything is said of it.
    pub(crate) fn use_gpu_type(&mut self, kind: &str) {
        if self.surface.as_ref().is_some_and(|surface| surface.gpu_type == kind) {
            return;
        }
        let Some(at) = self.elsewhere.iter().position(|told| told.surface.gpu_type == kind) else {
            return;
        };
        let KnownSurface { surface, menu } = self.elsewhere.remove(at);
        let before = (self.surface.replace(surface), self.menu.replace(menu));
        if let (Some(surface), Some(menu)) = before {
            self.surface_received(surface, menu);
        }
    }
    /// The unit of its work, as its own menu has it ([`OperatingPoints::unit_rate`]).
    #[must_use]
    pub fn unit_rate(&self) -> Option<f64> {
        self.menu.as_ref()?.unit_rate()
    }
    /// The GPUs it has, or is meant to go on with at once.
    #[must_use]
    pub fn gpus_meant(&self) -> Option<u32> {
        match &self.state {
            State::Running { on, .. } => Some(on.gpu_count()),
            State::Stopping { .. } | State::Queued => self.next_gpus,
        }
    }
    /// Peak device memory on one GPU: as declared, otherwise as measured.
    #[must_use]
    pub fn memory_mib_max(&self) -> Option<u64> {
        let measured = self.surface.as_ref().and_then(|s| s.memory_mib_max);
        match (self.facts.memory_mib_max, measured) {
            (Some(declared), Some(measured)) => Some(declared.max(measured)),
            (one, other) => one.or(other),
        }
    }
}
