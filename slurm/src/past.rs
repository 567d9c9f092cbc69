//! Runs of jobs in Slurm's accounting database, for jobs that slurmctld no longer has.

use wattle_common::Timestamp;

use crate::view::SlurmState;

/// One run of a job in the accounting database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PastRun {
    /// The job.
    pub id: u32,
    /// Owner.
    pub user: String,
    /// State. A run that ended by a requeue is [`PastState::Requeued`].
    pub state: PastState,
    /// Exit code, and the signal that ended it or 0.
    pub exit: (i32, i32),
    /// When it was submitted; for a later run, when it was requeued.
    pub submitted_at: Timestamp,
    /// When it started; absent: it has not run.
    pub started_at: Option<Timestamp>,
    /// When it ended; absent: it has not ended.
    pub ended_at: Option<Timestamp>,
    /// The administrator's comment.
    pub admin_comment: String,
}

/// State of a run in the accounting database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PastState {
    /// It ended because the job was requeued; the job has a later run.
    Requeued,
    /// Every other state.
    Job(SlurmState),
}
