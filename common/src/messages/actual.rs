//! The actual state of a node: the launcher's report and the power agent's report.
//!
//! * **Publisher:** launcher ([`LaunchReport`], key `launcher.<node>`), power agent
//!   ([`PowerReport`], key `power.<node>`).
//! * **Listeners:** placer; profiler (maps processes to jobs); predictors (GPU types of the
//!   cluster); `wattle nodes`.
//! * **How often:** at every change, and as a heartbeat, at least three times within the placer's
//!   `node_stale_after_ms`.
//! * **Delivery:** key-value bucket `actual`; the last value of a key is current.
//! * **Lost or doubled:** each report is complete, so the next heartbeat replaces a lost one. A node
//!   without a recent heartbeat gets no new jobs.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id::{AdmissionId, GpuIndex, JobId, NodeId, SwitchId};
use crate::messages::{GpuConditionKind, GpuHealth, NodeFault, NodeFaultKind};
use crate::time::Timestamp;
use crate::units::{Frequency, Power};

/// The processes of jobs on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchReport {
    /// The node.
    pub node: NodeId,
    /// The process that reports, for people; `at_us` increases from report to report of one instance.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub instance: String,
    /// When the report was made, by the node's clock.
    pub at_us: Timestamp,
    /// Newest generation of the desired state that the launcher has received.
    pub observed_generation: u64,
    /// Started jobs that the desired state names, and ended jobs that it still names.
    pub jobs: Vec<LaunchedJob>,
    /// Whether `jobs` also has the ended jobs that no desired state names: the launcher has read an older
    /// desired state than the one it obeys, so the store is older than the node.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_ended: bool,
    /// The node in the site's scheduler, which runs its jobs; absent: a launcher runs them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<SiteNode>,
    /// Why the launcher can start no jobs now; absent: it can. Jobs that run continue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<NodeFault>,
}

/// A node in the site's scheduler, such as Slurm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteNode {
    /// Why it starts no jobs now: `drained: bad DIMM`; absent: it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<String>,
    /// Whether the site's power saving has switched it off, or boots it for a job; it wakes up for a job.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub asleep: bool,
    /// The partitions that it is in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partitions: Vec<String>,
    /// CPUs that jobs in this report hold or may hold: all but those of jobs which are not in it.
    pub cpus: u32,
    /// Memory, likewise, MiB.
    pub memory_mib: u32,
    /// GPUs held by jobs that are not in this report.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus_taken: Vec<GpuIndex>,
}

/// One job's processes on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchedJob {
    /// The job.
    pub job: JobId,
    /// The submission that it is of; absent: an earlier version accepted or started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admission: Option<AdmissionId>,
    /// Number of this start of the job, from 1.
    pub attempt: u32,
    /// Its GPUs on this node.
    pub gpus: Vec<GpuIndex>,
    /// State of its processes.
    #[serde(flatten)]
    pub state: LaunchState,
    /// How its processes are recognised on this node, while they run.
    #[serde(default)]
    pub processes: Option<JobProcesses>,
    /// When it entered this state.
    pub since_us: Timestamp,
    /// Where its output is: a path on the node, or the command that prints it.
    pub log_path: String,
}

/// How the processes of a job are recognised on their node, whatever engine started them.
///
/// Descendants of a matching process belong to the job too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobProcesses {
    /// The processes of this session.
    Session(u32),
    /// The processes whose cgroup path contains these segments in sequence, such as `job_42` or
    /// `kubepods-pod1a2b.slice`.
    Cgroup(String),
    /// The processes of a Slurm job: those in its cgroup. Where Slurm's cgroups do not name jobs (Slurm
    /// 26.05 with cgroup v2), those of the user with the job's id in their environment.
    Slurm {
        /// Slurm's job id.
        job: u32,
        /// The user id of its owner.
        uid: u32,
    },
}

/// State of a job's processes on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "state")]
pub enum LaunchState {
    /// The processes run.
    Running,
    /// The checkpoint signal was sent; the processes still run.
    Stopping,
    /// The processes stopped on request; the job may be started again elsewhere.
    Stopped {
        /// The signal that ended the program after a checkpoint was requested: its work since its last
        /// checkpoint is lost. Absent: the program exited by itself, or was not requested to write one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        killed_by: Option<i32>,
    },
    /// The program ended by itself.
    Exited {
        /// Its exit code; 128 plus the signal number if a signal ended it.
        code: i32,
        /// The limit that it reached before it failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<ReachedLimit>,
    },
    /// The processes ended with their node or supervisor, through no fault of the job; it may be
    /// started again.
    Lost {
        /// The known cause.
        error: String,
    },
    /// The processes could not be started.
    Refused {
        /// The cause and the remedy.
        error: String,
        /// The kind of the node's fault that caused it: the job may be started elsewhere. Absent: the job
        /// itself is the cause.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        node_fault: Option<NodeFaultKind>,
    },
}

impl LaunchState {
    /// The end of a program that exited by itself after it was requested to stop.
    pub const STOPPED: Self = Self::Stopped { killed_by: None };

    /// A start that failed because of the job itself.
    #[must_use]
    pub const fn refused(error: String) -> Self {
        Self::Refused { error, node_fault: None }
    }

    /// The end of a program that reached no limit.
    #[must_use]
    pub const fn exited(code: i32) -> Self {
        Self::Exited { code, limit: None }
    }
}

/// A limit of a job on one node that the job has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReachedLimit {
    /// Memory, MiB: the kernel killed processes of the job.
    MemoryMib(u64),
    /// Number of processes and threads: the kernel started no further one.
    Processes(u64),
    /// Time since the start of the attempt, s: the site's scheduler ended the job.
    Seconds(u64),
}

/// A predicate of the job: `exceeded its memory limit of 64 GiB`.
impl fmt::Display for ReachedLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MemoryMib(mib) if mib % 1_024 == 0 => {
                write!(f, "exceeded its memory limit of {} GiB", mib / 1_024)
            }
            Self::MemoryMib(mib) => write!(f, "exceeded its memory limit of {mib} MiB"),
            Self::Processes(count) => {
                write!(f, "reached its limit of {count} processes and threads")
            }
            Self::Seconds(s) => {
                let (hours, minutes, seconds) = (s / 3_600, s / 60 % 60, s % 60);
                write!(f, "reached its time limit of {hours}:{minutes:02}:{seconds:02}")
            }
        }
    }
}

/// The caps and clocks that the power agent of a node has applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PowerReport {
    /// The node.
    pub node: NodeId,
    /// The process that reports, for people; `at_us` increases from report to report of one instance.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub instance: String,
    /// When the report was made, by the node's clock.
    pub at_us: Timestamp,
    /// Newest generation of the desired state that the agent has applied.
    pub observed_generation: u64,
    /// End of the lease on the caps below, applied or advised; absent: no lease is current, safe caps are.
    #[serde(default)]
    pub lease_until_us: Option<Timestamp>,
    /// Every GPU of the node; this is the placer's inventory of it.
    pub gpus: Vec<AppliedGpu>,
    /// Whether the node has a `sleep_command`; without one it is never sent to sleep.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub can_sleep: bool,
    /// Result of the last sleep request; absent: there was none, or its command still runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sleep_result: Option<SleepResult>,
    /// The node's leaf switch, if configured: nodes on the same switch are close to each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switch: Option<SwitchId>,
    /// GPUs on each board of the node in index order, if configured: a power of two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus_per_board: Option<u32>,
    /// Largest sum of the caps of the node's GPUs, if configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_limit_mw: Option<Power>,
    /// Whether the agent only advises: it sets no cap and no clock, and reports those that it would set.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub advise_only: bool,
    /// Why no GPU of the node can be read, while that is so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver_error: Option<String>,
    /// When the newest reading of the GPUs began: what happened to a GPU before is in this report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_at_us: Option<Timestamp>,
}

/// Result of a sleep request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SleepResult {
    /// The request: the `since_us` of its [`crate::messages::NodeSleep`].
    pub requested_at_us: Timestamp,
    /// Why the node does not sleep; absent: the command succeeded.
    #[serde(default)]
    pub error: Option<String>,
}

/// One GPU: its type, limits, applied settings and last error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppliedGpu {
    /// Index on the node.
    pub gpu: GpuIndex,
    /// Its UUID.
    pub uuid: String,
    /// GPU type in lower case, as in the catalog if it is there: `v100`.
    pub gpu_type: String,
    /// Device memory, MiB; absent: the GPU does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    /// Whether it responds; a GPU that does not gets no jobs.
    pub healthy: bool,
    /// The cap in force.
    #[serde(default)]
    pub cap_mw: Option<Power>,
    /// Its default cap.
    #[serde(default)]
    pub cap_mw_default: Option<Power>,
    /// Lowest supported cap.
    #[serde(default)]
    pub cap_mw_min: Option<Power>,
    /// Highest supported cap.
    #[serde(default)]
    pub cap_mw_max: Option<Power>,
    /// Upper limit of the locked SM clock; absent: the clock is not locked.
    #[serde(default)]
    pub clock_mhz_max: Option<Frequency>,
    /// Lowest SM clock it can be locked to; absent: not supported, or not reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_mhz_supported_min: Option<Frequency>,
    /// Highest SM clock it can be locked to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_mhz_supported_max: Option<Frequency>,
    /// The cap that an agent which only advises would set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cap_mw_advised: Option<Power>,
    /// The upper limit of the SM clock that it would lock; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_mhz_max_advised: Option<Frequency>,
    /// The last setting that was not applied, and why.
    #[serde(default)]
    pub last_error: Option<String>,
    /// Whether it supports neither power nor energy readings: its energy is not known.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_meter: bool,
    /// Whether it supports no cap: orders of a cap are advice for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cap_unsupported: bool,
    /// Whether its clock cannot be locked: orders of a clock are advice for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub clock_unsupported: bool,
    /// Its health; absent: not reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<GpuHealth>,
}

impl AppliedGpu {
    /// Whether new jobs may be placed on it.
    #[must_use]
    pub fn accepts_jobs(&self) -> bool {
        self.healthy && !self.health.as_ref().is_some_and(|health| health.no_new_jobs)
    }

    /// Whether ordered caps are set on it: it is managed and supports them.
    #[must_use]
    pub fn sets_caps(&self) -> bool {
        self.is_managed() && !self.cap_unsupported
    }

    /// Whether the power agent sets its cap and clock: it responds and is not in MIG mode.
    #[must_use]
    pub fn is_managed(&self) -> bool {
        let mut conditions = self.health.iter().flat_map(|health| &health.conditions);
        self.healthy && !conditions.any(|c| c.condition == GpuConditionKind::MigEnabled)
    }
}
