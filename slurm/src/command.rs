//! Commands to Slurm, and why one of them fails.

use wattle_common::NodeId;

/// A command to Slurm about one or more jobs. Each may be repeated without harm.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Command {
    /// Holds pending jobs as an administrator, so that their owners cannot release them.
    Hold(Vec<u32>),
    /// Makes a job with an id of its own of each of these tasks of a pending array, and holds them as an
    /// administrator.
    SplitArray {
        /// The array's job.
        id: u32,
        /// The tasks.
        tasks: Vec<u32>,
    },
    /// Assigns nodes and generic resources to a held job, and releases it.
    Place(Place),
    /// Sends a signal to the batch script of a running job.
    Checkpoint {
        /// The job.
        id: u32,
        /// The signal without `SIG`: `USR1`.
        signal: String,
    },
    /// Ends the run of a job, with `SIGTERM` first, and puts the job back into the queue, held. Slurm accepts
    /// it for a job that has ended a short time ago, too.
    RequeueHold(u32),
    /// Cancels a job.
    Cancel(u32),
    /// Replaces the administrator's comment of an ended job in the accounting database.
    SetAdminComment {
        /// The job.
        id: u32,
        /// The text.
        text: String,
    },
}

impl Command {
    /// The jobs that it is about.
    #[must_use]
    pub fn ids(&self) -> Vec<u32> {
        match self {
            Self::Hold(ids) => ids.clone(),
            Self::Place(place) => vec![place.id],
            Self::Checkpoint { id, .. }
            | Self::SplitArray { id, .. }
            | Self::RequeueHold(id)
            | Self::Cancel(id)
            | Self::SetAdminComment { id, .. } => vec![*id],
        }
    }
}

/// Nodes and generic resources for a held job.
///
/// Slurm applies only parts of an update if it refuses another part. The job is therefore read again, and
/// released only if it has these nodes, these resources and this tag, and is held.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The job.
    pub id: u32,
    /// The administrator's comment that the job must have: Slurm gives an id again if it crashes just after
    /// the submission.
    pub admin_comment: String,
    /// Generic resources on each node, in canonical order and without `gres/`: `gpu:g1:1,gpu:g3:1`, `gpu:2`,
    /// `guest:g1:1`. Empty: those of the job stay, as far as Slurm keeps them.
    pub gres: String,
    /// The nodes, sorted; the job gets exactly these.
    pub nodes: Vec<NodeId>,
    /// Further settings of the same `scontrol update`, each `Name=value`: `NumTasks=2`.
    pub extra: Vec<String>,
}

/// Why Slurm did not carry out a command or a query. Nothing may be concluded about the job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SlurmError {
    /// The program is not there or cannot be started.
    #[error("cannot run `{program}`: {error}; set `commands` to the folder of Slurm's programs")]
    Program {
        /// The program.
        program: String,
        /// The system's error.
        error: String,
    },
    /// slurmctld or slurmdbd does not answer.
    #[error("Slurm does not answer `{command}`: {error}")]
    Away {
        /// The command line.
        command: String,
        /// The last line of the program's error output, or the time limit.
        error: String,
    },
    /// Slurm limits the rate of requests (`rl_enable`), and the limit is reached.
    #[error(
        "Slurm limits the request rate: `{command}` was refused; raise `rl_refill_rate` in SlurmctldParameters"
    )]
    RateLimited {
        /// The command line.
        command: String,
    },
    /// The user has not the permission.
    #[error(
        "Slurm denies `{command}`: {error}; give this user the level Operator (`sacctmgr add user NAME adminlevel=operator`)"
    )]
    Denied {
        /// The command line.
        command: String,
        /// Slurm's text.
        error: String,
    },
    /// Slurm refuses the command for this job.
    #[error("Slurm refuses `{command}`: {error}")]
    Refused {
        /// The command line.
        command: String,
        /// Slurm's text.
        error: String,
    },
    /// The job has other nodes or resources than were set. It stays held.
    #[error("job {id} is not released: it has {found} instead of {wanted}")]
    NotApplied {
        /// The job.
        id: u32,
        /// The nodes or resources that the job has.
        found: String,
        /// What was set.
        wanted: String,
    },
    /// The accounting database does not have the end of the job yet.
    #[error(
        "Slurm's accounting database does not have the end of job {id} yet; its energy is written later"
    )]
    NotAccounted {
        /// The job.
        id: u32,
    },
    /// The output of a program has not the expected form.
    #[error("unexpected output of `{command}`: {error}")]
    Output {
        /// The command line.
        command: String,
        /// What is wrong.
        error: String,
    },
}

impl SlurmError {
    /// Whether the command may succeed later although nothing changes in the job: Slurm is away, busy or behind.
    #[must_use]
    pub const fn is_temporary(&self) -> bool {
        matches!(self, Self::Away { .. } | Self::RateLimited { .. } | Self::NotAccounted { .. })
    }
}
