//! One predictor in the contest: what it said last, what it left unanswered, how it does.

use std::collections::BTreeMap;

use wattle_common::Timestamp;
use wattle_common::id::{JobId, PredictorId};
use wattle_common::messages::{Estimate, PredictorState, PredictorStatus, Surface};

use super::config::RegistryConfig;
use super::jobs::Job;
use super::proposal::{Known, Proposal};
use super::score::Record;
use crate::model::cap::GpuSpec;
use crate::observation::Observation;

/// So many refused proposals in a row, and a predictor is failing.
const REFUSED_IN_A_ROW: u32 = 3;
/// So many looks for services without it, and its service is gone: one answer may be lost.
const MISSED_IN_A_ROW: u32 = 2;

/// A window that waits for an answer.
#[derive(Clone, Copy, Debug)]
struct Asked {
    /// The window's end.
    closed: Timestamp,
    /// When it arrived here.
    since: Timestamp,
}

/// What is wrong with a predictor, and since when.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Trouble {
    pub(super) state: PredictorState,
    pub(super) why: String,
}

/// One predictor.
#[derive(Clone, Debug)]
pub(super) struct Contestant {
    known_since: Timestamp,
    version: Option<String>,
    registered: bool,
    missed: u32,
    gone_since: Option<Timestamp>,
    heard: Option<Timestamp>,
    proposed: Option<Timestamp>,
    refused_in_a_row: u32,
    refused_since: Timestamp,
    refusal: String,
    /// By job, the first window since its last proposal; bounded with the registry's jobs.
    asked: BTreeMap<JobId, Asked>,
    /// The newest proposal and the one before it, of the jobs that are scored.
    said: BTreeMap<JobId, (Proposal, Option<Proposal>)>,
    pub(super) record: Record,
    /// As it was last told, and when; the record then.
    pub(super) told: Option<(Timestamp, PredictorState)>,
    pub(super) stored: Record,
}

impl Contestant {
    pub(super) fn new(now: Timestamp, record: Record) -> Self {
        Self {
            known_since: now,
            version: None,
            registered: false,
            missed: 0,
            gone_since: None,
            heard: None,
            proposed: None,
            refused_in_a_row: 0,
            refused_since: now,
            refusal: String::new(),
            asked: BTreeMap::new(),
            said: BTreeMap::new(),
            stored: record.clone(),
            record,
            told: None,
        }
    }

    /// When anything was last heard of it, or it was first known.
    pub(super) fn last_known(&self) -> Timestamp {
        self.heard.map_or(self.known_since, |heard| heard.max(self.known_since))
    }

    /// Takes down that it is, or is not, among the services that answer.
    pub(super) fn looked_for(&mut self, now: Timestamp, version: Option<&str>) {
        match version {
            Some(version) => {
                self.version = Some(version.to_owned());
                self.registered = true;
                self.missed = 0;
                self.gone_since = None;
                self.heard = Some(now);
            }
            None if self.registered => {
                self.missed += 1;
                if self.missed >= MISSED_IN_A_ROW && self.gone_since.is_none() {
                    self.gone_since = Some(now);
                }
            }
            None => {}
        }
    }

    /// Takes down that it said something that cannot be.
    pub(super) fn refuse(&mut self, now: Timestamp, why: String) {
        self.heard = Some(now);
        self.record.refused += 1;
        if self.refused_in_a_row == 0 {
            self.refused_since = now;
        }
        self.refused_in_a_row = self.refused_in_a_row.saturating_add(1);
        self.refusal = why;
    }

    /// Takes down a proposal; one that had come before, or is older than what had, is only a sign
    /// of life.
    pub(super) fn propose(
        &mut self,
        now: Timestamp,
        surface: &Surface,
        known: Known,
        scored: bool,
    ) {
        self.heard = Some(now);
        self.refused_in_a_row = 0;
        (self.gone_since, self.missed) = (None, 0);
        let before = self.said.get(&surface.job);
        if before.is_some_and(|(last, _)| surface.at_us <= last.at) {
            return;
        }
        self.proposed = Some(now);
        self.record.proposals += 1;
        if let Some(asked) = self.asked.remove(&surface.job) {
            let took = now.since(asked.closed).as_millis();
            self.record.answered_after(u64::try_from(took).unwrap_or(u64::MAX));
        }
        if scored {
            let fresh = Proposal::of(surface, now, known);
            let last = self.said.remove(&surface.job).map(|(last, _)| last);
            self.said.insert(surface.job.clone(), (fresh, last));
        }
    }

    /// Takes down that a window waits for an answer.
    pub(super) fn ask(&mut self, now: Timestamp, job: &JobId, closed: Timestamp) {
        let asked = Asked { closed, since: now };
        self.asked.entry(job.clone()).or_insert(asked);
    }

    /// Scores what it last said of a job before `closed` against what then came.
    ///
    /// A proposal that arrived before the window's end cannot have known the window, in whatever
    /// order the two came here.
    pub(super) fn score(
        &mut self,
        id: &JobId,
        job: &Job,
        kind: &str,
        seen: &Observation,
        closed: Timestamp,
        card: &GpuSpec,
    ) {
        let Some((last, before)) = self.said.get(id) else { return };
        let eligible = |said: &&Proposal| said.received <= closed;
        let Some(said) = Some(last).into_iter().chain(before).find(eligible) else { return };
        let Some(horizon) = job.horizon(seen, said.known) else { return };
        let Some(expected) = said.expects(kind, seen, card) else {
            self.record.uncovered += 1;
            return;
        };
        if let Some(power) = seen.gpu_power_w {
            self.record.power.push(horizon, expected.gpu_power_w, power);
        }
        let absolute = expected.steps_per_s.filter(|_| !seen.rate_inferred);
        let pair: Option<(Estimate, f64)> = match (absolute, seen.rate) {
            (Some(expected), Some(rate)) => Some((expected, rate)),
            // Only the relative speed is said, or can be seen.
            (None, Some(_)) => {
                job.relative_speed(seen, card).map(|seen| (expected.relative_speed, seen))
            }
            (_, None) => None,
        };
        if let Some((expected, seen)) = pair {
            self.record.speed.push(horizon, expected, seen);
        }
    }

    /// Forgets what it said of a job, and what it was asked.
    pub(super) fn forget(&mut self, job: &JobId) {
        self.asked.remove(job);
        self.said.remove(job);
    }

    /// How many windows wait for its answer, and how many proposals of it are kept.
    pub(super) fn kept(&self) -> (usize, usize) {
        let said = self.said.values().map(|(_, before)| 1 + usize::from(before.is_some()));
        (self.asked.len(), said.sum())
    }

    /// What is wrong with it.
    pub(super) fn trouble(&self, now: Timestamp, config: &RegistryConfig) -> Option<Trouble> {
        let patience = config.silent_after();
        let silent = |why| Some(Trouble { state: PredictorState::Silent, why });
        if let Some(gone) = self.gone_since {
            return silent(format!("its service is gone since {}", clock(gone)));
        }
        if self.refused_in_a_row >= REFUSED_IN_A_ROW {
            let n = self.refused_in_a_row;
            let why = format!("its last {n} surfaces were refused: {}", self.refusal);
            return Some(Trouble { state: PredictorState::Failing, why });
        }
        if self.heard.is_none() && now.since(self.known_since) >= patience {
            return silent("it was never heard of; is it running?".to_owned());
        }
        // Asked with every proposal: who has just proposed is not looked through.
        let quiet = self.proposed.is_none_or(|at| now.since(at) >= patience);
        let oldest = || self.asked.values().map(|asked| asked.since).min();
        let oldest = quiet.then(oldest).flatten();
        if let Some(oldest) = oldest.filter(|oldest| now.since(*oldest) >= patience) {
            let n = self.asked.len();
            let jobs = if n == 1 { "a window of 1 job" } else { &format!("windows of {n} jobs") };
            return silent(format!("it has left {jobs} unanswered since {}", clock(oldest)));
        }
        None
    }

    /// Since when it owes something of `job`: it is gone, never came, is refused, or left a window
    /// of it without an answer.
    pub(super) fn owes_since(&self, job: &JobId) -> Option<Timestamp> {
        let never = self.heard.is_none().then_some(self.known_since);
        let failing = (self.refused_in_a_row >= REFUSED_IN_A_ROW).then_some(self.refused_since);
        let asked = self.asked.get(job).map(|asked| asked.since);
        [self.gone_since, never, failing, asked].into_iter().flatten().min()
    }

    /// How it does, in a word.
    pub(super) fn state(champion: bool, trouble: Option<&Trouble>) -> PredictorState {
        let well = if champion { PredictorState::Champion } else { PredictorState::Challenger };
        trouble.map_or(well, |trouble| trouble.state)
    }

    /// How it does, for people.
    pub(super) fn status(
        &self,
        now: Timestamp,
        name: &PredictorId,
        champion: bool,
        trouble: Option<Trouble>,
    ) -> PredictorStatus {
        PredictorStatus {
            name: name.clone(),
            version: self.version.clone(),
            at_us: now,
            state: Self::state(champion, trouble.as_ref()),
            champion,
            error: trouble.map(|trouble| trouble.why),
            last_active_us: self.heard,
            proposals: self.record.proposals,
            refused: self.record.refused,
            windows_uncovered: self.record.uncovered,
            speed: self.record.speed.scores(),
            power: self.record.power.scores(),
            latency: self.record.latency(),
        }
    }
}

/// An instant as people read it: the time of day, UTC.
pub(super) fn clock(at: Timestamp) -> String {
    let second = at.as_us() / 1_000_000 % 86_400;
    format!("{:02}:{:02}:{:02} UTC", second / 3_600, second / 60 % 60, second % 60)
}
