//! What Slurm reports about its jobs and nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use wattle_common::id::GpuIndex;
use wattle_common::job::{NodeNeeds, NodeShare};
use wattle_common::{NodeId, Timestamp};

/// The jobs and nodes of a Slurm cluster, as of one reading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlurmView {
    /// When it was read.
    pub at: Timestamp,
    /// The jobs by Slurm's job id, tasks of arrays and ended jobs that slurmctld still has included.
    pub jobs: BTreeMap<u32, SlurmJob>,
    /// The nodes with GPUs.
    pub nodes: BTreeMap<NodeId, SlurmNode>,
    /// Jobs that Slurm has, but whose record is not readable. Nothing may be concluded about them.
    pub unreadable: BTreeSet<u32>,
}

/// State of a job in Slurm, reduced to what decisions depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlurmState {
    /// Waits, held or not: `PENDING`, `REQUEUED`, `REQUEUE_HOLD`, `SPECIAL_EXIT`, `REQUEUE_FED`.
    Pending,
    /// Has its resources, and its node boots or its prolog runs: `CONFIGURING`.
    Configuring,
    /// `RUNNING`, `SUSPENDED`, `SIGNALING`, `RESIZING`, `STOPPED`.
    Running,
    /// Its processes end; it still holds its resources: `COMPLETING`, `STAGE_OUT`.
    Completing,
    /// `COMPLETED`.
    Completed,
    /// `FAILED`, `BOOT_FAIL`, `DEADLINE`, `LAUNCH_FAILED`, `RECONFIG_FAIL`.
    Failed,
    /// `TIMEOUT`.
    TimedOut,
    /// `OUT_OF_MEMORY`.
    OutOfMemory,
    /// `CANCELLED`, `REVOKED`, `PREEMPTED`.
    Cancelled,
    /// `NODE_FAIL`.
    NodeFailed,
}

impl SlurmState {
    /// Whether the job has ended and holds nothing.
    #[must_use]
    pub const fn is_final(self) -> bool {
        !matches!(self, Self::Pending | Self::Configuring | Self::Running | Self::Completing)
    }
}

/// A job in Slurm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlurmJob {
    /// Slurm's job id. A task of an array has its own.
    pub id: u32,
    /// Array job and task, for people: `11_2`; `11_[3-8]` for tasks that have no id of their own yet.
    pub array: Option<String>,
    /// The tasks of an array that still share this id. Each becomes a job with its own id when it is changed
    /// by its number ([`crate::Command::SplitArray`]); the last keeps this id.
    pub unsplit_tasks: Vec<u32>,
    /// Name.
    pub name: String,
    /// Owner.
    pub user: String,
    /// User id of the owner.
    pub uid: u32,
    /// Account.
    pub account: String,
    /// Partition.
    pub partition: String,
    /// State.
    pub state: SlurmState,
    /// Slurm's reason for a pending job, as `JobHeldAdmin`.
    pub reason: String,
    /// Whether it is held: its priority is 0.
    pub held: bool,
    /// Whether it has a batch script. Only such a job can be requeued.
    pub is_batch: bool,
    /// Whether Slurm may requeue it.
    pub requeue: bool,
    /// Number of times that it was requeued.
    pub restarts: u32,
    /// When it was submitted; a requeue changes it.
    pub submitted_at: Timestamp,
    /// When it last started.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// Its time limit; absent: none.
    pub time_limit: Option<Duration>,
    /// Whether a dependency or a begin time keeps it from starting. The begin time that Slurm sets at a
    /// requeue does not count.
    pub waits: bool,
    /// Number of nodes that it requests.
    pub nodes: u32,
    /// Number of GPUs that it requests on each node; 0 if it requests none.
    pub gpus_per_node: u32,
    /// CPUs and memory that it needs of each node.
    pub needs: NodeNeeds,
    /// Features that its nodes must have, as Slurm writes them.
    pub features: String,
    /// Generic resources for each node as it requests them now, in canonical order and without `gres/`:
    /// `gpu:g1:1,gpu:g3:1`.
    pub gres: String,
    /// Nodes that it requires now, sorted.
    pub required_nodes: Vec<NodeId>,
    /// Whether it may require whole nodes. Slurm 26.05 shows jobs without a request for sharing CPUs the same way.
    pub whole_nodes: bool,
    /// Whether it is a component of a heterogeneous job, or in a reservation.
    pub is_special: bool,
    /// The GPUs that it holds, by node in Slurm's order.
    pub on: Vec<NodeShare>,
    /// Exit code, and the signal that ended it or 0.
    pub exit: Option<(i32, i32)>,
    /// The owner's comment.
    pub comment: String,
    /// The administrator's comment: the intake plugin's tag, later the energy.
    pub admin_comment: String,
    /// File of its standard output.
    pub output: String,
}

/// A node in Slurm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlurmNode {
    /// Why it starts no jobs: `drained: bad DIMM`; absent: it does.
    pub unavailable: Option<String>,
    /// Whether Slurm's power saving has switched it off, or boots it.
    pub asleep: bool,
    /// CPUs.
    pub cpus: u32,
    /// Memory, MiB.
    pub memory_mib: u32,
    /// CPUs allocated to jobs.
    pub cpus_allocated: u32,
    /// Memory allocated to jobs, MiB.
    pub memory_mib_allocated: u32,
    /// Its GPU indices.
    pub gpus: Vec<GpuIndex>,
    /// The GPUs that Slurm counts as used, not shared.
    pub gpus_used: Vec<GpuIndex>,
    /// Its partitions.
    pub partitions: Vec<String>,
    /// Its features.
    pub features: Vec<String>,
}
