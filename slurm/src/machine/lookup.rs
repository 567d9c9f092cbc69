//! Queries of Slurm's accounting database, and what it has answered.

use std::collections::BTreeSet;
use std::time::Duration;

use wattle_common::{JobId, Timestamp};

use super::look::Round;
use super::{Action, SlurmMachine};
use crate::command::SlurmError;
use crate::intake;
use crate::past::PastRun;

/// Most jobs in one query of the accounting database.
const LOOKUP_MAX: usize = 200;
/// How long before its last submission or requeue a job may have run.
const LOOKUP_BEFORE: Duration = Duration::from_secs(30 * 86_400);

/// Runs of a job in the accounting database.
#[derive(Clone, Debug)]
pub(super) struct Past {
    /// The restart count for which they were requested.
    restarts: u32,
    first_at: Timestamp,
    requested_at: Option<Timestamp>,
    /// Absent: not answered yet.
    runs: Option<Vec<PastRun>>,
}

impl SlurmMachine {
    /// The runs of a job that has this restart count, oldest first; requests them if they are not known.
    pub(super) fn past_of(
        &mut self,
        round: &mut Round<'_>,
        id: &JobId,
        restarts: u32,
        submitted_at: Timestamp,
    ) -> Option<&[PastRun]> {
        let new = Past { restarts, first_at: round.look.now, requested_at: None, runs: None };
        let past = self.memory.past.entry(id.clone()).or_insert_with(|| new.clone());
        if past.restarts != restarts {
            *past = new;
        }
        if past.runs.is_none() {
            round.to_look_up.insert(id.clone(), submitted_at - LOOKUP_BEFORE);
        }
        past.runs.as_deref()
    }

    /// Requests runs again that were not complete; returns whether that has lasted too long.
    pub(super) fn request_past_again(&mut self, now: Timestamp, id: &JobId) -> bool {
        let Some(past) = self.memory.past.get_mut(id) else { return false };
        past.runs = None;
        let is_over = now >= past.first_at + self.settings.absence_max;
        if is_over {
            past.runs = Some(Vec::new());
        }
        is_over
    }

    /// Requests the runs of jobs from the accounting database, those of each job once per retry interval.
    pub(super) fn look_up(&mut self, round: &mut Round<'_>) {
        let now = round.look.now;
        let (mut ids, mut since) = (BTreeSet::new(), now);
        for (id, submitted_at) in &round.to_look_up {
            let Some(past) = self.memory.past.get_mut(id) else { continue };
            let is_due = past.requested_at.is_none_or(|at| now >= at + self.settings.retry);
            let slurm_id = intake::slurm_id(id).filter(|_| is_due && ids.len() < LOOKUP_MAX);
            if let Some(slurm_id) = slurm_id {
                past.requested_at = Some(now);
                since = since.min(*submitted_at);
                ids.insert(slurm_id);
            }
        }
        if !ids.is_empty() {
            round.out.push(Action::Lookup { ids: ids.into_iter().collect(), since });
        }
    }

    pub(super) fn past_read(&mut self, ids: &[u32], runs: Result<Vec<PastRun>, SlurmError>) {
        // Without an answer nothing is known; the question is repeated.
        let Ok(runs) = runs else { return };
        for (job, past) in &mut self.memory.past {
            let slurm_id = intake::slurm_id(job).filter(|id| ids.contains(id));
            // A run of another restart count may be requested meanwhile; its answer follows.
            if let Some(id) = slurm_id.filter(|_| past.requested_at.is_some()) {
                past.runs = Some(runs.iter().filter(|run| run.id == id).cloned().collect());
            }
        }
    }
}
