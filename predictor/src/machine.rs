//! The predictor as a [`Machine`]: windows in, surfaces out, no job's more often than allowed.
//!
//! A window only marks its job; the surface is computed when it is due, so that a burst of windows
//! costs one surface. It speaks of each kind of GPU that a node or a window has named. Jobs that wait
//! in the queue have no windows: theirs are published anew when their class is known better. Nothing
//! here predicts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use wattle_common::id::{JobId, WorkloadId};
use wattle_common::job::GpuRequest;
use wattle_common::messages::{JobWindow, Surface};
use wattle_common::observation::UnusableWindow;
use wattle_common::{Machine, Timestamp};

use crate::calibration::Scores;
use crate::config::PredictorConfig;
use crate::history::Class;
use crate::predictor::{Learned, Predictor};

/// What happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A job is known: what its owner says of it.
    JobDescribed {
        /// The job.
        job: JobId,
        /// Its declared workload.
        workload: Option<WorkloadId>,
        /// How many GPUs it takes.
        gpus: GpuRequest,
        /// The kind of GPU it must have, where its owner names one.
        gpu_type: Option<String>,
    },
    /// A node of the cluster has cards of this kind.
    KindSeen(String),
    /// A window was closed.
    WindowClosed(Box<JobWindow>),
    /// A job has ended, in whatever way.
    JobEnded(JobId),
    /// Somebody wants to hear of every job again: a predictor was promoted, or the registry has
    /// just started.
    AllWanted,
}

/// What must be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Propose it.
    PublishSurface(Box<Surface>),
    /// The job is no more; take away what is stored of it.
    ForgetJob(JobId),
    /// A window that says nothing a predictor can use: log it.
    ReportUnusable {
        /// The job it was of.
        job: JobId,
        /// What is wrong with it.
        why: UnusableWindow,
    },
}

/// The predictor, driven from outside.
#[derive(Clone, Debug)]
pub struct PredictorMachine {
    predictor: Predictor,
    /// When each job's surface was last published; bounded with the predictor's jobs.
    published: BTreeMap<JobId, Timestamp>,
    /// Jobs with something new to say, by the instant they may say it.
    due: BTreeSet<(Timestamp, JobId)>,
    /// Windows learned from by class, and how many there were when its waiting jobs were last told.
    learned: BTreeMap<WorkloadId, (u64, u64)>,
    /// Jobs that must have the kind of GPU that their owner names; bounded with the predictor's.
    bound: BTreeSet<JobId>,
    /// Jobs that ended, oldest first: a window that comes after its job's end must not bring the
    /// job back.
    ended: VecDeque<JobId>,
}

/// Surfaces computed at one waking, so that windows do not wait for those of a whole cluster.
const PUBLISHED_AT_ONCE: usize = 64;
/// Ended jobs remembered. A last window comes seconds after its job's end.
const ENDED_MAX: usize = 4_096;

impl PredictorMachine {
    /// A machine that knows nothing yet.
    #[must_use]
    pub fn new(config: PredictorConfig) -> Self {
        Self::around(Predictor::new(config))
    }

    /// A machine around what was learned before.
    #[must_use]
    pub fn around(predictor: Predictor) -> Self {
        Self {
            predictor,
            published: BTreeMap::new(),
            due: BTreeSet::new(),
            learned: BTreeMap::new(),
            bound: BTreeSet::new(),
            ended: VecDeque::new(),
        }
    }

    /// What it has learned.
    #[must_use]
    pub fn predictor(&self) -> &Predictor {
        &self.predictor
    }

    /// What is to be proposed of `job`: on every kind of GPU that the cluster has, unless its owner
    /// names one; `None` where it is not known.
    #[must_use]
    pub fn surface(&self, now: Timestamp, job: &JobId) -> Option<Surface> {
        if self.bound.contains(job) {
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

    /// Marks `job` and publishes it, now or as soon as it may.
    fn mark(&mut self, now: Timestamp, job: JobId, out: &mut Vec<Action>) {
        let interval = self.predictor.config().publish_interval();
        match self.published.get(&job) {
            Some(&last) if now < last + interval => {
                self.due.insert((last + interval, job));
            }
            _ => self.publish(now, job, out),
        }
    }

    /// Marks the waiting jobs of `job`'s class once it has a quarter more windows than when they
    /// were last told: early on every window counts, later few do.
    fn mark_waiting(&mut self, now: Timestamp, job: &JobId, out: &mut Vec<Action>) {
        let Some(class) = self.predictor.workload_of(job).cloned() else { return };
        if self.learned.len() >= self.predictor.config().classes_max as usize
            && !self.learned.contains_key(&class)
        {
            // Counting begins anew, which costs some surfaces that say nothing new.
            self.learned.clear();
        }
        let (windows, told) = self.learned.entry(class.clone()).or_default();
        *windows += 1;
        if *windows * 4 <= *told * 5 {
            return;
        }
        *told = *windows;
        let waiting: Vec<JobId> = self.predictor.unseen_of(&class).cloned().collect();
        for job in waiting {
            self.mark(now, job, out);
        }
    }

    fn publish(&mut self, now: Timestamp, job: JobId, out: &mut Vec<Action>) {
        match self.surface(now, &job) {
            Some(surface) => {
                out.push(Action::PublishSurface(Box::new(surface)));
                self.published.insert(job, now);
            }
            // Forgotten in between, to make room for others.
            None => {
                self.published.remove(&job);
            }
        }
    }

    fn want_all(&mut self, now: Timestamp) {
        self.due.clear();
        self.due.extend(self.predictor.jobs().map(|job| (now, job.clone())));
    }

    /// Drops what is kept here of jobs the predictor no longer knows.
    fn shrink(&mut self) {
        if self.published.len() > self.predictor.job_count() {
            self.published.retain(|job, _| self.predictor.knows(job));
            self.due.retain(|(_, job)| self.predictor.knows(job));
            self.bound.retain(|job| self.predictor.knows(job));
        }
    }
}

impl Machine for PredictorMachine {
    type Event = Event;
    type Action = Action;

    fn handle(&mut self, now: Timestamp, event: Event, out: &mut Vec<Action>) {
        match event {
            Event::JobDescribed { job, .. } if self.ended.contains(&job) => {}
            Event::JobDescribed { job, workload, gpus, gpu_type } => {
                let kind = gpu_type.as_deref();
                if kind.is_some() {
                    self.bound.insert(job.clone());
                }
                if self.predictor.describe(now, job.clone(), workload, gpus, kind) {
                    self.mark(now, job, out);
                }
            }
            Event::WindowClosed(window) if self.ended.contains(&window.job) => {}
            Event::WindowClosed(window) => match self.predictor.learn(now, &window) {
                Learned::Something => {
                    let new = self.predictor.add_gpu_type(&window.gpu_type);
                    // The first one says nothing new of any job.
                    if new && self.predictor.gpu_types().len() > 1 {
                        self.want_all(now);
                    }
                    self.mark_waiting(now, &window.job, out);
                    // The first window takes the place of a guess about its kind: that does not
                    // wait for the interval. It happens once in a job's life.
                    let known = self.predictor.knowledge_of(&window.job);
                    if known.is_some_and(|job| job.windows().len() == 1) {
                        self.publish(now, window.job, out);
                    } else {
                        self.mark(now, window.job, out);
                    }
                }
                Learned::Nothing => {}
                Learned::Unusable(why) => {
                    out.push(Action::ReportUnusable { job: window.job, why });
                }
            },
            Event::JobEnded(job) => {
                self.due.retain(|(_, due)| *due != job);
                self.published.remove(&job);
                self.bound.remove(&job);
                if self.predictor.forget(&job) {
                    out.push(Action::ForgetJob(job.clone()));
                }
                if !self.ended.contains(&job) {
                    self.ended.push_back(job);
                    if self.ended.len() > ENDED_MAX {
                        self.ended.pop_front();
                    }
                }
            }
            Event::KindSeen(kind) => {
                if self.predictor.add_gpu_type(&kind) {
                    self.want_all(now);
                }
            }
            Event::AllWanted => self.want_all(now),
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
        self.due.first().map(|(at, _)| (*at, "a surface may be published again"))
    }
}
