//! What a node really does: the launcher's report and the power agent's.
//!
//! * **Publisher:** launcher ([`LaunchReport`], key `launcher.<node>`), power agent
//!   ([`PowerReport`], key `power.<node>`).
//! * **Listeners:** placer; profiler (which process belongs to which job); predictors (which kinds of
//!   GPU there are); `wattle nodes`.
//! * **How often:** at every change, and as a heartbeat: three times within the placer's patience.
//! * **Delivery:** key-value bucket `actual`. The last value stands.
//! * **Lost or doubled:** the next heartbeat says it all again; reports are whole, never
//!   differences. A node whose heartbeat stops is not given new jobs.

use serde::{Deserialize, Serialize};

use crate::id::{GpuIndex, JobId, NodeId, SwitchId};
use crate::time::Timestamp;
use crate::units::{Frequency, Power};

/// What the launcher of a node has running.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchReport {
    /// The node.
    pub node: NodeId,
    /// When it was so.
    pub at_us: Timestamp,
    /// The newest desired generation that it has seen.
    pub generation_seen: u64,
    /// Every job it has started and that the desired state still names, and those that ended but
    /// that it still names.
    pub jobs: Vec<LaunchedJob>,
}

/// One job's processes on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchedJob {
    /// The job.
    pub job: JobId,
    /// Which start of it.
    pub attempt: u32,
    /// Its GPUs here.
    pub gpus: Vec<GpuIndex>,
    /// What its processes do.
    pub state: LaunchState,
    /// The session id its processes share on this node, while they run.
    #[serde(default)]
    pub session: Option<u32>,
    /// Since when it is in this state.
    pub since_us: Timestamp,
    /// Where its output goes.
    pub log_path: String,
}

/// What a job's processes on one node do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "is")]
pub enum LaunchState {
    /// They run.
    Running,
    /// They were asked to checkpoint and stop.
    Stopping,
    /// They stopped because they were asked to; the job may be started again elsewhere.
    Stopped,
    /// The job's program ended by itself.
    Exited {
        /// Its exit code; 128 + the signal's number where a signal ended it.
        code: i32,
    },
    /// They ended with their node or with what watched over them, by no fault of the job; it may
    /// be started again.
    Lost {
        /// What is known of how that came.
        error: String,
    },
    /// They could not be started.
    Refused {
        /// Why, and what to do about it.
        error: String,
    },
}

/// What the power agent of a node has applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PowerReport {
    /// The node.
    pub node: NodeId,
    /// When it was so.
    pub at_us: Timestamp,
    /// The newest desired generation that it has obeyed.
    pub generation_seen: u64,
    /// Until when the caps below may stand; absent: no lease runs, the safe caps stand.
    #[serde(default)]
    pub lease_until_us: Option<Timestamp>,
    /// Every GPU of the node: the placer learns the node's inventory from here.
    pub gpus: Vec<AppliedGpu>,
    /// Whether the node has a `sleep_command`; where it has none, it is never sent to sleep.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub can_sleep: bool,
    /// What became of the last order to fall asleep; absent: there was none, or it is being obeyed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slept: Option<SleepAnswer>,
    /// The leaf switch the node is below, where its operator says so: nodes that name the same one are
    /// close to each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switch: Option<SwitchId>,
    /// GPUs on each board of the node, in the order of their numbers, where its operator says so: a
    /// power of two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus_per_board: Option<u32>,
}

/// What became of an order to fall asleep.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SleepAnswer {
    /// The order: the `since_us` of its [`crate::messages::NodeSleep`].
    pub ordered_us: Timestamp,
    /// Why the node does not sleep; absent: the command has ended well.
    #[serde(default)]
    pub error: Option<String>,
}

/// One GPU: what it is, what stands on it, what was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppliedGpu {
    /// The GPU.
    pub gpu: GpuIndex,
    /// Its UUID.
    pub uuid: String,
    /// Its kind, lower case, as in the catalog where it is known there: `v100`.
    pub kind: String,
    /// Device memory in MiB.
    pub memory_mib: u64,
    /// Whether it answers; a lost card is not given jobs.
    pub healthy: bool,
    /// The cap that stands.
    #[serde(default)]
    pub cap_mw: Option<Power>,
    /// The card's own default cap.
    #[serde(default)]
    pub cap_mw_default: Option<Power>,
    /// The lowest cap it takes.
    #[serde(default)]
    pub cap_mw_min: Option<Power>,
    /// The highest cap it takes.
    #[serde(default)]
    pub cap_mw_max: Option<Power>,
    /// The highest SM clock that is locked, if one is.
    #[serde(default)]
    pub clock_mhz_max: Option<Frequency>,
    /// The lowest SM clock it can be locked to; absent: it takes none, or does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_mhz_lowest: Option<Frequency>,
    /// The highest SM clock it can be locked to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_mhz_highest: Option<Frequency>,
    /// The last order that was not carried out, and why.
    #[serde(default)]
    pub refused: Option<String>,
}
