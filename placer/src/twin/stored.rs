//! What a twin stores, and how a restarted placer continues from it.
//!
//! The stored value has no checkpoints: after a restart the twin corrects only what follows. A job that waits in both
//! schedules is not stored, because its record has all that is needed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use wattle_common::aim::Baseline;
use wattle_common::messages::{
    TWIN_ABSENCES_MAX, TWIN_OPEN_MAX, TwinAbsence, TwinJob, TwinOpen, TwinStatus,
};
use wattle_common::{JobId, Timestamp};

use super::history::Input;
use super::sums::Sums;
use super::work::Work;
use super::{InCluster, Mirrored, Submission, Twin};
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
    /// When it left the cluster, and whether it completed; `None`: it is present.
    pub left: Option<(Timestamp, bool)>,
    /// Its time with GPUs in the cluster until it left.
    pub ran: Duration,
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
        }
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
            !is_in_sums && !is_removed && (has_begun || mirrored.has_left())
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

    /// Continues from stored values and the cluster's records, which are in the order of submission. `state` has the
    /// cluster's nodes. Values of another baseline are not used.
    #[must_use]
    pub fn restored(
        baseline: Baseline,
        accounts: Arc<AccountRules>,
        stored: Option<(&TwinStatus, &TwinOpen)>,
        records: &[RecordedJob],
        state: &ClusterState,
    ) -> Self {
        let now = state.now();
        let stored = stored.filter(|(status, open)| {
            status.baseline == baseline && status.at_us == open.at_us && status.at_us <= now
        });
        let at = stored.map_or(now, |(status, _)| status.at_us);
        let mut twin = Self::new(baseline, accounts, at);
        let mut open: BTreeMap<(&JobId, Timestamp), &TwinJob> = BTreeMap::new();
        if let Some((status, jobs)) = stored {
            twin.since = status.since_us;
            twin.settled = Sums::restored(&status.rows);
            twin.absences.clone_from(&status.absences);
            if now.since(at) >= ABSENCE_LEAST {
                twin.absences.push(TwinAbsence { from_us: at, until_us: now });
                let excess = twin.absences.len().saturating_sub(TWIN_ABSENCES_MAX);
                twin.absences.drain(..excess);
            }
            open.extend(jobs.jobs.iter().map(|job| ((&job.job, job.submitted_at_us), job)));
        }
        twin.followed_to = now;
        twin.follow_nodes(state, at);
        twin.history.advance(at);
        for record in records {
            let facts = &record.facts;
            let begun = open.get(&(&facts.id, facts.submitted_at)).copied();
            // A record that left before the stored instant is in the sums, or was not stored.
            if begun.is_none() && record.left.is_some_and(|(left, _)| left <= at) {
                continue;
            }
            let submission = if facts.submitted_at > at {
                twin.add(facts, facts.submitted_at)
            } else {
                twin.restore_job(facts, begun)
            };
            if let Some(mirrored) = twin.jobs.get_mut(&submission).filter(|_| record.waits_at_site)
            {
                mirrored.in_cluster = InCluster::AtSite;
            }
            twin.leave_recorded(submission, record);
        }
        twin.history.keep_first();
        twin
    }

    /// A job of the stored instant.
    fn restore_job(&mut self, facts: &JobFacts, begun: Option<&TwinJob>) -> Submission {
        let submission = self.next_submission();
        let work = begun.map_or_else(Work::default, |job| Work::restored(job.work));
        let facts = Arc::new(facts.clone());
        self.history.restore(submission, &facts, begun);
        if let Some(run_time) = work.run_time() {
            self.history.run_time_estimated(submission, run_time);
        }
        self.present.insert(facts.id.clone(), submission);
        self.jobs.insert(submission, Mirrored { facts, work, in_cluster: InCluster::Present });
        submission
    }

    /// A job that has left by its record. Its work is what was known when it was stored.
    fn leave_recorded(&mut self, submission: Submission, record: &RecordedJob) {
        let Some((at, completed)) = record.left else { return };
        self.present.remove(&record.facts.id);
        self.left.insert(record.facts.id.clone(), submission);
        let Some(mirrored) = self.jobs.get_mut(&submission) else { return };
        if mirrored.work.known.run_time_s.is_none() {
            mirrored.work.known.run_time_s = Some(record.ran.as_secs_f64());
        }
        let run_time = mirrored.work.run_time();
        let has_run = !record.ran.is_zero();
        mirrored.in_cluster = if completed {
            InCluster::Completed { at, ran: record.ran }
        } else {
            InCluster::Removed
        };
        if completed || has_run {
            self.history.run_time_known(submission, run_time);
        } else {
            self.history.add(at, Input::Withdrawn(submission));
        }
    }
}
