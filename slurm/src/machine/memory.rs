//! What the machine remembers from one look at Slurm to the next.
//!
//! None of it is stored: a process that starts without it waits longer, or requests again what it needs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use wattle_common::job::NodeShare;
use wattle_common::{GpuIndex, JobId, NodeId, Timestamp};
use wattle_site::Known;

use super::look::Look;
use super::lookup::Past;
use crate::command::{Command, SlurmError};
use crate::intake;

/// Patience, refusals and answers of earlier looks.
#[derive(Default)]
pub(super) struct Memory {
    /// By job, because Slurm gives an id again after a crash.
    pub(super) past: BTreeMap<JobId, Past>,
    /// When a submission or cancellation may be repeated.
    pub(super) request_at: BTreeMap<JobId, Timestamp>,
    /// When a job may get a command again after a failed one.
    pub(super) command_at: BTreeMap<u32, Timestamp>,
    /// Why Slurm refused the last command for a job.
    pub(super) refusals: BTreeMap<u32, String>,
    /// Slurm's reasons of jobs that were taken back.
    pub(super) reasons: BTreeMap<u32, String>,
    /// Where jobs that Slurm places ran at the last look that found them running: one that ends before the
    /// placer has recorded its start has no order.
    pub(super) ran_on: BTreeMap<JobId, Vec<NodeShare>>,
    pub(super) absent_since: BTreeMap<JobId, Timestamp>,
    /// Ends of jobs that Slurm no longer has, from the accounting database.
    pub(super) ended_absent: BTreeMap<JobId, Timestamp>,
    /// Since when Slurm counts a GPU as used that no job has.
    pub(super) leaked_since: BTreeMap<(NodeId, GpuIndex), Timestamp>,
}

impl Memory {
    /// Whether no command for the job has failed a short time ago.
    pub(super) fn may_command(&self, now: Timestamp, id: u32) -> bool {
        self.command_at.get(&id).is_none_or(|at| now >= *at)
    }

    /// Whether a job was neither submitted nor cancelled a short time ago; it is from now on.
    pub(super) fn may_request(&mut self, now: Timestamp, id: &JobId, retry: Duration) -> bool {
        if self.request_at.get(id).is_some_and(|at| now < *at) {
            return false;
        }
        self.request_at.insert(id.clone(), now + retry);
        true
    }

    /// Notes that a command was carried out.
    pub(super) fn succeeded(&mut self, command: &Command) {
        for id in command.ids() {
            self.command_at.remove(&id);
            self.refusals.remove(&id);
        }
    }

    /// Notes that a command failed; `again_at`: when another one may be sent.
    pub(super) fn failed(&mut self, command: &Command, error: &SlurmError, again_at: Timestamp) {
        // A command for many jobs may have failed for one of them.
        let &[id] = &command.ids()[..] else { return };
        if !error.is_temporary() {
            self.refusals.insert(id, error.to_string());
        }
        if !matches!(command, Command::Hold(_)) {
            self.command_at.insert(id, again_at);
        }
    }

    /// Forgets what concerns jobs that both Slurm and the placer are done with.
    pub(super) fn forget(&mut self, look: &Look<'_>, records: &BTreeMap<JobId, Known>) {
        let is_live = |id: &JobId| records.get(id).is_some_and(|known| !known.phase.is_final());
        let live: BTreeSet<u32> =
            records.keys().filter(|id| is_live(id)).filter_map(intake::slurm_id).collect();
        let is_needed = |id: &u32| live.contains(id) || look.view.jobs.contains_key(id);
        let is_seen = |id: &JobId| look.jobs.contains_key(id);
        self.past.retain(|id, _| is_seen(id) || is_live(id));
        self.command_at.retain(|id, _| is_needed(id));
        self.refusals.retain(|id, _| is_needed(id));
        self.reasons.retain(|id, _| is_needed(id));
        self.request_at.retain(|id, _| is_seen(id) || records.contains_key(id));
        self.absent_since.retain(|id, _| records.contains_key(id) && !is_seen(id));
        self.ran_on.retain(|id, _| is_seen(id) || is_live(id));
        self.ended_absent.retain(|id, _| records.contains_key(id));
    }
}
