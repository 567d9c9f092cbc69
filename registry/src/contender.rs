//! One predictor as the registry sees it: its proposals, unanswered windows and state.

use std::collections::BTreeMap;

use wattle_common::Timestamp;
use wattle_common::id::{JobId, PredictorId};
use wattle_common::messages::{Champion, PredictorState, PredictorStatus, Surface};
use wattle_common::observation::Observation;

use crate::check::InvalidSurface;
use crate::config::RegistryConfig;
use crate::gpu_types::GpuType;
use crate::job::Job;
use crate::proposal::{Known, Proposal};
use crate::score::Record;

/// Consecutive refusals after which a predictor is failing.
const REFUSALS_MAX: u32 = 3;
/// Consecutive discoveries without it after which a predictor's service is gone: one answer may be
/// lost.
const MISSES_MAX: u32 = 2;

/// The first window of a job since the predictor's last proposal for it.
#[derive(Clone, Copy, Debug)]
struct Unanswered {
    /// End of the window.
    closed: Timestamp,
    /// When it arrived.
    since: Timestamp,
}

/// A state that needs attention, with its cause.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Trouble {
    pub(crate) state: PredictorState,
    pub(crate) cause: String,
}

/// Consecutive refused proposals.
#[derive(Clone, Debug, Default)]
struct Refusals {
    count: u32,
    since: Timestamp,
    last: Option<InvalidSurface>,
}

/// One predictor: the champion or a challenger.
#[derive(Clone, Debug)]
pub(crate) struct Contender {
    known_since: Timestamp,
    version: Option<String>,
    registered: bool,
    misses: u32,
    gone_since: Option<Timestamp>,
    /// Last sign of life.
    last_seen: Option<Timestamp>,
    last_proposal: Option<Timestamp>,
    refusals: Refusals,
    /// By job; bounded with the registry's jobs.
    unanswered: BTreeMap<JobId, Unanswered>,
    /// The newest proposal and its predecessor, of the jobs that are scored.
    proposals: BTreeMap<JobId, (Proposal, Option<Proposal>)>,
    pub(crate) record: Record,
    /// The last report: when, and which state.
    pub(crate) reported: Option<(Timestamp, PredictorState)>,
    /// The record as last stored.
    pub(crate) stored: Record,
}

impl Contender {
    pub(crate) fn new(now: Timestamp, record: Record) -> Self {
        Self {
            known_since: now,
            version: None,
            registered: false,
            misses: 0,
            gone_since: None,
            last_seen: None,
            last_proposal: None,
            refusals: Refusals::default(),
            unanswered: BTreeMap::new(),
            proposals: BTreeMap::new(),
            stored: record.clone(),
            record,
            reported: None,
        }
    }

    /// Its last sign of life, or when it was first known.
    pub(crate) fn last_known(&self) -> Timestamp {
        self.last_seen.map_or(self.known_since, |seen| seen.max(self.known_since))
    }

    /// Records a discovery of services: its version, or `None` where it did not answer.
    pub(crate) fn discovered(&mut self, now: Timestamp, version: Option<&str>) {
        match version {
            Some(version) => {
                self.version = Some(version.to_owned());
                self.registered = true;
                self.misses = 0;
                self.gone_since = None;
                self.last_seen = Some(now);
            }
            None if self.registered => {
                self.misses += 1;
                if self.misses >= MISSES_MAX && self.gone_since.is_none() {
                    self.gone_since = Some(now);
                }
            }
            None => {}
        }
    }

    /// Records a refused proposal.
    pub(crate) fn refuse(&mut self, now: Timestamp, error: InvalidSurface) {
        self.last_seen = Some(now);
        self.record.refused += 1;
        if self.refusals.count == 0 {
            self.refusals.since = now;
        }
        self.refusals.count = self.refusals.count.saturating_add(1);
        self.refusals.last = Some(error);
    }

    /// Records a valid proposal. One that is not newer than the last only counts as a sign of life.
    pub(crate) fn propose(
        &mut self,
        now: Timestamp,
        surface: &Surface,
        known: Known,
        scored: bool,
    ) {
        self.last_seen = Some(now);
        self.refusals.count = 0;
        (self.gone_since, self.misses) = (None, 0);
        let before = self.proposals.get(&surface.job);
        if before.is_some_and(|(last, _)| surface.at_us <= last.at) {
            return;
        }
        self.last_proposal = Some(now);
        self.record.proposals += 1;
        if let Some(window) = self.unanswered.remove(&surface.job) {
            let took = now.since(window.closed).as_millis();
            self.record.add_latency(u64::try_from(took).unwrap_or(u64::MAX));
        }
        if scored {
            let newest = Proposal::of(surface, now, known);
            let last = self.proposals.remove(&surface.job).map(|(last, _)| last);
            self.proposals.insert(surface.job.clone(), (newest, last));
        }
    }

    /// Records that a window awaits a proposal.
    pub(crate) fn expect_answer(&mut self, now: Timestamp, job: &JobId, closed: Timestamp) {
        let window = Unanswered { closed, since: now };
        self.unanswered.entry(job.clone()).or_insert(window);
    }

    /// Scores the last proposal received before `closed` against the window.
    ///
    /// A proposal that arrived before the window's end cannot depend on the window, in whatever
    /// order the two messages came.
    pub(crate) fn score(
        &mut self,
        (id, job): (&JobId, &Job),
        (gpu_type, gpu): (&str, &GpuType),
        window: &Observation,
        closed: Timestamp,
    ) {
        let Some((last, before)) = self.proposals.get(id) else { return };
        let independent = |proposal: &&Proposal| proposal.received <= closed;
        let proposal = Some(last).into_iter().chain(before).find(independent);
        let Some(proposal) = proposal else { return };
        let Some(horizon) = job.horizon(window, proposal.known) else { return };
        let Some(predicted) = proposal.predict(gpu_type, window, gpu) else {
            self.record.uncovered += 1;
            return;
        };
        if let Some(power) = window.gpu_power_w {
            self.record.power.push(horizon, predicted.gpu_power_w, power);
        }
        let absolute = predicted.steps_per_s.filter(|_| !window.rate_inferred);
        let speed = match (absolute, window.rate) {
            (Some(predicted), Some(rate)) => Some((predicted, rate)),
            // Without a predicted or measured rate, relative speeds are compared.
            (None, Some(_)) => {
                job.relative_speed(window, gpu).map(|seen| (predicted.relative_speed, seen))
            }
            (_, None) => None,
        };
        if let Some((predicted, seen)) = speed {
            self.record.speed.push(horizon, predicted, seen);
        }
    }

    /// Drops the job's proposals and unanswered window.
    pub(crate) fn forget(&mut self, job: &JobId) {
        self.unanswered.remove(job);
        self.proposals.remove(job);
    }

    /// Numbers of unanswered windows and of proposals kept.
    pub(crate) fn kept(&self) -> (usize, usize) {
        let proposals =
            self.proposals.values().map(|(_, before)| 1 + usize::from(before.is_some()));
        (self.unanswered.len(), proposals.sum())
    }

    /// What is wrong with it, if anything.
    pub(crate) fn trouble(&self, now: Timestamp, config: &RegistryConfig) -> Option<Trouble> {
        let timeout = config.silent_after();
        let silent = |cause| Some(Trouble { state: PredictorState::Silent, cause });
        if let Some(gone) = self.gone_since {
            return silent(format!("its service is gone since {}", time_of_day(gone)));
        }
        if let (REFUSALS_MAX.., Some(error)) = (self.refusals.count, &self.refusals.last) {
            let n = self.refusals.count;
            let cause = format!("its last {n} surfaces were refused: {error}");
            return Some(Trouble { state: PredictorState::Failing, cause });
        }
        if self.last_seen.is_none() && now.since(self.known_since) >= timeout {
            return silent("no sign of life; is it running?".to_owned());
        }
        // The scan of all jobs is skipped for a predictor that proposed recently.
        let quiet = self.last_proposal.is_none_or(|at| now.since(at) >= timeout);
        let oldest = || self.unanswered.values().map(|window| window.since).min();
        let oldest = quiet.then(oldest).flatten();
        if let Some(oldest) = oldest.filter(|oldest| now.since(*oldest) >= timeout) {
            let n = self.unanswered.len();
            let windows =
                if n == 1 { "a window of 1 job" } else { &format!("windows of {n} jobs") };
            return silent(format!("{windows} unanswered since {}", time_of_day(oldest)));
        }
        None
    }

    /// Since when a surface of `job` is overdue: the predictor is gone, was never seen, is failing,
    /// or left a window of the job unanswered.
    pub(crate) fn overdue_since(&self, job: &JobId) -> Option<Timestamp> {
        let never = self.last_seen.is_none().then_some(self.known_since);
        let failing = (self.refusals.count >= REFUSALS_MAX).then_some(self.refusals.since);
        let unanswered = self.unanswered.get(job).map(|window| window.since);
        [self.gone_since, never, failing, unanswered].into_iter().flatten().min()
    }

    /// Its state.
    pub(crate) fn state(champion: bool, trouble: Option<&Trouble>) -> PredictorState {
        let healthy = if champion { PredictorState::Champion } else { PredictorState::Challenger };
        trouble.map_or(healthy, |trouble| trouble.state)
    }

    /// Its status report.
    pub(crate) fn status(
        &self,
        now: Timestamp,
        name: &PredictorId,
        champion: &Champion,
        trouble: Option<Trouble>,
    ) -> PredictorStatus {
        let observed_generation = champion.generation;
        let champion = champion.predictor == *name;
        PredictorStatus {
            name: name.clone(),
            version: self.version.clone(),
            at_us: now,
            observed_generation,
            state: Self::state(champion, trouble.as_ref()),
            champion,
            error: trouble.map(|trouble| trouble.cause),
            last_active_us: self.last_seen,
            proposals: self.record.proposals,
            refused: self.record.refused,
            windows_uncovered: self.record.uncovered,
            speed: self.record.speed.scores(),
            power: self.record.power.scores(),
            latency: self.record.latency(),
        }
    }
}

/// The time of day, UTC, for messages to people.
pub(crate) fn time_of_day(at: Timestamp) -> String {
    let second = at.as_us() / 1_000_000 % 86_400;
    format!("{:02}:{:02}:{:02} UTC", second / 3_600, second / 60 % 60, second % 60)
}
