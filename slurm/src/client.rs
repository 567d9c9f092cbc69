//! The interface to Slurm: reads its jobs and nodes, and carries out commands.

use wattle_common::Timestamp;

use crate::command::{Command, SlurmError};
use crate::past::PastRun;
use crate::view::SlurmView;

/// Reads Slurm's jobs and nodes, and carries out commands.
///
/// The service runs Slurm's programs; tests have models.
pub trait Client: Send {
    /// The jobs and nodes now. `now` is the instant of the call; it becomes [`SlurmView::at`].
    ///
    /// # Errors
    /// [`SlurmError`], if Slurm does not answer or its answer cannot be read completely. The last view
    /// remains valid as of its instant.
    fn view(
        &mut self,
        now: Timestamp,
    ) -> impl Future<Output = Result<SlurmView, SlurmError>> + Send;

    /// Carries out a command.
    ///
    /// # Errors
    /// [`SlurmError`]; what part of the command has taken effect shows in the next view.
    fn execute(&mut self, command: &Command)
    -> impl Future<Output = Result<(), SlurmError>> + Send;

    /// The runs of these jobs since `since` from the accounting database, the oldest first; several runs of a
    /// job that was requeued. A job that the database does not have is absent.
    ///
    /// # Errors
    /// [`SlurmError`], if the database does not answer.
    fn past(
        &mut self,
        ids: &[u32],
        since: Timestamp,
    ) -> impl Future<Output = Result<Vec<PastRun>, SlurmError>> + Send;
}
