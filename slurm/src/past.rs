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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_has_completed_if_its_script_ended_with_code_0_before_the_run() {
        let at = Timestamp::from_s;
        let completed = |state, script: Option<((i32, i32), u64)>| {
            let script = script.map(|(exit, end)| ScriptEnd { exit, ended_at: at(end) });
            let run = PastRun {
                id: 1,
                user: "ada".to_owned(),
                state,
                exit: (0, 0),
                submitted_at: at(1),
                started_at: Some(at(2)),
                ended_at: Some(at(9)),
                admin_comment: String::new(),
                script,
            };
            run.completed_at().map(|at| at.as_us() / 1_000_000)
        };
        let job = PastState::Job;
        assert_eq!(completed(job(SlurmState::Completed), None), Some(9));
        assert_eq!(completed(job(SlurmState::Failed), Some(((0, 0), 8))), None);
        for state in [PastState::Requeued, job(SlurmState::NodeFailed)] {
            assert_eq!(completed(state, Some(((0, 0), 8))), Some(8));
            assert_eq!(completed(state, Some(((0, 0), 9))), None, "ended by the requeue");
            assert_eq!(completed(state, Some(((0, 0), 10))), None);
            assert_eq!(completed(state, Some(((0, 15), 8))), None);
            assert_eq!(completed(state, None), None);
        }
    }
}
