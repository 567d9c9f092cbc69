//! The desired state of a node: its jobs, caps and clocks.
//!
//! * **Publisher:** only the placer.
//! * **Listeners:** the node's launcher and power agent.
//! * **How often:** at every change, and to renew the lease, at least three times within it.
//! * **Delivery:** key-value bucket `desired`, key = node; the last value of a key is current.
//! * **Lost or doubled:** a restarted agent reads the last value from the bucket. A value with an
//!   older (generation, `issued_at_us`) than the last applied one is ignored. After `expires_at_us`
//!   the power agent applies its safe cap; jobs continue. Under a power limit of the site
//!   (`power_limited`) the safe cap of a GPU is at most its last ordered cap. If the limit falls later, the order
//!   names what no cap may exceed from then on, with or without a placer (`caps_ahead`). During a grid event it names
//!   when the caps may be those from before it again (`event_until_us`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::codec::PAYLOAD_LEN_MAX;
use crate::id::{AdmissionId, GpuIndex, JobId, NodeId};
use crate::job::NodeShare;
use crate::time::Timestamp;
use crate::units::{Frequency, Power};

/// Most bytes of commands and environments in one desired state. With more, all of them are left to the
/// jobs' records in the bucket `jobs`. JSON needs at most six bytes for one, so an eighth of the largest
/// payload leaves a quarter of it for the rest.
pub const ORDER_TEXT_MAX: usize = PAYLOAD_LEN_MAX / 8;

/// The desired state of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeDesired {
    /// The node.
    pub node: NodeId,
    /// Number of changes of this node's desired state; never decreases.
    pub generation: u64,
    /// When it was written, or its lease last renewed.
    pub issued_at_us: Timestamp,
    /// End of the lease on its caps and clocks.
    pub expires_at_us: Timestamp,
    /// GPUs whose cap or clock differs from the default.
    #[serde(default)]
    pub gpus: Vec<DesiredGpu>,
    /// Jobs that run on the node; the launcher stops every other job.
    #[serde(default)]
    pub jobs: Vec<DesiredJob>,
    /// Whether a power limit of the site is in force. The caps are then this node's share of it, and no
    /// cap rises above them after the lease.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub power_limited: bool,
    /// Bounds of every cap of the node under a power limit over time, ascending by time. Each holds from its instant
    /// until the next one, within the lease and after it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub caps_ahead: Vec<CapBound>,
    /// During a grid event, the end of its ramp up: after the lease the share of a GPU is its last ordered cap until then,
    /// and from then on its share from before the event. Absent: no event has begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_until_us: Option<Timestamp>,
    /// Sleep state; absent: awake.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sleep: Option<NodeSleep>,
}

/// Most bounds in [`NodeDesired::caps_ahead`].
pub const CAPS_AHEAD_MAX: usize = 16;

/// A bound of every cap of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapBound {
    /// From when on it holds, by the clock of the placer.
    pub from_us: Timestamp,
    /// The highest cap; absent: the ordered caps and the shares alone bound the caps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cap_mw: Option<Power>,
    /// The highest cap of GPUs for which it is another one, because the promise of a job during a grid event needs it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub gpus: BTreeMap<GpuIndex, Power>,
}

impl CapBound {
    /// The highest cap of a GPU.
    #[must_use]
    pub fn of(&self, gpu: GpuIndex) -> Option<Power> {
        self.gpus.get(&gpu).copied().or(self.cap_mw)
    }
}

/// A sleep state other than awake, and when it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSleep {
    /// The state.
    pub state: SleepState,
    /// When it began.
    pub since_us: Timestamp,
}

/// Sleep state of a node that is not awake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SleepState {
    /// The power agent runs the operator's `sleep_command`, once for each `since_us`, while the lease
    /// is current and no job is assigned.
    EnteringSleep,
    /// The node sends no reports: it sleeps. An agent that reads this state does nothing.
    Asleep,
    /// The placer runs the operator's `wake_command` and waits for the node's reports.
    Waking,
    /// No report arrived in time after the wake command: the node is unhealthy until one does.
    WakeFailed,
}

impl SleepState {
    /// The state as shown to people.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::EnteringSleep => "entering sleep",
            Self::Asleep => "asleep",
            Self::Waking => "waking",
            Self::WakeFailed => "wake failed",
        }
    }
}

/// Desired cap and clock of one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredGpu {
    /// The GPU.
    pub gpu: GpuIndex,
    /// Power cap; absent: the default cap.
    #[serde(default)]
    pub cap_mw: Option<Power>,
    /// Upper limit of the locked SM clock; absent: not locked.
    #[serde(default)]
    pub clock_mhz_max: Option<Frequency>,
}

/// One job's share of this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredJob {
    /// The job.
    pub job: JobId,
    /// The submission that it is of; absent: an earlier version accepted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admission: Option<AdmissionId>,
    /// The user who submitted it.
    #[serde(default)]
    pub user: Option<String>,
    /// Number of this start of the job, from 1. An attempt is started at most once.
    pub attempt: u32,
    /// Its GPUs on this node, ascending.
    pub gpus: Vec<GpuIndex>,
    /// This node's rank among the job's nodes, from 0.
    pub rank: u32,
    /// All nodes of the job in rank order, including this one.
    pub shares: Vec<NodeShare>,
    /// The program and its arguments; empty: command, environment and working directory are those of the
    /// job's record ([`ORDER_TEXT_MAX`]).
    #[serde(default)]
    pub command: Vec<String>,
    /// The job's environment variables.
    #[serde(default)]
    pub environment: Vec<(String, String)>,
    /// Working directory.
    #[serde(default)]
    pub working_dir: Option<String>,
    /// The signal that requests a checkpoint and exit.
    #[serde(default)]
    pub checkpoint_signal: Option<String>,
    /// Whether the job must checkpoint and stop, because its placement changes or is undone.
    #[serde(default)]
    pub stop: bool,
}
