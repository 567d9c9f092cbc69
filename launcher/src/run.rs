//! Runs and their states, as launcher and engines speak of them.

use serde::{Deserialize, Serialize};
use wattle_common::messages::{JobProcesses, NodeFaultKind, ReachedLimit};
use wattle_common::{AdmissionId, JobId, NodeId, Timestamp};

use crate::RunSpec;

/// One attempt of one submission on one node. The job's id is a name that another submission may have had.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Run {
    /// The node.
    pub node: NodeId,
    /// The job.
    pub job: JobId,
    /// The submission; absent: an earlier version accepted or started it.
    pub admission: Option<AdmissionId>,
    /// The job's attempt, from 1.
    pub attempt: u32,
}

/// An engine's description of a run whose processes run. The launcher reports it and does not
/// interpret it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handle {
    /// The engine's name for the run, for logs: `session 4242`, `slurm job 17`.
    pub id: String,
    /// How the run's processes are recognised on their node.
    pub processes: JobProcesses,
    /// Where the run's output is: a path on its node, or the command that prints it.
    pub log_path: String,
}

/// A change of a run's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// Its processes run.
    Running(Handle),
    /// None of its processes is left, and its GPUs are free.
    Ended(Outcome),
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The program's exit code.
    Code(i32),
    /// The signal of this number ended the program.
    Killed(i32),
    /// It failed after it had reached a limit.
    Limited {
        /// The exit code, not 0; 128 + the signal's number if a signal ended it.
        code: i32,
        /// The limit.
        limit: ReachedLimit,
    },
    /// It could not be started because of the job itself: the reason and the remedy.
    Refused(String),
    /// It could not be started, because its folder or log belongs to another account: the path and the remedy.
    Foreign(String),
    /// It could not be started because of the node.
    Prevented(Fault),
    /// Its exit code is unknown, because the node or the engine failed: a description.
    Lost(String),
}

/// Why the node cannot start a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Its kind.
    pub kind: NodeFaultKind,
    /// The cause: what failed, and the system's error.
    pub error: String,
}

/// How far the stop of a run has escalated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StopStage {
    /// The program is requested to write a checkpoint and exit.
    Checkpoint,
    /// All processes of the run are requested to terminate.
    Terminate,
    /// All processes of the run are killed.
    Kill,
}

/// A run that an engine knows from before the launcher started.
#[derive(Clone, Debug)]
pub struct Found {
    /// The run in full.
    pub spec: RunSpec,
    /// Its last status; `None` if it is stored and nothing has begun to start it.
    pub status: Option<Status>,
    /// The last stop that was requested.
    pub stop: Option<StopStage>,
    /// When the status, or the stop, began.
    pub since: Timestamp,
}

impl RunSpec {
    /// The run that this describes.
    #[must_use]
    pub fn run(&self) -> Run {
        Run {
            node: self.node.clone(),
            job: self.job.clone(),
            admission: self.admission.clone(),
            attempt: self.attempt,
        }
    }
}
