//! The contest of predictors: who serves, how well each one foretells, what stands where one fails.
//!
//! Every predictor proposes surfaces; this machine passes the champion's on to the placer, and
//! scores what each had said of a job against the windows that then come. It never promotes by
//! itself. A champion that is gone, silent or talking nonsense is replaced by its own last good
//! surface, which simply stands, and after a while by a prior, which knows only what the job's
//! owner says; whoever looks is told.
//!
//! [`proposal`] checks and keeps what was said, [`score`] keeps how well it came true. The machine
//! reads no clock and does no I/O; [`service`] joins it with the bus. It knows nothing of how any
//! predictor works.

pub mod config;
mod contestant;
mod jobs;
#[cfg(feature = "service")]
pub mod lease;
pub mod proposal;
pub mod score;
#[cfg(feature = "service")]
pub mod service;

use std::collections::{BTreeMap, VecDeque};

use wattle_common::id::{JobId, PredictorId, WorkloadId};
use wattle_common::job::GpuRequest;
use wattle_common::messages::{Champion, JobWindow, PredictorState, PredictorStatus, Surface};
use wattle_common::{Machine, Timestamp};

use crate::config::PredictorConfig;
use crate::gpu_types::GpuTypes;
use crate::observation::Observation;
use crate::predictor::Predictor;
use config::RegistryConfig;
use contestant::{Contestant, clock};
use jobs::{Job, Standing};
use score::Record;

/// Ended jobs remembered: what is proposed after a job's end must not bring its surface back.
const ENDED_MAX: usize = 4_096;
/// Priors written at one waking, so that a large cluster's do not hold up everything else.
const PRIORS_AT_ONCE: usize = 64;

/// What happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A predictor proposed a surface, on the subject of `predictor` and `job`.
    Proposed {
        /// Who.
        predictor: PredictorId,
        /// Of which job.
        job: JobId,
        /// The surface, or why it cannot be read.
        surface: Result<Box<Surface>, String>,
    },
    /// A window was closed.
    WindowClosed(Box<JobWindow>),
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
        /// Whether it has ever been started.
        started: bool,
    },
    /// A job has ended, in whatever way.
    JobEnded(JobId),
    /// A surface of this job stood already when the registry started.
    SurfaceStands(JobId),
    /// These predictors answer as services, with their versions.
    ServicesFound(BTreeMap<PredictorId, String>),
    /// Somebody let this predictor serve, and it is stored.
    Promoted(Champion),
}

/// What must be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Tell the placer.
    WriteSurface(Box<Surface>),
    /// The job is no more; take its surface away.
    RemoveSurface(JobId),
    /// Write down who serves, anew or again: predictors then propose all their jobs.
    WriteChampion(Champion),
    /// Tell people how a predictor does.
    WriteStatus(Box<PredictorStatus>),
    /// Keep what its scores are made of.
    WriteScores(PredictorId, Box<Record>),
    /// Take away all that is kept of a predictor.
    Forget(PredictorId),
    /// Log it.
    Say(Notice),
}

/// What the operator is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A proposal was refused; `first`: the one before it was not.
    Refused {
        /// Whose.
        predictor: PredictorId,
        /// Of which job.
        job: JobId,
        /// What is wrong with it.
        why: String,
        /// Whether it is news.
        first: bool,
    },
    /// A predictor does better or worse than before.
    Changed {
        /// Which.
        predictor: PredictorId,
        /// Whether it serves.
        champion: bool,
        /// How it does now.
        state: PredictorState,
        /// What is wrong with it.
        trouble: Option<String>,
    },
    /// Jobs got a prior because the champion says nothing of them.
    Priors {
        /// How many.
        jobs: usize,
        /// Who should have spoken.
        champion: PredictorId,
    },
    /// There are as many predictors as may be; this one is not listened to.
    TooMany(PredictorId),
}

/// The registry, driven from outside.
#[derive(Clone, Debug)]
pub struct Registry {
    config: RegistryConfig,
    champion: Champion,
    contestants: BTreeMap<PredictorId, Contestant>,
    jobs: BTreeMap<JobId, Job>,
    scored: usize,
    ended: VecDeque<JobId>,
    cards: GpuTypes,
    /// Knows what owners say of their jobs and nothing else.
    fallback: Predictor,
    looked_at: Timestamp,
    /// The last one that was not listened to: it is said once.
    turned_away: Option<PredictorId>,
}

impl Registry {
    /// A registry with what was kept: who serves, and each predictor's record.
    #[must_use]
    pub fn new(
        now: Timestamp,
        config: RegistryConfig,
        champion: Option<Champion>,
        records: Vec<(PredictorId, Record)>,
    ) -> Self {
        let default = || Champion { predictor: config.champion.clone(), since_us: now };
        let champion = champion.unwrap_or_else(default);
        let mut contestants = BTreeMap::new();
        contestants.insert(champion.predictor.clone(), Contestant::new(now, Record::default()));
        let max = config.predictors_max as usize;
        for (name, record) in records {
            if contestants.len() < max || contestants.contains_key(&name) {
                contestants.insert(name, Contestant::new(now, record.restored()));
            }
        }
        let fallback = Predictor::new(PredictorConfig {
            name: PredictorId::new(proposal::PRIOR).expect("letters only"),
            gpu_type_default: config.gpu_type_default.clone(),
            jobs_max: config.jobs_max,
            ..PredictorConfig::shipped()
        });
        Self {
            config,
            champion,
            contestants,
            jobs: BTreeMap::new(),
            scored: 0,
            ended: VecDeque::new(),
            cards: GpuTypes::default(),
            fallback,
            looked_at: now,
            turned_away: None,
        }
    }

    /// Who serves.
    #[must_use]
    pub fn champion(&self) -> &Champion {
        &self.champion
    }

    /// Whether `predictor` may be let serve.
    ///
    /// # Errors
    /// What is wrong and who may.
    pub fn may_promote(&self, predictor: &PredictorId) -> Result<(), String> {
        if self.contestants.contains_key(predictor) {
            return Ok(());
        }
        let names: Vec<&str> = self.contestants.keys().map(PredictorId::as_str).collect();
        Err(format!("no predictor `{predictor}`; there are: {}", names.join(", ")))
    }

    /// How `predictor` does.
    #[must_use]
    pub fn status(&self, now: Timestamp, predictor: &PredictorId) -> Option<PredictorStatus> {
        let contestant = self.contestants.get(predictor)?;
        let trouble = contestant.trouble(now, &self.config);
        Some(contestant.status(now, predictor, self.serves(predictor), trouble))
    }

    fn serves(&self, predictor: &PredictorId) -> bool {
        self.champion.predictor == *predictor
    }

    /// The predictor's entry, made where there is room.
    fn enter(
        &mut self,
        now: Timestamp,
        name: &PredictorId,
        out: &mut Vec<Action>,
    ) -> Option<&mut Contestant> {
        let full = self.contestants.len() >= self.config.predictors_max as usize;
        if full && !self.contestants.contains_key(name) {
            if self.turned_away.as_ref() != Some(name) {
                self.turned_away = Some(name.clone());
                out.push(Action::Say(Notice::TooMany(name.clone())));
            }
            return None;
        }
        let fresh = || Contestant::new(now, Record::default());
        Some(self.contestants.entry(name.clone()).or_insert_with(fresh))
    }

    /// The job's entry; the one not heard of for longest makes room.
    fn enter_job(
        &mut self,
        now: Timestamp,
        id: &JobId,
        from_birth: bool,
        out: &mut Vec<Action>,
    ) -> &mut Job {
        if !self.jobs.contains_key(id) {
            while self.jobs.len() >= self.config.jobs_max as usize {
                let oldest = self.jobs.iter().min_by_key(|(_, job)| job.heard);
                let Some(oldest) = oldest.map(|(id, _)| id.clone()) else { break };
                self.drop_job(&oldest);
                out.push(Action::RemoveSurface(oldest));
            }
        }
        self.jobs.entry(id.clone()).or_insert_with(|| Job::new(now, from_birth))
    }

    fn drop_job(&mut self, id: &JobId) -> bool {
        self.fallback.forget(id);
        self.contestants.values_mut().for_each(|contestant| contestant.forget(id));
        let Some(gone) = self.jobs.remove(id) else { return false };
        self.scored -= usize::from(gone.scored);
        true
    }

    /// Lets the job's windows be scored where there is room. Jobs that wait take half of it at
    /// most: what runs is what can be scored.
    fn let_score(&mut self, id: &JobId, runs: bool) {
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
        surface: Result<Box<Surface>, String>,
        out: &mut Vec<Action>,
    ) {
        if self.ended.contains(&id) || self.enter(now, &predictor, out).is_none() {
            return;
        }
        let checked = surface
            .and_then(|surface| proposal::check(now, &predictor, &id, &surface).map(|()| surface));
        let surface = match checked {
            Ok(surface) => surface,
            Err(why) => {
                let contestant = self.contestants.get_mut(&predictor).expect("entered above");
                contestant.refuse(now, why.clone());
                let first = contestant.record.refused == 1
                    || contestant.told.is_some_and(|(_, state)| state != PredictorState::Failing);
                out.push(Action::Say(Notice::Refused { predictor, job: id, why, first }));
                return;
            }
        };
        let job = self.enter_job(now, &id, false, out);
        job.heard = now;
        let (known, scored) = (job.known(), job.scored);
        let contestant = self.contestants.get_mut(&predictor).expect("entered above");
        contestant.propose(now, &surface, known, scored);
        if self.serves(&predictor) {
            // A prior that stands in for it speaks of the same kinds.
            for on in std::iter::once(&*surface).chain(&surface.other_gpu_types) {
                self.fallback.add_gpu_type(&on.gpu_type);
            }
            self.pass_on(surface, out);
        }
        self.tell(now, &predictor, false, out);
    }

    /// Passes the champion's surface on to the placer, where it says more than what stands.
    fn pass_on(&mut self, surface: Box<Surface>, out: &mut Vec<Action>) {
        let Some(job) = self.jobs.get_mut(&surface.job) else { return };
        let by = Some(surface.predictor.clone());
        let stands = job.standing.as_ref().filter(|standing| standing.by == by);
        if stands.is_some_and(|standing| surface.at_us <= standing.at) {
            return;
        }
        job.standing = Some(Standing { by, at: surface.at_us });
        out.push(Action::WriteSurface(surface));
    }

    fn on_window(&mut self, now: Timestamp, window: &JobWindow, out: &mut Vec<Action>) {
        let id = &window.job;
        if self.ended.contains(id) {
            return;
        }
        let class_of = |job: &JobId| self.jobs.get(job).and_then(|job| job.workload.clone());
        let Ok(seen) = Observation::of(window, class_of) else { return };
        self.cards.see(&window.gpu_type, &seen);
        self.fallback.add_gpu_type(&window.gpu_type);
        let card = self.cards.spec(&window.gpu_type);
        self.enter_job(now, id, false, out);
        self.let_score(id, true);
        let job = self.jobs.get_mut(id).expect("entered above");
        job.heard = now;
        if job.workload.is_none() {
            job.workload.clone_from(&window.workload);
        }
        let closed = window.until_us;
        if !job.is_new(&seen, closed) {
            return;
        }
        job.is_on(&window.gpu_type);
        for contestant in self.contestants.values_mut() {
            contestant.score(id, job, &window.gpu_type, &seen, closed, &card);
            contestant.ask(now, id, closed);
        }
        job.see(&seen, &card);
    }

    fn on_services(
        &mut self,
        now: Timestamp,
        found: &BTreeMap<PredictorId, String>,
        out: &mut Vec<Action>,
    ) {
        for name in found.keys() {
            self.enter(now, name, out);
        }
        for (name, contestant) in &mut self.contestants {
            contestant.looked_for(now, found.get(name).map(String::as_str));
        }
    }

    /// Says how a predictor does, where that has changed or it is time again.
    fn tell(&mut self, now: Timestamp, name: &PredictorId, anew: bool, out: &mut Vec<Action>) {
        let champion = self.serves(name);
        let interval = self.config.status_interval();
        let Some(contestant) = self.contestants.get_mut(name) else { return };
        let trouble = contestant.trouble(now, &self.config);
        let well = trouble.is_none();
        let state = Contestant::state(champion, trouble.as_ref());
        let before = contestant.told;
        let changed = before.is_none_or(|(_, before)| before != state);
        let due = before.is_none_or(|(at, _)| now.since(at) >= interval);
        if !(changed || due || anew) {
            return;
        }
        let status = contestant.status(now, name, champion, trouble);
        contestant.told = Some((now, state));
        if contestant.record != contestant.stored {
            contestant.stored = contestant.record.clone();
            out.push(Action::WriteScores(name.clone(), Box::new(contestant.record.clone())));
        }
        if changed {
            out.push(Action::Say(Notice::Changed {
                predictor: name.clone(),
                champion,
                state: status.state,
                trouble: status.error.clone(),
            }));
        }
        let was_in_trouble = before.is_some_and(|(_, state)| is_trouble(state));
        out.push(Action::WriteStatus(Box::new(status)));
        // It is asked for all its jobs: priors stand in for some of them.
        if champion && well && was_in_trouble && self.priors_stand() {
            out.push(Action::WriteChampion(self.champion.clone()));
        }
    }

    fn priors_stand(&self) -> bool {
        let prior = &self.fallback.config().name;
        let by_us = |job: &Job| job.standing.as_ref().is_some_and(|s| s.by.as_ref() == Some(prior));
        self.jobs.values().any(by_us)
    }

    /// Since when the champion owes a surface of a job so long that a prior takes its place; with
    /// what is said of it. `None`: it does not.
    fn prior_is_due(&self, now: Timestamp, id: &JobId, job: &Job) -> Option<String> {
        let name = &self.champion.predictor;
        let champion = self.contestants.get(name)?;
        let Some(standing) = &job.standing else {
            let due = now.since(job.since) >= self.config.first_after();
            return due.then(|| format!("prior: predictor {name} has said nothing of this job"));
        };
        if standing.by.as_ref() == Some(&self.fallback.config().name) {
            return None;
        }
        let since = champion.owes_since(id)?;
        // What stands may be newer than the silence: another's, from before a promotion.
        let due = now.since(since.max(self.champion.since_us)) >= self.config.prior_after();
        due.then(|| format!("prior: predictor {name} silent since {}", clock(since)))
    }

    fn give_priors(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        let due: Vec<(JobId, String)> = self
            .jobs
            .iter()
            .filter(|(_, job)| job.gpus.is_some())
            .filter_map(|(id, job)| Some((id.clone(), self.prior_is_due(now, id, job)?)))
            .take(PRIORS_AT_ONCE)
            .collect();
        let mut given = 0;
        for (id, basis) in due {
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            let Some(gpus) = job.gpus else { continue };
            let (workload, kind) = (job.workload.clone(), job.kind());
            self.fallback.describe(now, id.clone(), workload, gpus, kind);
            let prior = match &job.must_have {
                Some(_) => self.fallback.surface(now, &id),
                None => self.fallback.surface_on_all(now, &id),
            };
            let Some(mut prior) = prior else { continue };
            job.standing = Some(Standing { by: Some(prior.predictor.clone()), at: now });
            prior.basis = Some(basis);
            out.push(Action::WriteSurface(Box::new(prior)));
            given += 1;
        }
        if given > 0 {
            let champion = self.champion.predictor.clone();
            out.push(Action::Say(Notice::Priors { jobs: given, champion }));
        }
    }

    /// Drops challengers that were not heard of for long.
    fn forget_old(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        let patience = self.config.forget_after();
        let champion = &self.champion.predictor;
        self.contestants.retain(|name, contestant| {
            let keep = name == champion || now.since(contestant.last_known()) < patience;
            if !keep {
                out.push(Action::Forget(name.clone()));
            }
            keep
        });
    }

    /// How much is kept: jobs, windows that wait for an answer, proposals. For whoever checks the
    /// bounds.
    #[must_use]
    pub fn kept(&self) -> (usize, usize, usize) {
        let of_each = self.contestants.values().map(Contestant::kept);
        let (asked, said) = of_each.fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
        (self.jobs.len(), asked, said)
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
            Event::JobDescribed { job, .. } if self.ended.contains(&job) => {}
            Event::JobDescribed { job: id, workload, gpus, gpu_type, started } => {
                let job = self.enter_job(now, &id, !started, out);
                job.heard = now;
                job.gpus = Some(gpus);
                if workload.is_some() {
                    job.workload.clone_from(&workload);
                }
                job.must_have = gpu_type;
                let kind = job.kind().map(str::to_owned);
                self.fallback.describe(now, id.clone(), workload, gpus, kind.as_deref());
                self.let_score(&id, started);
            }
            Event::JobEnded(job) => {
                if self.drop_job(&job) {
                    out.push(Action::RemoveSurface(job.clone()));
                }
                if !self.ended.contains(&job) {
                    self.ended.push_back(job);
                    if self.ended.len() > ENDED_MAX {
                        self.ended.pop_front();
                    }
                }
            }
            Event::SurfaceStands(job) => {
                let standing = Standing { by: None, at: Timestamp::EPOCH };
                if let Some(job) = self.jobs.get_mut(&job) {
                    job.standing.get_or_insert(standing);
                }
            }
            Event::ServicesFound(found) => self.on_services(now, &found, out),
            Event::Promoted(champion) => {
                let before = std::mem::replace(&mut self.champion, champion);
                let after = self.champion.predictor.clone();
                self.enter(now, &after, out);
                for name in [before.predictor, after] {
                    self.tell(now, &name, true, out);
                }
            }
        }
    }

    fn wake(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        self.looked_at = now;
        self.forget_old(now, out);
        let names: Vec<PredictorId> = self.contestants.keys().cloned().collect();
        for name in names {
            self.tell(now, &name, false, out);
        }
        self.give_priors(now, out);
    }

    fn next_wake(&self) -> Option<(Timestamp, &'static str)> {
        Some((self.looked_at + self.config.tick(), "predictors are looked after"))
    }
}

/// Whether a state is one that an operator should look at.
#[must_use]
pub fn is_trouble(state: PredictorState) -> bool {
    matches!(state, PredictorState::Silent | PredictorState::Failing)
}
