//! What a node should be doing: who runs on which GPUs, under which caps and clocks.
//!
//! * **Publisher:** placer, alone.
//! * **Listeners:** the node's launcher and power agent.
//! * **How often:** at every change, and to renew the lease, at least three times within it.
//! * **Delivery:** key-value bucket `desired`, key = node. The last value stands.
//! * **Lost or doubled:** the bucket replays the last value to whoever (re)starts. An older
//!   (generation, `issued_at_us`) than the last obeyed is ignored. When `expires_at_us` has passed
//!   the power agent goes to its safe cap; jobs go on running.

use serde::{Deserialize, Serialize};

use crate::id::{GpuIndex, JobId, NodeId};
use crate::job::NodeShare;
use crate::time::Timestamp;
use crate::units::{Frequency, Power};

/// What a node should be doing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeDesired {
    /// The node.
    pub node: NodeId,
    /// Counts the changes of this node's desired state; never goes back.
    pub generation: u64,
    /// When it was written, or its lease last renewed.
    pub issued_at_us: Timestamp,
    /// Until when its caps and clocks may be obeyed.
    pub expires_at_us: Timestamp,
    /// The GPUs that shall have a cap or clock other than the card's default.
    #[serde(default)]
    pub gpus: Vec<DesiredGpu>,
    /// The jobs that shall run here; every other is to be stopped.
    #[serde(default)]
    pub jobs: Vec<DesiredJob>,
    /// Whether it sleeps; absent: it is awake, as far as is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sleep: Option<NodeSleep>,
}

/// A node that is not simply awake, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSleep {
    /// What it does.
    pub is: SleepState,
    /// Since when.
    pub since_us: Timestamp,
}

/// How a node that is not simply awake sleeps or wakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SleepState {
    /// It shall fall asleep: its power agent runs the operator's `sleep_command`, once for each
    /// `since_us`, while the lease runs and no job stands here.
    FallingAsleep,
    /// It has fallen silent and sleeps. Whoever reads this on the node itself does nothing.
    Asleep,
    /// The placer runs the operator's `wake_command`, and waits for the node to be heard of.
    Waking,
    /// It was not heard of in time after its wake command: unhealthy until it is.
    NotWoken,
}

impl SleepState {
    /// In a person's words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::FallingAsleep => "falling asleep",
            Self::Asleep => "asleep",
            Self::Waking => "waking",
            Self::NotWoken => "did not wake",
        }
    }
}

/// Cap and clock of one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredGpu {
    /// The GPU.
    pub gpu: GpuIndex,
    /// Its power cap; absent: the card's default.
    #[serde(default)]
    pub cap_mw: Option<Power>,
    /// Its highest SM clock; absent: not locked.
    #[serde(default)]
    pub clock_mhz_max: Option<Frequency>,
}

/// One job's part on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredJob {
    /// The job.
    pub job: JobId,
    /// Which start of the job this is, from 1. The same attempt is never started twice.
    pub attempt: u32,
    /// Its GPUs on this node, ascending.
    pub gpus: Vec<GpuIndex>,
    /// This node's rank among the job's nodes, from 0.
    pub rank: u32,
    /// All of the job's nodes in rank order, this one too.
    pub shares: Vec<NodeShare>,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Environment variables of the job's own.
    #[serde(default)]
    pub environment: Vec<(String, String)>,
    /// The folder it starts in.
    #[serde(default)]
    pub working_dir: Option<String>,
    /// The signal that asks it to checkpoint and exit.
    #[serde(default)]
    pub checkpoint_signal: Option<String>,
    /// Run (`false`), or checkpoint and stop (`true`): it is being moved or undone.
    #[serde(default)]
    pub stop: bool,
}
