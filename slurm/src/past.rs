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
    /// The end of its batch script; absent: not known.
    pub script: Option<ScriptEnd>,
}

/// The end of a batch script: the step `batch` of a run.
///
/// Slurm accepts a requeue of a job that has completed, and then replaces the state of the run by
/// `REQUEUED`. Only the step shows that the script had ended by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScriptEnd {
    /// Exit code, and the signal that ended it or 0.
    pub exit: (i32, i32),
    /// When it ended.
    pub ended_at: Timestamp,
}

impl PastRun {
    /// When the program completed by itself; `None` if it did not, or if that is not known.
    ///
    /// Slurm's times are whole seconds: a script that ended in the second of the requeue counts as ended by
    /// the requeue.
    #[must_use]
    pub fn completed_at(&self) -> Option<Timestamp> {
        match self.state {
            PastState::Job(SlurmState::Completed) => self.ended_at,
            // A node failure is what Slurm concludes of a completion that slurmctld has lost.
            PastState::Requeued | PastState::Job(SlurmState::NodeFailed) => {
                let script = self.script.filter(|script| script.exit == (0, 0))?;
                self.ended_at.is_some_and(|end| script.ended_at < end).then_some(script.ended_at)
            }
            PastState::Job(_) => None,
        }
    }
}

/// State of a run in the accounting database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PastState {
    /// It ended because the job was requeued; the job has a later run.
    Requeued,
    /// Every other state.
    Job(SlurmState),
}
