//! What an operator must see.

use wattle_common::{GpuIndex, JobId, NodeId};

use crate::command::Command;

/// Most alarms that are remembered, so that each is raised once.
pub(super) const ALARMS_MAX: usize = 10_000;

/// A report to the operator, raised once for each object while its cause remains.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Alarm {
    /// The placer orders a stop that the owner has not permitted.
    #[error(
        "job {job} is not stopped: its owner has not declared a checkpoint signal (`--comment=\"wattle: signal=TERM\"`)"
    )]
    NoConsent {
        /// The job.
        job: JobId,
    },
    /// Slurm places the job, so Wattle does not cancel it.
    #[error("job {job} is not cancelled: Slurm places it at this level; use scancel")]
    NotOurs {
        /// The job.
        job: JobId,
    },
    /// The record has another owner than Slurm.
    #[error("job {job} is ignored: its record has another owner than its job in Slurm")]
    Owner {
        /// The job.
        job: JobId,
    },
    /// The owner's terms are not understood; the job has none.
    #[error("the terms of job {job} are ignored: {error}")]
    Terms {
        /// The job.
        job: JobId,
        /// The key and the accepted form.
        error: String,
    },
    /// The placer refused the job or its cancellation. It stays held in Slurm.
    #[error("the placer refuses job {job}: {error}")]
    Refused {
        /// The job.
        job: JobId,
        /// The cause.
        error: String,
    },
    /// A job has vanished from Slurm.
    #[error(
        "job {job} is neither in Slurm nor in its accounting database: its end is not known, and it is cancelled"
    )]
    Vanished {
        /// The job.
        job: JobId,
    },
    /// Slurm counts a GPU as used that no job has.
    #[error(
        "Slurm counts GPU {gpu} of {node} as used, but no job has it; it gets no job until slurmctld is restarted"
    )]
    Leaked {
        /// The node.
        node: NodeId,
        /// The GPU.
        gpu: GpuIndex,
    },
    /// A command failed.
    #[error("{error}")]
    Command {
        /// The command.
        command: Command,
        /// The cause and the remedy.
        error: String,
    },
    /// A desired state is refused.
    #[error("the desired state of {node} is refused: {error}")]
    Order {
        /// The node.
        node: NodeId,
        /// The cause.
        error: String,
    },
}

impl Alarm {
    /// The alarm without the part that changes while its cause remains.
    pub(super) fn key(&self) -> Self {
        match self {
            Self::Command { command, .. } => {
                Self::Command { command: command.clone(), error: String::new() }
            }
            other => other.clone(),
        }
    }
}
