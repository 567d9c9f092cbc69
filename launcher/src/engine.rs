//! The interface between the launcher's decisions and the component that starts jobs on nodes.
//!
//! An [`Engine`] starts, signals and observes the processes of jobs, and decides nothing. The only
//! implementation of the product is [`local`], for child processes of this node. A scheduler with a
//! queue of its own, such as Slurm, is not an engine: its service takes the place of the launcher
//! (`docs/extending/site.md`).
//! `docs/extending/engine.md` explains how to write one; `tests/suite/engine.rs` holds every engine to
//! the contract below.

pub mod local;

use tokio::sync::mpsc;

use crate::{Event, Fault, Found, Outcome, Run, RunSpec, Status, StopStage};

/// Starts, signals and observes the processes of jobs, on one node or on many.
///
/// The contract:
/// * **A run starts at most once**, whatever is killed in between. [`Engine::start`] stores the
///   spec before anything starts and has no effect for a run that was started before.
/// * **Every start ends.** Each run reports [`Status::Running`] at most once and then
///   [`Status::Ended`] once; a run that cannot be started ends as [`crate::Outcome::Refused`] if the job
///   is the cause, and as [`crate::Outcome::Prevented`] if the node is.
/// * **Ended means free.** `Ended` is reported when no process of the run holds its GPUs.
/// * **A stop is stored before it is carried out**, so that [`Engine::resume`] returns it: a run
///   that exits after a stop was requested has not failed. `resume` carries out a stop that was stored
///   only, so that no restart costs a job its checkpoint.
/// * **Runs outlive the launcher.** After a restart `resume` returns every run that was not
///   forgotten, and later changes are reported as before.
/// * **No decisions.** An engine never starts, moves, requeues or stops a run by itself.
///
/// No method waits for a process: what takes time is reported through the [`StatusSender`] that
/// the engine was made with.
pub trait Engine: Send {
    /// Why an engine cannot be used at all.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Returns every run the engine knows, and follows those that run. Called once, first.
    ///
    /// # Errors
    /// Where the engine's state cannot be read: the launcher then does not start.
    fn resume(&mut self) -> impl Future<Output = Result<Vec<Found>, Self::Error>> + Send;

    /// Stores `spec`, then starts it.
    fn start(&mut self, spec: &RunSpec);

    /// Stores that `run` is requested to stop at this stage, then signals it. No effect for a run
    /// that is unknown or has ended.
    fn stop(&mut self, run: &Run, stage: StopStage);

    /// Tests whether the node can start runs, and reports the result by [`StatusSender::tested`].
    fn test(&mut self);

    /// Removes everything that is stored of `run`. A run that has not started never starts.
    fn forget(&mut self, run: &Run);
}

/// The way from an engine to the launcher.
#[derive(Clone, Debug)]
pub struct StatusSender(mpsc::Sender<Event>);

impl StatusSender {
    /// A sender into the launcher's events.
    #[must_use]
    pub const fn new(events: mpsc::Sender<Event>) -> Self {
        Self(events)
    }

    /// Reports a change; waits while the launcher is busy, and drops it if the launcher has ended.
    pub async fn send(&self, run: Run, status: Status) {
        if let Status::Ended(outcome) = &status {
            tracing::info!(job = %run.job, attempt = run.attempt, ?outcome, "ended");
            if let Outcome::Foreign(error) = outcome {
                tracing::error!(job = %run.job, error, "files of another account refused to a job");
            }
        }
        // A launcher that has ended reads the status again when it resumes.
        let _ = self.0.send(Event::StatusChanged(run, status)).await;
    }

    /// Reports the result of a test of the node.
    pub async fn tested(&self, result: Result<(), Fault>) {
        let _ = self.0.send(Event::Tested(result)).await;
    }
}
