//! The registry's decisions: which surface is in force, each predictor's score and state.

use std::collections::BTreeMap;

use wattle_common::bounds::{check_champion, check_window};
use wattle_common::id::{AdmissionId, JobId, PredictorId};
use wattle_common::messages::surface::GPU_TYPES_MAX;
use wattle_common::messages::{Champion, JobWindow, PredictorState, PredictorStatus, Surface};
use wattle_common::observation::{Observation, UNKNOWN};
use wattle_common::{EndedJobs, Machine, Timestamp};

use crate::check::{InvalidSurface, check};
use crate::config::RegistryConfig;
use crate::contender::{Contender, time_of_day};
use crate::event::{Action, Event, Notice};
use crate::gpu_types::GpuTypes;
use crate::job::{CurrentSurface, Job};
use crate::prior::{self, Described};
use crate::score::Record;

/// Priors written at one wake-up, so that a large cluster's do not delay other work.
const PRIORS_AT_ONCE: usize = 64;

/// A promotion names a predictor that the registry does not know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no predictor `{name}`; known predictors: {}", known.join(", "))]
pub struct UnknownPredictor {
    name: PredictorId,
    known: Vec<String>,
}

/// The registry as a [`Machine`].
#[derive(Clone, Debug)]
pub struct Registry {
    config: RegistryConfig,
    champion: Champion,
    contenders: BTreeMap<PredictorId, Contender>,
    jobs: BTreeMap<JobId, Job>,
    /// Number of jobs that are scored.
    scored: usize,
    /// Ended jobs: a late proposal does not restore a removed surface.
    ended: EndedJobs,
    gpu_types: GpuTypes,
    last_check: Timestamp,
    /// The last predictor ignored for lack of room: it is logged once.
    ignored: Option<PredictorId>,
}

impl Registry {
    /// A registry with the stored champion and records.
    #[must_use]
    pub fn new(
        now: Timestamp,
        config: RegistryConfig,
        champion: Option<Champion>,
        records: Vec<(PredictorId, Record)>,
    ) -> Self {
        let default =
            || Champion { predictor: config.champion.clone(), since_us: now, generation: 1 };
        let champion = champion.map(|stored| Champion {
            // A promotion in the future would delay priors until then.
            since_us: if check_champion(&stored, now).is_ok() { stored.since_us } else { now },
            ..stored
        });
        let champion = champion.unwrap_or_else(default);
        let mut contenders = BTreeMap::new();
        contenders.insert(champion.predictor.clone(), Contender::new(now, Record::default()));
        let max = config.predictors_max as usize;
        for (name, record) in records {
            if contenders.len() < max || contenders.contains_key(&name) {
                contenders.insert(name, Contender::new(now, record.restored()));
            }
        }
        Self {
            config,
            champion,
            contenders,
            jobs: BTreeMap::new(),
            scored: 0,
            ended: EndedJobs::default(),
            gpu_types: GpuTypes::default(),
            last_check: now,
            ignored: None,
        }
    }

    /// The champion.
    #[must_use]
    pub fn champion(&self) -> &Champion {
        &self.champion
    }

    /// Whether `predictor` can be promoted.
    ///
    /// # Errors
    /// Where the registry does not know it.
    pub fn may_promote(&self, predictor: &PredictorId) -> Result<(), UnknownPredictor> {
        if self.contenders.contains_key(predictor) {
            return Ok(());
        }
        let known = self.contenders.keys().map(|name| name.as_str().to_owned()).collect();
        Err(UnknownPredictor { name: predictor.clone(), known })
    }

    /// The status of `predictor`.
    #[must_use]
    pub fn status(&self, now: Timestamp, predictor: &PredictorId) -> Option<PredictorStatus> {
        let contender = self.contenders.get(predictor)?;
        let trouble = contender.trouble(now, &self.config);
        Some(contender.status(now, predictor, &self.champion, trouble))
    }

    /// Numbers of jobs, unanswered windows and proposals kept, for tests of the limits.
    #[must_use]
    pub fn kept(&self) -> (usize, usize, usize) {
        let kept = self.contenders.values().map(Contender::kept);
        let (windows, proposals) = kept.fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
        (self.jobs.len(), windows, proposals)
    }

    fn is_champion(&self, predictor: &PredictorId) -> bool {
        self.champion.predictor == *predictor
    }

    /// The predictor's entry, created where there is room.
    fn contender(
        &mut self,
        now: Timestamp,
        name: &PredictorId,
        out: &mut Vec<Action>,
    ) -> Option<&mut Contender> {
        let full = self.contenders.len() >= self.config.predictors_max as usize;
        if full && !self.contenders.contains_key(name) {
            if self.ignored.as_ref() != Some(name) {
                self.ignored = Some(name.clone());
                out.push(Action::Log(Notice::TooManyPredictors(name.clone())));
            }
            return None;
        }
        let new = || Contender::new(now, Record::default());
        Some(self.contenders.entry(name.clone()).or_insert_with(new))
    }

    /// Whether what is of the submission `of` of a job counts: it has not ended, and no later one is known. One
    /// that is later than the known submission begins without its surface and its windows.
    fn admit(&mut self, id: &JobId, of: Option<&AdmissionId>, out: &mut Vec<Action>) -> bool {
        let Some(known) = self.jobs.get(id) else { return !self.ended.has(id, of) };
        let known = known.admission.clone();
        if AdmissionId::replaces(known.as_ref(), of) {
            return false;
        }
        if AdmissionId::replaces(of, known.as_ref()) {
            self.on_job_ended(id.clone(), known, out);
        }
        true
    }

    /// The job's entry, updated now. A new entry displaces the job without news for longest.
    /// `complete`: no window of a new job was missed.
    fn job(
        &mut self,
        now: Timestamp,
        id: &JobId,
        complete: bool,
        out: &mut Vec<Action>,
    ) -> &mut Job {
        if !self.jobs.contains_key(id) {
            while self.jobs.len() >= self.config.jobs_max as usize {
                let oldest = self.jobs.iter().min_by_key(|(_, job)| job.updated);
                let Some(oldest) = oldest.map(|(id, _)| id.clone()) else { break };
                self.drop_job(&oldest);
                out.push(Action::RemoveSurface(oldest));
            }
        }
        let job = self.jobs.entry(id.clone()).or_insert_with(|| Job::new(now, complete));
        job.updated = now;
        job
    }

    fn drop_job(&mut self, id: &JobId) -> bool {
        self.contenders.values_mut().for_each(|contender| contender.forget(id));
        let Some(gone) = self.jobs.remove(id) else { return false };
        self.scored -= usize::from(gone.scored);
        true
    }

    /// Selects the job for scoring where there is room. Queued jobs fill at most half of it, since
    /// only running jobs produce windows.
    fn select_for_scoring(&mut self, id: &JobId, runs: bool) {
        let max = self.config.jobs_scored_max as usize;
        let max = if runs { max } else { max.div_ceil(2) };
        if self.scored < max
            && let Some(job) = self.jobs.get_mut(id)
            && !job.scored
        {
            job.scored = true;
            self.scored += 1;
        }
    }

    fn on_proposal(
        &mut self,
        now: Timestamp,
        predictor: PredictorId,
        id: JobId,
        surface: Result<Box<Surface>, InvalidSurface>,
        out: &mut Vec<Action>,
    ) {
        let of = surface.as_ref().ok().and_then(|surface| surface.admission.clone());
        if !self.admit(&id, of.as_ref(), out) || self.contender(now, &predictor, out).is_none() {
            return;
        }
        let checked =
            surface.and_then(|surface| check(now, &predictor, &id, &surface).map(|()| surface));
        let surface = match checked {
            Ok(surface) => surface,
            Err(error) => {
                let contender = self.contenders.get_mut(&predictor).expect("entered above");
                contender.refuse(now, error.clone());
                let first = contender.record.refused == 1
                    || contender
                        .reported
                        .is_some_and(|(_, state)| state != PredictorState::Failing);
                out.push(Action::Log(Notice::Refused { predictor, job: id, error, first }));
                return;
            }
        };
        let job = self.job(now, &id, false, out);
        job.admission = job.admission.take().or(of);
        let (known, scored) = (job.known(), job.scored);
        let contender = self.contenders.get_mut(&predictor).expect("entered above");
        contender.propose(now, &surface, known, scored);
        if self.is_champion(&predictor) {
            for on in std::iter::once(&*surface).chain(&surface.other_gpu_types) {
                self.gpu_types.add(&on.gpu_type);
            }
            self.put_in_force(surface, out);
        }
        self.report(now, &predictor, false, out);
    }

    /// Writes the champion's surface for the placer, unless the one in force is as new.
    fn put_in_force(&mut self, surface: Box<Surface>, out: &mut Vec<Action>) {
        let Some(job) = self.jobs.get_mut(&surface.job) else { return };
        let by = Some(surface.predictor.clone());
        let current = job.surface.as_ref().filter(|current| current.by == by);
        if current.is_some_and(|current| surface.at_us <= current.at) {
            return;
        }
        job.surface = Some(CurrentSurface { by, at: surface.at_us });
        out.push(Action::WriteSurface(surface));
    }

    fn on_window(&mut self, now: Timestamp, window: &JobWindow, out: &mut Vec<Action>) {
        let id = &window.job;
        // Predictors log the error.
        if check_window(window, now).is_err() || !self.admit(id, window.admission.as_ref(), out) {
            return;
        }
        let class_of = |job: &JobId| self.jobs.get(job).and_then(|job| job.workload.clone());
        let Ok(observed) = Observation::of(window, class_of) else { return };
        self.gpu_types.update(&window.gpu_type, &observed);
        let gpu = self.gpu_types.get(&window.gpu_type);
        self.job(now, id, false, out);
        self.select_for_scoring(id, true);
        let job = self.jobs.get_mut(id).expect("entered above");
        job.admission = job.admission.take().or_else(|| window.admission.clone());
        if job.workload.is_none() {
            job.workload.clone_from(&window.workload);
        }
        let closed = window.until_us;
        if !job.is_new(&observed, closed) {
            return;
        }
        job.set_gpu_type(&window.gpu_type);
        for contender in self.contenders.values_mut() {
            contender.score((id, job), (&window.gpu_type, &gpu), &observed, closed);
            contender.expect_answer(now, id, closed);
        }
        job.observe(&observed, &gpu);
    }

    fn on_services(
        &mut self,
        now: Timestamp,
        found: &BTreeMap<PredictorId, String>,
        out: &mut Vec<Action>,
    ) {
        for name in found.keys() {
            self.contender(now, name, out);
        }
        for (name, contender) in &mut self.contenders {
            contender.discovered(now, found.get(name).map(String::as_str));
        }
    }

    /// Writes a predictor's status where its state changed, the report is due, or `always`.
    fn report(&mut self, now: Timestamp, name: &PredictorId, always: bool, out: &mut Vec<Action>) {
        let champion = self.is_champion(name);
        let interval = self.config.status_interval();
        let Some(contender) = self.contenders.get_mut(name) else { return };
        let trouble = contender.trouble(now, &self.config);
        let healthy = trouble.is_none();
        let state = Contender::state(champion, trouble.as_ref());
        let before = contender.reported;
        let changed = before.is_none_or(|(_, before)| before != state);
        let due = before.is_none_or(|(at, _)| now.since(at) >= interval);
        if !(changed || due || always) {
            return;
        }
        let status = contender.status(now, name, &self.champion, trouble);
        contender.reported = Some((now, state));
        if contender.record != contender.stored {
            contender.stored = contender.record.clone();
            out.push(Action::WriteScores(name.clone(), Box::new(contender.record.clone())));
        }
        if changed {
            out.push(Action::Log(Notice::StateChanged {
                predictor: name.clone(),
                champion,
                state: status.state,
                trouble: status.error.clone(),
            }));
        }
        let recovered = healthy && before.is_some_and(|(_, state)| is_trouble(state));
        out.push(Action::WriteStatus(Box::new(status)));
        // Writing the champion makes it propose all its jobs, which replaces the priors.
        if champion && recovered && self.has_priors() {
            out.push(Action::WriteChampion(self.champion.clone()));
        }
    }

    fn has_priors(&self) -> bool {
        self.jobs.values().any(has_prior)
    }

    /// The basis of the prior that replaces the job's surface; `None` where none is due.
    fn prior_due(&self, now: Timestamp, id: &JobId, job: &Job) -> Option<String> {
        let name = &self.champion.predictor;
        let champion = self.contenders.get(name)?;
        if job.surface.is_none() {
            let due = now.since(job.since) >= self.config.first_prior_after();
            return due.then(|| format!("prior: predictor {name} has proposed no surface"));
        }
        if has_prior(job) {
            return None;
        }
        let since = champion.overdue_since(id)?;
        // After a promotion the timeout starts again.
        let due = now.since(since.max(self.champion.since_us)) >= self.config.prior_after();
        due.then(|| format!("prior: predictor {name} silent since {}", time_of_day(since)))
    }

    fn write_priors(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        let due: Vec<(JobId, String)> = self
            .jobs
            .iter()
            .filter(|(_, job)| job.gpus.is_some())
            .filter_map(|(id, job)| Some((id.clone(), self.prior_due(now, id, job)?)))
            .take(PRIORS_AT_ONCE)
            .collect();
        let mut written = 0;
        for (id, basis) in due {
            let Some(prior) = self.prior(now, &id, &basis) else { continue };
            if let Some(job) = self.jobs.get_mut(&id) {
                job.surface = Some(CurrentSurface { by: Some(prior::id()), at: now });
            }
            out.push(Action::WriteSurface(Box::new(prior)));
            written += 1;
        }
        if written > 0 {
            let champion = self.champion.predictor.clone();
            out.push(Action::Log(Notice::PriorsWritten { jobs: written, champion }));
        }
    }

    /// The prior of a described job on the GPU type that it requires, or else on every type.
    fn prior(&self, now: Timestamp, id: &JobId, basis: &str) -> Option<Surface> {
        let job = self.jobs.get(id)?;
        let (admission, workload) = (job.admission.as_ref(), job.workload.as_ref());
        let described = Described { job: id, admission, workload, gpus: job.gpus? };
        let on = |gpu_type: &str| {
            let gpu = self.gpu_types.get(gpu_type);
            prior::surface(now, &described, (gpu_type, &gpu), basis)
        };
        let assumed = self.config.gpu_type_default.as_deref();
        let own = job.gpu_type().or(assumed).or(self.gpu_types.newest()).unwrap_or(UNKNOWN);
        let mut surface = on(own);
        if job.gpu_type_required.is_none() {
            let others = self.gpu_types.names().filter(|name| *name != own);
            surface.other_gpu_types = others.take(GPU_TYPES_MAX - 1).map(on).collect();
        }
        Some(surface)
    }

    /// Removes challengers without a sign of life.
    fn remove_lost(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        let timeout = self.config.forget_after();
        let champion = &self.champion.predictor;
        self.contenders.retain(|name, contender| {
            let keep = name == champion || now.since(contender.last_known()) < timeout;
            if !keep {
                out.push(Action::RemovePredictor(name.clone()));
            }
            keep
        });
    }

    fn on_job_ended(&mut self, job: JobId, admission: Option<AdmissionId>, out: &mut Vec<Action>) {
        let known = self.jobs.get(&job).and_then(|known| known.admission.clone());
        if AdmissionId::replaces(known.as_ref(), admission.as_ref()) {
            return;
        }
        if self.drop_job(&job) {
            out.push(Action::RemoveSurface(job.clone()));
        }
        self.ended.insert(job, admission.or(known));
    }

    fn on_promotion(&mut self, now: Timestamp, champion: Champion, out: &mut Vec<Action>) {
        let before = std::mem::replace(&mut self.champion, champion);
        let after = self.champion.predictor.clone();
        self.contender(now, &after, out);
        for name in [before.predictor, after] {
            self.report(now, &name, true, out);
        }
    }
}

impl Machine for Registry {
    type Event = Event;
    type Action = Action;

    fn handle(&mut self, now: Timestamp, event: Event, out: &mut Vec<Action>) {
        match event {
            Event::Proposed { predictor, job, surface } => {
                self.on_proposal(now, predictor, job, surface, out);
            }
            Event::WindowClosed(window) => self.on_window(now, &window, out),
            Event::JobDescribed { job, admission, .. }
                if !self.admit(&job, admission.as_ref(), out) => {}
            Event::JobDescribed { job: id, admission, workload, gpus, gpu_type, started } => {
                let job = self.job(now, &id, !started, out);
                job.admission = admission.or(job.admission.take());
                job.gpus = Some(gpus);
                if workload.is_some() {
                    job.workload = workload;
                }
                job.gpu_type_required = gpu_type;
                self.select_for_scoring(&id, started);
            }
            Event::JobEnded(job, admission) => self.on_job_ended(job, admission, out),
            Event::SurfaceFound(id, of) => {
                let found = CurrentSurface { by: None, at: Timestamp::EPOCH };
                let Some(job) = self.jobs.get_mut(&id) else { return };
                if AdmissionId::may_be(job.admission.as_ref(), of.as_ref()) {
                    job.surface.get_or_insert(found);
                } else if job.surface.is_none() {
                    out.push(Action::RemoveSurface(id));
                }
            }
            Event::ServicesFound(found) => self.on_services(now, &found, out),
            Event::Promoted(champion) => self.on_promotion(now, champion, out),
        }
    }

    fn wake(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        self.last_check = now;
        self.remove_lost(now, out);
        let names: Vec<PredictorId> = self.contenders.keys().cloned().collect();
        for name in names {
            self.report(now, &name, false, out);
        }
        self.write_priors(now, out);
    }

    fn next_wake(&self) -> Option<(Timestamp, &'static str)> {
        Some((self.last_check + self.config.check_interval(), "periodic check of predictors"))
    }
}

fn has_prior(job: &Job) -> bool {
    let by = job.surface.as_ref().and_then(|surface| surface.by.as_ref());
    by.is_some_and(|by| by.as_str() == prior::PRIOR)
}

/// Whether a state needs an operator's attention.
#[must_use]
pub fn is_trouble(state: PredictorState) -> bool {
    matches!(state, PredictorState::Silent | PredictorState::Failing)
}
