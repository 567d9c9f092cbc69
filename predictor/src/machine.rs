//! The predictor as a [`Machine`]: windows in, surfaces out, at a limited rate per job.
//!
//! A window marks its job; the surface is computed when it is due, so that a burst of windows costs
//! one surface. It covers each GPU type that a node or a window has named. Queued jobs have no
//! windows: their surfaces are published again as their class gains windows.

use std::collections::{BTreeMap, BTreeSet};

use wattle_common::bounds::{OutOfBounds, check_window};
use wattle_common::id::{JobId, WorkloadId};
use wattle_common::job::GpuRequest;
use wattle_common::messages::{JobWindow, Surface};
use wattle_common::observation::UnusableWindow;
use wattle_common::{AdmissionId, EndedJobs, Machine, Timestamp};

use crate::calibration::Scores;
use crate::config::PredictorConfig;
use crate::history::Class;
use crate::predictor::{Learned, Predictor};

/// An input.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A job's record was read: what its owner declares.
    JobDescribed {
        /// The job.
        job: JobId,
        /// Its submission; absent: an earlier version accepted it.
        admission: Option<AdmissionId>,
        /// Its declared workload.
        workload: Option<WorkloadId>,
        /// Number of GPUs it requests.
        gpus: GpuRequest,
        /// The GPU type it requires, if any.
        gpu_type: Option<String>,
    },
    /// A node of the cluster has GPUs of this type.
    GpuTypeFound(String),
    /// A window was closed.
    WindowClosed(Box<JobWindow>),
    /// A job ended, in whatever way; its submission, as far as it is known.
    JobEnded(JobId, Option<AdmissionId>),
    /// All surfaces are requested: a predictor was promoted, or the registry started.
    AllRequested,
}

/// An output.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Propose this surface.
    PublishSurface(Box<Surface>),
    /// Delete the stored state of a job that ended.
    ForgetJob(JobId),
    /// Log that a window cannot be used.
    ReportUnusable {
        /// Its job.
        job: JobId,
        /// What is wrong with it.
        error: UnusableWindow,
    },
    /// Log that a number of a window is outside its limits; the window is ignored.
    ReportOutOfBounds {
        /// Its job.
        job: JobId,
        /// The number.
        error: OutOfBounds,
    },
}

/// The predictor, driven from outside.
#[derive(Clone, Debug)]
pub struct PredictorMachine {
    predictor: Predictor,
    /// When each job's surface was last published; bounded with the predictor's jobs.
    published: BTreeMap<JobId, Timestamp>,
    /// Jobs whose surface changed, by the time at which it may be published.
    due: BTreeSet<(Timestamp, JobId)>,
    /// By class: its windows, and their number when its queued jobs were last published.
    learned: BTreeMap<WorkloadId, (u64, u64)>,
    /// Jobs that require a GPU type; bounded with the predictor's.
    fixed_type: BTreeSet<JobId>,
    /// Ended jobs, whose late windows are ignored.
    ended: EndedJobs,
}

/// Surfaces computed at one wake-up, so that windows are not delayed by a large cluster's.
const PUBLISHED_AT_ONCE: usize = 64;

impl PredictorMachine {
    /// A machine without data.
    #[must_use]
    pub fn new(config: PredictorConfig) -> Self {
        Self::with(Predictor::new(config))
    }

    /// A machine with a restored predictor.
    #[must_use]
    pub fn with(predictor: Predictor) -> Self {
        Self {
            predictor,
            published: BTreeMap::new(),
            due: BTreeSet::new(),
            learned: BTreeMap::new(),
            fixed_type: BTreeSet::new(),
            ended: EndedJobs::default(),
        }
    }

    /// The predictor.
    #[must_use]
    pub fn predictor(&self) -> &Predictor {
        &self.predictor
    }

    /// The surface to propose of `job`: on the GPU type that it requires, or else on every type;
    /// `None` for an unknown job.
    #[must_use]
    pub fn surface(&self, now: Timestamp, job: &JobId) -> Option<Surface> {
        if self.fixed_type.contains(job) {
            return self.predictor.surface(now, job);
        }
        self.predictor.surface_on_all(now, job)
    }

    /// Scores changed since the last call, to be stored.
    pub fn take_changed_scores(&mut self) -> Vec<(String, String, Scores)> {
        self.predictor.take_changed_scores()
    }

    /// Classes changed since the last call, to be stored.
    pub fn take_changed_classes(&mut self) -> Vec<(String, WorkloadId, Class)> {
        self.predictor.take_changed_classes()
    }

    /// Whether what is of the submission `of` of a job counts: it has not ended, and no later one is known. One
    /// that is later than the known submission begins without its windows and fits.
    fn admit(&mut self, job: &JobId, of: Option<&AdmissionId>, out: &mut Vec<Action>) -> bool {
        let Some(known) = self.predictor.knowledge_of(job) else { return !self.ended.has(job, of) };
        let known = known.admission.clone();
        if AdmissionId::replaces(known.as_ref(), of) {
            return false;
        }
        if AdmissionId::replaces(of, known.as_ref()) {
            self.end(job.clone(), known, out);
        }
        true
    }

    fn end(&mut self, job: JobId, admission: Option<AdmissionId>, out: &mut Vec<Action>) {
        self.due.retain(|(_, due)| *due != job);
        self.published.remove(&job);
        self.fixed_type.remove(&job);
        if self.predictor.forget(&job) {
            out.push(Action::ForgetJob(job.clone()));
        }
        self.ended.insert(job, admission);
    }

    /// Publishes `job` now or as soon as its interval allows.
    fn mark(&mut self, now: Timestamp, job: JobId, out: &mut Vec<Action>) {
        let interval = self.predictor.config().publish_interval();
        match self.published.get(&job) {
            Some(&last) if now < last + interval => {
                self.due.insert((last + interval, job));
            }
            _ => self.publish(now, job, out),
        }
    }

    /// Publishes the queued jobs of `job`'s class once the class has a quarter more windows than at
    /// their last publication.
    fn mark_queued(&mut self, now: Timestamp, job: &JobId, out: &mut Vec<Action>) {
        let Some(class) = self.predictor.workload_of(job).cloned() else { return };
        if self.learned.len() >= self.predictor.config().classes_max as usize
            && !self.learned.contains_key(&class)
        {
            // Restarting the counts costs some redundant surfaces.
            self.learned.clear();
        }
        let (windows, published) = self.learned.entry(class.clone()).or_default();
        *windows += 1;
        if *windows * 4 <= *published * 5 {
            return;
        }
        *published = *windows;
        let queued: Vec<JobId> = self.predictor.without_windows(&class).cloned().collect();
        for job in queued {
            self.mark(now, job, out);
        }
    }

    fn publish(&mut self, now: Timestamp, job: JobId, out: &mut Vec<Action>) {
        match self.surface(now, &job) {
            Some(surface) => {
                out.push(Action::PublishSurface(Box::new(surface)));
                self.published.insert(job, now);
            }
            // Dropped in between to make room.
            None => {
                self.published.remove(&job);
            }
        }
    }

    fn request_all(&mut self, now: Timestamp) {
        self.due.clear();
        self.due.extend(self.predictor.jobs().map(|job| (now, job.clone())));
    }

    /// Drops entries of jobs that the predictor no longer keeps.
    fn shrink(&mut self) {
        if self.published.len() > self.predictor.job_count() {
            self.published.retain(|job, _| self.predictor.knows(job));
            self.due.retain(|(_, job)| self.predictor.knows(job));
            self.fixed_type.retain(|job| self.predictor.knows(job));
        }
    }
}

impl Machine for PredictorMachine {
    type Event = Event;
    type Action = Action;

    fn handle(&mut self, now: Timestamp, event: Event, out: &mut Vec<Action>) {
        match event {
            Event::JobDescribed { job, admission, .. }
                if !self.admit(&job, admission.as_ref(), out) => {}
            Event::JobDescribed { job, admission, workload, gpus, gpu_type } => {
                let gpu_type = gpu_type.as_deref();
                if gpu_type.is_some() {
                    self.fixed_type.insert(job.clone());
                }
                let new = self.predictor.describe(now, job.clone(), workload, gpus, gpu_type);
                self.predictor.set_submission(&job, admission);
                if new {
                    self.mark(now, job, out);
                }
            }
            Event::WindowClosed(window) if let Err(error) = check_window(&window, now) => {
                out.push(Action::ReportOutOfBounds { job: window.job, error });
            }
            Event::WindowClosed(window)
                if !self.admit(&window.job, window.admission.as_ref(), out) => {}
            Event::WindowClosed(window) => match self.predictor.learn(now, &window) {
                Learned::Something => {
                    let new = self.predictor.add_gpu_type(&window.gpu_type);
                    // The first type adds no other surface.
                    if new && self.predictor.gpu_types().len() > 1 {
                        self.request_all(now);
                    }
                    self.mark_queued(now, &window.job, out);
                    // The first window replaces a guess of its GPU type, so the interval does not
                    // apply.
                    let known = self.predictor.knowledge_of(&window.job);
                    if known.is_some_and(|job| job.windows().len() == 1) {
                        self.publish(now, window.job, out);
                    } else {
                        self.mark(now, window.job, out);
                    }
                }
                Learned::Nothing => {}
                Learned::Unusable(error) => {
                    out.push(Action::ReportUnusable { job: window.job, error });
                }
            },
            Event::JobEnded(job, admission) => {
                let known = self.predictor.knowledge_of(&job);
                let known = known.and_then(|known| known.admission.clone());
                if !AdmissionId::replaces(known.as_ref(), admission.as_ref()) {
                    self.end(job, admission.or(known), out);
                }
            }
            Event::GpuTypeFound(gpu_type) => {
                if self.predictor.add_gpu_type(&gpu_type) {
                    self.request_all(now);
                }
            }
            Event::AllRequested => self.request_all(now),
        }
        self.shrink();
    }

    fn wake(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        for _ in 0..PUBLISHED_AT_ONCE {
            let Some((at, _)) = self.due.first() else { break };
            if *at > now {
                break;
            }
            let Some((_, job)) = self.due.pop_first() else { break };
            self.publish(now, job, out);
        }
    }

    fn next_wake(&self) -> Option<(Timestamp, &'static str)> {
        self.due.first().map(|(at, _)| (*at, "a surface is due"))
    }
}
