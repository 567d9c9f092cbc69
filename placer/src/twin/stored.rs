//! What a twin stores, and how a restarted placer continues from it.
//!
//! The stored value has no checkpoints: after a restart the twin corrects only what follows. A job that waits in both
//! schedules and has not run here is not stored, because its record has all that is needed.
//!
//! Without a stored value of its baseline the twin begins with the first submission from which on the records have every
//! job, and runs to the present in its first step. The record of an ended job has its work, which no baseline changes.
//! Nodes are those of the present, all awake before it; their energy and sleep in the sums of another baseline are kept.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use wattle_common::aim::Baseline;
use wattle_common::messages::{
    TWIN_ABSENCES_MAX, TWIN_OPEN_MAX, TwinAbsence, TwinJob, TwinOpen, TwinRow, TwinStatus,
    TwinSums, TwinWork,
};
use wattle_common::{JobId, Timestamp};

use super::history::Input;
use super::sums::{Owner, Sums};
use super::work::Work;
use super::{Departure, InCluster, Mirrored, Submission, Twin, rest};
use crate::accounts::rules::AccountRules;
use crate::state::cluster::ClusterState;
use crate::state::job::JobFacts;

/// The shortest time without a placer that is stated.
const ABSENCE_LEAST: Duration = Duration::from_mins(10);

/// A job of the cluster's records, present or ended.
#[derive(Clone, Debug)]
pub struct RecordedJob {
    /// Its facts.
    pub facts: JobFacts,
    /// Whether it waits in the queue of the site's scheduler.
    pub waits_at_site: bool,
    /// When it left the cluster, and how; `None`: it is present.
    pub left: Option<(Timestamp, Departure)>,
    /// Its time with GPUs in the cluster until it left.
    pub ran: Duration,
    /// Its work, as the twin knew it when it left; `None`: it is present, or its record is of an earlier release.
    pub work: Option<TwinWork>,
}

/// The jobs of the cluster's records, in the order of submission.
#[derive(Clone, Copy, Debug)]
pub struct Records<'r> {
    /// The jobs.
    pub jobs: &'r [RecordedJob],
    /// From when on each job has a record with its work.
    pub complete_from: Timestamp,
}

impl Records<'_> {
    /// When a twin begins that has these records alone: with the first submission of a job that they have.
    fn begin(&self, now: Timestamp) -> Timestamp {
        let first = self.jobs.first().map_or(now, |record| record.facts.submitted_at);
        first.max(self.complete_from).min(now)
    }
}

impl Twin {
    /// The sums for views and for a restart, at the instant that the twin has reached.
    #[must_use]
    pub fn status(&self) -> TwinStatus {
        let (waiting, running) = self.presence();
        TwinStatus {
            at_us: self.history.now(),
            since_us: self.since,
            baseline: self.baseline,
            waiting: waiting as u64,
            running: running as u64,
            rows: self.sums().rows(),
            ahead: self.ahead().rows(),
            corrected_late: self.corrected_late(),
            absences: self.absences.clone(),
            replayed_at_us: self.replayed_at,
        }
    }

    /// The work of a job that has left the cluster, without its energy, until it is in the sums.
    #[must_use]
    pub fn work_of_left(&self, id: &JobId) -> Option<TwinWork> {
        let known = self.jobs.get(self.left.get(id)?)?.work.known;
        Some(TwinWork { energy_j: None, unmetered: false, settings_j: 0.0, ..known })
    }

    /// The jobs that are not in the sums of [`Self::status`].
    #[must_use]
    pub fn open(&self) -> TwinOpen {
        let is_open = |submission: &Submission, mirrored: &Mirrored| {
            let run = self.history.run(*submission);
            let has_begun = run.is_some_and(|run| run.start.is_some());
            let is_in_sums = self.compared(*submission, mirrored).is_some();
            let is_removed = mirrored.in_cluster == InCluster::Removed
                && run.is_none_or(|run| run.end.or(run.withdrawn).is_some());
            // A job that waits in the twin may have run here, on several placements.
            let is_known = has_begun || mirrored.has_left() || mirrored.work.known.gpu_s > 0.0;
            !is_in_sums && !is_removed && is_known
        };
        let open = self.jobs.iter().filter(|(submission, mirrored)| is_open(submission, mirrored));
        let not_stored = open.clone().count().saturating_sub(TWIN_OPEN_MAX) as u64;
        let job = |(submission, mirrored): (&Submission, &Mirrored)| {
            let left_at_us = match mirrored.in_cluster {
                InCluster::Completed { at, .. } => Some(at),
                InCluster::Present | InCluster::AtSite | InCluster::Removed => None,
            };
            TwinJob {
                job: mirrored.facts.id.clone(),
                submitted_at_us: mirrored.facts.submitted_at,
                left_at_us,
                work: mirrored.work.known,
                ..self.history.stored(*submission)
            }
        };
        let jobs = open.take(TWIN_OPEN_MAX).map(job).collect();
        TwinOpen { at_us: self.history.now(), jobs, not_stored }
    }

    /// Continues from stored values and the cluster's records; without values of this baseline, from the records alone.
    /// `state` has the cluster's nodes.
    #[must_use]
    pub fn restored(
        baseline: Baseline,
        accounts: Arc<AccountRules>,
        stored: Option<(&TwinStatus, &TwinOpen)>,
        records: Records<'_>,
        state: &ClusterState,
    ) -> Self {
        let now = state.now();
        let stored =
            stored.filter(|(status, open)| status.at_us == open.at_us && status.at_us <= now);
        let continued = stored.filter(|(status, _)| status.baseline == baseline);
        let at = match continued {
            Some((status, _)) => status.at_us,
            None => records.begin(now),
        };
        let mut twin = Self::new(baseline, accounts, at);
        let mut open: BTreeMap<(&JobId, Timestamp), &TwinJob> = BTreeMap::new();
        if let Some((_, jobs)) = stored {
            open.extend(jobs.jobs.iter().map(|job| ((&job.job, job.submitted_at_us), job)));
        }
        if let Some((status, _)) = continued {
            twin.since = status.since_us;
            twin.settled = Sums::restored(&status.rows);
            twin.absences.clone_from(&status.absences);
            twin.replayed_at = status.replayed_at_us;
            if now.since(at) >= ABSENCE_LEAST {
                twin.absences.push(TwinAbsence { from_us: at, until_us: now });
                let excess = twin.absences.len().saturating_sub(TWIN_ABSENCES_MAX);
                twin.absences.drain(..excess);
            }
        } else if at < now {
            twin.replayed_at = Some(now);
            twin.count_rest_before(at, stored.map(|(status, _)| status), state);
        }
        (twin.followed_to, twin.rest) = (now, rest(state));
        twin.follow_nodes(state, at);
        twin.history.advance(at);
        let stored_at = stored.map_or(now, |(status, _)| status.at_us);
        let mut ends = Vec::new();
        for record in records.jobs {
            let facts = &record.facts;
            let known = open.get(&(&facts.id, facts.submitted_at)).copied();
            let begun = known.filter(|_| continued.is_some());
            // A record that left before the beginning is in the sums, or was not stored.
            if begun.is_none() && record.left.is_some_and(|(left, _)| left <= at) {
                continue;
            }
            let submission = if facts.submitted_at > at {
                twin.add(facts, facts.submitted_at)
            } else {
                twin.restore_job(facts, begun)
            };
            let work = record.work.or(known.map(|job| job.work));
            if let Some(mirrored) = twin.jobs.get_mut(&submission) {
                if record.waits_at_site {
                    mirrored.in_cluster = InCluster::AtSite;
                }
                mirrored.work =
                    work.map_or_else(Work::default, |work| Work::restored(work, stored_at));
                if let Some(run_time) = mirrored.work.run_time() {
                    twin.history.run_time_estimated(submission, run_time);
                }
            }
            ends.extend(record.left.map(|(left, _)| (left, submission, record)));
        }
        // Inputs are in the order of their instants.
        ends.sort_by_key(|(left, submission, _)| (*left, *submission));
        ends.into_iter()
            .for_each(|(_, submission, record)| twin.leave_recorded(submission, record));
        twin.history.in_order();
        twin.history.keep_first();
        twin
    }

    /// The energy of the nodes without jobs from `from` on: that of the sums of another baseline, else of the present
    /// nodes, all awake.
    fn count_rest_before(
        &mut self,
        from: Timestamp,
        kept: Option<&TwinStatus>,
        state: &ClusterState,
    ) {
        let now = state.now();
        if let Some(status) = kept {
            let rows = status.rows.iter().filter(|row| row.day >= Owner::nodes(from).day);
            let nodes: Vec<TwinRow> = rows
                .map(|row| TwinRow {
                    user: None,
                    project: None,
                    sums: row.sums.by_jobs_and_nodes().1,
                    ..row.clone()
                })
                .collect();
            self.settled = Sums::restored(&nodes);
            return;
        }
        let Some(rest) = rest(state) else { return };
        let mut at = from;
        while at < now {
            let owner = Owner::nodes(at);
            let next = Timestamp::from_s((owner.day + 1) * 86_400).min(now);
            let span_s = next.since(at).as_secs_f64();
            let (rest_j, node_s) = (rest.awake_w * span_s, rest.nodes * span_s);
            self.settled.add(owner, TwinSums { rest_j, node_s, ..TwinSums::default() });
            at = next;
        }
    }

    /// A job of the stored instant.
    fn restore_job(&mut self, facts: &JobFacts, begun: Option<&TwinJob>) -> Submission {
        let submission = self.next_submission();
        let facts = Arc::new(facts.clone());
        self.history.restore(submission, &facts, begun);
        self.present.insert(facts.id.clone(), submission);
        let (work, in_cluster) = (Work::default(), InCluster::Present);
        self.jobs.insert(submission, Mirrored { facts, work, in_cluster });
        submission
    }

    /// A job that has left by its record. Its work is what was known when it was stored.
    fn leave_recorded(&mut self, submission: Submission, record: &RecordedJob) {
        let Some((at, departure)) = record.left else { return };
        self.present.remove(&record.facts.id);
        self.left.insert(record.facts.id.clone(), submission);
        let Some(mirrored) = self.jobs.get_mut(&submission) else { return };
        let has_run = !record.ran.is_zero();
        let completed = departure == Departure::Completed;
        // What was stored may be an estimate of the whole job.
        let is_short = departure == Departure::Failed && record.work.is_none();
        if mirrored.work.known.run_time_s.is_none() || is_short {
            mirrored.work.known.run_time_s = Some(record.ran.as_secs_f64());
        }
        let run_time = mirrored.work.run_time();
        mirrored.in_cluster = if completed {
            InCluster::Completed { at, ran: record.ran }
        } else {
            InCluster::Removed
        };
        if completed || (departure == Departure::Failed && has_run) {
            self.history.run_time_known(submission, run_time);
        } else {
            self.history.add(at, Input::Withdrawn(submission));
        }
    }
}
