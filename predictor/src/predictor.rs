//! What is known of every job, and the questions that can be asked of it.
//!
//! It keeps jobs, their history by class and what is known of the cards, and hands them to the
//! models; the formulas are theirs. It decides nothing about placement. Memory is bounded: about
//! 250 bytes for a window, some 13 kB for a job's models, 104 kB for a class at most, so the shipped
//! limits hold about 200 MB of windows, 260 MB of models and 40 MB of history, and for each kind of
//! card 2 MB of fitted pairs and 10 MB of scores. `benches/fleet.rs` fills the limits: 510 MB.

mod calibrated;
mod methods;
mod undeclared;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use wattle_common::Timestamp;
use wattle_common::id::{self, JobId, WorkloadId};
use wattle_common::job::GpuRequest;
use wattle_common::messages::surface::{self, NEIGHBOUR_CLASSES_MAX};
use wattle_common::messages::{JobWindow, Surface, SurfacePoint};

use crate::calibration::Calibration;
use crate::cards::{Cards, GPU_TYPES_MAX};
use crate::config::PredictorConfig;
use crate::history::{Class, History};
use crate::job::{Context, Job, JobModel, Profiles};
use crate::likeness::Like;
use crate::method::Learner;
use crate::model::cap::Card;
use crate::pooled::Pooled;
use crate::prior;
use crate::probe;
use crate::surface::{Axes, Configuration, Question, configurations};
use wattle_common::observation::{Observation, UnusableWindow, unknown};

/// Up to so many classes, what is pooled over jobs is fitted anew with each window; beyond, with
/// every [`POOL_EVERY`]th.
const POOL_EAGER: usize = 64;
const POOL_EVERY: u32 = 16;

/// What came of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learned {
    /// The job's surface may have changed.
    Something,
    /// It was known already.
    Nothing,
    /// It says nothing that can be used, and why.
    Unusable(UnusableWindow),
}

/// Learns from windows, answers with surfaces.
#[derive(Clone, Debug)]
pub struct Predictor {
    config: PredictorConfig,
    jobs: BTreeMap<JobId, Job>,
    /// Of jobs that have windows.
    models: BTreeMap<JobId, JobModel>,
    /// How many jobs of each declared class are known now.
    classes: BTreeMap<WorkloadId, usize>,
    cards: Cards,
    history: History,
    /// How far its predictions were off.
    calibration: Calibration,
    /// By kind of card, with the windows since it was fitted; shared by all who ask.
    pooled: BTreeMap<String, (Arc<Pooled>, u32)>,
    /// The other methods' own.
    learner: Learner,
    /// What undeclared jobs with windows are like.
    likes: BTreeMap<JobId, Option<Like>>,
    /// Kinds of card that the cluster has.
    kinds: BTreeSet<String>,
}

impl Predictor {
    /// A predictor that knows nothing yet.
    #[must_use]
    pub fn new(config: PredictorConfig) -> Self {
        Self {
            learner: Learner::new(config.method),
            likes: BTreeMap::new(),
            kinds: BTreeSet::new(),
            config,
            jobs: BTreeMap::new(),
            models: BTreeMap::new(),
            classes: BTreeMap::new(),
            cards: Cards::default(),
            history: History::default(),
            calibration: Calibration::default(),
            pooled: BTreeMap::new(),
        }
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

    /// What `job` is declared to be.
    #[must_use]
    pub fn workload_of(&self, job: &JobId) -> Option<&WorkloadId> {
        self.jobs.get(job)?.workload.as_ref()
    }

    /// The jobs of `class` that have no window of their own yet: all that is said of them is said
    /// of their class.
    pub fn unseen_of<'a>(&'a self, class: &'a WorkloadId) -> impl Iterator<Item = &'a JobId> {
        let unseen = |job: &Job| job.workload.as_ref() == Some(class) && job.windows().is_empty();
        self.jobs.iter().filter(move |(_, job)| unseen(job)).map(|(id, _)| id)
    }

    /// Every job it knows.
    pub fn jobs(&self) -> impl Iterator<Item = &JobId> {
        self.jobs.keys()
    }

    /// Kinds of card that the cluster has, as far as [`Self::kind_is_there`] has said.
    #[must_use]
    pub fn kinds(&self) -> &BTreeSet<String> {
        &self.kinds
    }

    /// The cluster has cards of this kind. True where that is new; as many are remembered as one
    /// message speaks of ([`Self::surface_on_all`]).
    pub fn kind_is_there(&mut self, kind: &str) -> bool {
        let known = self.kinds.contains(kind) || self.kinds.len() >= surface::GPU_TYPES_MAX;
        if known || id::check(kind).is_err() {
            return false;
        }
        self.cards.restore(kind);
        self.kinds.insert(kind.to_owned())
    }

    /// Takes down what a job's owner says of it. True where that was new.
    pub fn describe(
        &mut self,
        now: Timestamp,
        job: JobId,
        workload: Option<WorkloadId>,
        gpus: GpuRequest,
        gpu_type: Option<&str>,
    ) -> bool {
        let gpus = GpuRequest { min: gpus.min.max(1), max: gpus.max.max(gpus.min).max(1) };
        let kind = gpu_type.filter(|k| id::check(k).is_ok());
        let fresh = Job::new(now, workload.clone(), gpus, kind.map(str::to_owned));
        let known = self.enter(job.clone(), fresh);
        let new = !known.described || known.workload != workload || known.gpus != gpus;
        known.described = true;
        known.gpus = gpus;
        if known.gpu_type.is_none() {
            known.gpu_type = kind.map(str::to_owned);
        }
        let before = std::mem::replace(&mut known.workload, workload.clone());
        if before != workload {
            self.uncount(before.as_ref());
            self.count(workload.as_ref());
            self.liken(&job);
        }
        new
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
        self.learn_all(now, std::slice::from_ref(window)).pop().unwrap_or(Learned::Nothing)
    }

    /// Learns from windows that come at once: they are scored by what was known before them, and
    /// each job is fitted once, after the last of them. What came of each, in their order.
    pub fn learn_all(&mut self, now: Timestamp, windows: &[JobWindow]) -> Vec<Learned> {
        self.score(windows);
        let learned: Vec<Learned> = windows.iter().map(|w| self.take_in(now, w)).collect();
        let new = windows.iter().zip(&learned).filter(|(_, l)| **l == Learned::Something);
        let jobs: BTreeSet<(&JobId, &str)> =
            new.map(|(w, _)| (&w.job, w.gpu_type.as_str())).collect();
        for (job, kind) in &jobs {
            self.refit(now, job, kind);
        }
        let kinds: BTreeSet<&str> = jobs.iter().map(|(_, kind)| *kind).collect();
        for kind in kinds {
            let windows = jobs.iter().filter(|(_, k)| *k == kind).count();
            self.repool(kind, windows as u32);
        }
        learned
    }

    /// Keeps a window among its job's, without fitting anything.
    fn take_in(&mut self, now: Timestamp, window: &JobWindow) -> Learned {
        let observation = match Observation::of(window, |job| self.neighbour_class(job)) {
            Ok(observation) => observation,
            Err(why) => return Learned::Unusable(why),
        };
        let kind = window.gpu_type.clone();
        let max = self.config.windows_per_job_max as usize;
        let request = GpuRequest::exactly(observation.gpus);
        let fresh = Job::new(now, window.workload.clone(), request, Some(kind.clone()));
        self.cards.see(&kind, &observation);
        let job = self.enter(window.job.clone(), fresh);
        job.heard_at_us = job.heard_at_us.max(now);
        if job.gpu_type.as_ref() != Some(&kind) {
            job.start_over();
            job.gpu_type = Some(kind);
        }
        let named = job.workload.is_none() && window.workload.is_some();
        if named {
            job.workload.clone_from(&window.workload);
        }
        let added = job.add(observation, max);
        if named {
            self.count(window.workload.as_ref());
        }
        if added { Learned::Something } else { Learned::Nothing }
    }

    /// What is expected of `job` in every configuration it could run in; `None` for a job that was
    /// neither described nor seen.
    #[must_use]
    pub fn surface(&self, now: Timestamp, job: &JobId) -> Option<Surface> {
        Some(self.surface_of(now, job, self.jobs.get(job)?))
    }

    /// The same, with what is expected of it on each other kind of GPU that the cluster has.
    #[must_use]
    pub fn surface_on_all(&self, now: Timestamp, job: &JobId) -> Option<Surface> {
        let own = self.surface(now, job)?;
        let others = self.kinds.iter().filter(|kind| **kind != own.gpu_type);
        let others = others.filter_map(|kind| self.surface_elsewhere(now, job, kind));
        // Its own may be one that no node has any more.
        let mut points = own.points.len();
        let has_room = |other: &Surface| {
            points += other.points.len();
            points <= surface::POINTS_MAX
        };
        let elsewhere = others.take(surface::GPU_TYPES_MAX - 1).take_while(has_room).collect();
        Some(Surface { other_gpu_types: elsewhere, ..own })
    }

    /// What is expected of `job` on another kind of GPU than its own: what is known of its class
    /// there, since no window of its own says anything of it.
    #[must_use]
    pub fn surface_elsewhere(&self, now: Timestamp, job: &JobId, kind: &str) -> Option<Surface> {
        let known = self.jobs.get(job)?;
        let class = self.class_of(job, known);
        let twin = Job::new(now, class, known.gpus, Some(kind.to_owned()));
        // A name of nobody's, so that nothing that was fitted to the job itself is read.
        let nobody = JobId::new("--elsewhere--").ok()?;
        Some(Surface { job: job.clone(), probe: None, ..self.surface_of(now, &nobody, &twin) })
    }

    fn surface_of(&self, now: Timestamp, job: &JobId, known: &Job) -> Surface {
        let kind = self.kind_of(known);
        let card = self.cards.card(kind);
        let axis = self.axis();
        let taken_for = self.class_of(job, known);
        let kept = self.class_seen(job, known, kind, taken_for.as_ref());
        let class = kept.as_deref();
        let mut sets: Vec<Vec<WorkloadId>> = Vec::new();
        let seen = class.into_iter().flat_map(|c| &c.jobs).flat_map(|(_, s)| &s.shared);
        let own = self.models.get(job);
        for set in own.into_iter().flat_map(|m| &m.shared).chain(seen) {
            if !sets.contains(&set.neighbours) {
                sets.push(set.neighbours.clone());
            }
        }
        let profiles = self.profiles(kind, axis.iter().chain(sets.iter().flatten()));
        let model = self.model_of(job, known, kind, &card);
        let mut shapes: Vec<(u32, u32)> =
            known.windows().iter().rev().map(|w| (w.gpus, w.nodes)).collect();
        shapes.sort_unstable();
        shapes.dedup();
        let max = self.config.points_max as usize;
        let pooled = self.pooled(kind);
        let batches = known.other_batches(class);
        let axes = Axes { card: &card, clocks_seen: model.held.clocks(), batches_seen: &batches };
        let wanted = configurations(known.gpus, &shapes, &sets, &axis, axes, max);
        let learned = self.learned_points((job, known), (kind, &card), &wanted);
        let points = learned.unwrap_or_else(|| {
            Question::new(&model, &card, class, &profiles, &pooled).points(&wanted)
        });
        let points = self.calibrated(job, known, (kind, &card), &wanted, points);
        Surface {
            job: job.clone(),
            predictor: self.config.name.clone(),
            at_us: now,
            gpu_type: kind.to_owned(),
            windows: model.windows,
            basis: Some(self.basis(job, known, kind, &model)),
            class: taken_for,
            utilization_gpu_percent: model.busy_seen.then_some(100.0 * model.busy.mean),
            utilization_memory_percent: model.memory_busy.map(|m| 100.0 * m),
            memory_mib_max: model.memory_mib,
            points,
            other_gpu_types: Vec::new(),
            probe: probe::propose(&self.config, known, &card, |what_if, wanted| {
                let model = self.fit(job, what_if, kind, &card);
                Question::new(&model, &card, class, &profiles, &pooled).points(wanted)
            }),
        }
    }

    /// What is expected of `job` in one configuration.
    #[must_use]
    pub fn predict(&self, job: &JobId, at: &Configuration) -> Option<SurfacePoint> {
        self.predict_all(job, std::slice::from_ref(at))?.pop()
    }

    /// What is expected of `job` in each of `wanted`; quickest where equal neighbours follow each
    /// other.
    #[must_use]
    pub fn predict_all(&self, job: &JobId, wanted: &[Configuration]) -> Option<Vec<SurfacePoint>> {
        let known = self.jobs.get(job)?;
        let kind = self.kind_of(known);
        let card = self.cards.card(kind);
        let points = self.raw_points(job, known, (kind, &card), wanted);
        Some(self.calibrated(job, known, (kind, &card), wanted, points))
    }

    /// What the models expect of `job`, with the intervals they claim.
    fn raw_points(
        &self,
        job: &JobId,
        known: &Job,
        (kind, card): (&str, &Card),
        wanted: &[Configuration],
    ) -> Vec<SurfacePoint> {
        if wanted.is_empty() {
            return Vec::new();
        }
        if let Some(points) = self.learned_points((job, known), (kind, card), wanted) {
            return points;
        }
        let taken_for = self.class_of(job, known);
        let kept = self.class_seen(job, known, kind, taken_for.as_ref());
        let class = kept.as_deref();
        let profiles = self.profiles(kind, wanted.iter().flat_map(|at| &at.neighbours));
        let model = self.model_of(job, known, kind, card);
        let pooled = self.pooled(kind);
        Question::new(&model, card, class, &profiles, &pooled).points(wanted)
    }

    /// Forgets `job`; what it taught of its class stays. True where it was known.
    pub fn forget(&mut self, job: &JobId) -> bool {
        self.bequeath(job);
        self.models.remove(job);
        let Some(gone) = self.jobs.remove(job) else { return false };
        self.uncount(gone.workload.as_ref());
        self.liken(job);
        true
    }

    /// What is kept of `job`, to be stored.
    #[must_use]
    pub fn knowledge_of(&self, job: &JobId) -> Option<&Job> {
        self.jobs.get(job)
    }

    /// Takes in a job as it was stored; false where it is not such as this version stores, or a
    /// newer description is known.
    pub fn restore_job(&mut self, job: JobId, stored: Job) -> bool {
        let kind = stored.gpu_type.clone();
        let max = self.config.windows_per_job_max as usize;
        if self.jobs.contains_key(&job) || !stored.is_sane(max) {
            return false;
        }
        if let Some(kind) = kind.filter(|k| id::check(k).is_ok()) {
            for window in stored.windows() {
                self.cards.see(&kind, window);
            }
        }
        self.enter(job.clone(), stored);
        if let Some(kind) = self.jobs.get(&job).and_then(|j| j.gpu_type.clone()) {
            let card = self.cards.card(&kind);
            self.teach(&job, &kind, &card);
        }
        true
    }

    /// Takes in a class as it was stored; false where it is not such as this version stores.
    pub fn restore_class(&mut self, kind: &str, class: WorkloadId, stored: Class) -> bool {
        let max = self.config.classes_max as usize;
        let fine = self.history.restore(kind, class.clone(), stored, max);
        if fine {
            self.cards.restore(kind);
            if let Some(kept) = self.history.class(kind, &class).cloned() {
                self.restore(kind, &class, &kept);
            }
            self.pool_now(kind);
        }
        fine
    }

    /// Classes changed since the last call, to be stored.
    pub fn take_changed_classes(&mut self) -> Vec<(String, WorkloadId, Class)> {
        self.history.take_changed()
    }

    /// The job's entry, `fresh` where there was none; the one not heard of for longest makes room.
    fn enter(&mut self, job: JobId, fresh: Job) -> &mut Job {
        if !self.jobs.contains_key(&job) {
            while self.jobs.len() >= self.config.jobs_max as usize {
                let oldest = self.jobs.iter().min_by_key(|(_, j)| j.heard_at_us);
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

    fn kind_of<'a>(&'a self, job: &'a Job) -> &'a str {
        job.gpu_type
            .as_deref()
            .or(self.config.gpu_type_default.as_deref())
            .or(self.cards.newest())
            .unwrap_or("unknown")
    }

    /// The neighbours' axis: the classes most jobs are of, and the unknown one, sorted.
    fn axis(&self) -> Vec<WorkloadId> {
        let mut most: Vec<(&WorkloadId, &usize)> = self.classes.iter().collect();
        if most.len() > NEIGHBOUR_CLASSES_MAX {
            most.select_nth_unstable_by(NEIGHBOUR_CLASSES_MAX, |a, b| {
                b.1.cmp(a.1).then(a.0.cmp(b.0))
            });
            most.truncate(NEIGHBOUR_CLASSES_MAX);
        }
        let mut axis: Vec<WorkloadId> = most.into_iter().map(|(class, _)| class.clone()).collect();
        axis.push(unknown());
        axis.sort();
        axis.dedup();
        axis
    }

    fn profiles<'a>(&self, kind: &str, classes: impl Iterator<Item = &'a WorkloadId>) -> Profiles {
        let mut profiles = Profiles::new();
        for class in classes {
            if !profiles.contains_key(class) {
                let kept = self.history.profile(kind, class, None);
                profiles.insert(class.clone(), kept.unwrap_or_default());
            }
        }
        profiles
    }

    fn pooled(&self, kind: &str) -> Arc<Pooled> {
        let known = self.pooled.get(kind).map(|(pooled, _)| Arc::clone(pooled));
        known.unwrap_or_else(|| Arc::new(Pooled::believed()))
    }

    fn model_of(&self, id: &JobId, job: &Job, kind: &str, card: &Card) -> Cow<'_, JobModel> {
        match self.models.get(id) {
            Some(model) => Cow::Borrowed(model),
            None => Cow::Owned(self.fit(id, job, kind, card)),
        }
    }

    fn fit(&self, id: &JobId, job: &Job, kind: &str, card: &Card) -> JobModel {
        let class = self.class_of(id, job);
        let class = class.and_then(|w| self.history.profile(kind, &w, Some(id)));
        let class = class.unwrap_or_default();
        let profiles = self.profiles(kind, job.windows().iter().flat_map(|w| &w.neighbours));
        let pooled = Pooled::without(self.pooled(kind), id);
        JobModel::fit(job, Context { card, class: &class, profiles: &profiles, pooled: &pooled })
    }

    /// Fits a job's models anew and tells its class.
    fn refit(&mut self, now: Timestamp, id: &JobId, kind: &str) {
        self.liken(id);
        let card = self.cards.card(kind);
        let Some(job) = self.jobs.get(id) else { return };
        let model = self.fit(id, job, kind, &card);
        if let Some(class) = &job.workload {
            let max = self.config.classes_max as usize;
            self.history.remember(now, kind, class, id, model.summary(job), max);
        }
        self.models.insert(id.clone(), model);
        self.teach(id, kind, &card);
    }

    /// Fits anew what is pooled over jobs, wherever windows came since. What is pooled is otherwise
    /// fitted anew every so many windows.
    pub fn refit_pooled(&mut self) {
        self.learner.refit_all();
        let kinds: Vec<String> = self.pooled.keys().cloned().collect();
        for kind in kinds {
            let behind = |(pooled, waited): &(Arc<Pooled>, u32)| {
                *waited > 0 || pooled.is_behind(&self.history, &kind)
            };
            if self.pooled.get(&kind).is_some_and(behind) {
                let pooled = Arc::new(Pooled::fit(&self.history, &kind, None));
                self.pooled.insert(kind, (pooled, 0));
            }
        }
    }

    fn repool(&mut self, kind: &str, news: u32) {
        let waited = self.pooled.get_mut(kind).map_or(POOL_EVERY, |(_, waited)| {
            *waited += news;
            *waited
        });
        let few = self.history.len() < POOL_EAGER;
        if few || waited >= POOL_EVERY {
            self.pool_now(kind);
        }
    }

    fn pool_now(&mut self, kind: &str) {
        // As bounded as the kinds of card are.
        if self.pooled.len() >= GPU_TYPES_MAX && !self.pooled.contains_key(kind) {
            return;
        }
        let before = self.pooled.get(kind).map(|(pooled, _)| &**pooled);
        let pooled = Pooled::fit(&self.history, kind, before);
        self.pooled.insert(kind.to_owned(), (Arc::new(pooled), 0));
    }

    /// What it rests on, for people.
    fn basis(&self, id: &JobId, job: &Job, kind: &str, model: &JobModel) -> String {
        let own = self.learner.basis(kind, job, id);
        let own = own.unwrap_or_else(|| self.physical_basis(job, kind, model));
        match self.like_of(id, job).filter(|like| like.sure) {
            Some(like) => {
                // Never certain: the metric itself is a belief.
                let percent = (100.0 * like.probability).min(99.0);
                format!("{own}, like {} ({percent:.0} %)", like.class)
            }
            None => own,
        }
    }

    fn physical_basis(&self, job: &Job, kind: &str, model: &JobModel) -> String {
        let class = job.workload.as_ref();
        let jobs = class.and_then(|w| self.history.class(kind, w)).map_or(0, |c| c.jobs.len());
        match (model.windows, class) {
            (1.., _) => format!("{} windows of this job on {kind}", model.windows),
            (0, Some(class)) if jobs > 0 => format!("prior: {jobs} jobs of {class} seen on {kind}"),
            (0, class) => {
                let carried = kind != prior::POWER_MEASURED_ON;
                match prior::power_share(class.map(WorkloadId::as_str), carried).1 {
                    Some(word) => format!("prior: power as {word} on another kind of card"),
                    // The curves under caps were partly believed from this very kind.
                    None if !carried => {
                        format!("prior: nothing like it was seen; cap curve partly from {kind}")
                    }
                    None => "prior: nothing like it was seen".to_owned(),
                }
            }
        }
    }
}
