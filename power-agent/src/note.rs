//! Log messages of the machine, which does no I/O itself: one for each change.

use std::fmt;
use std::time::Duration;

use wattle_common::bounds::OrderRefused;
use wattle_common::messages::GpuConditionKind;
use wattle_common::{Frequency, GpuIndex, NodeId, Power};

/// A log message for the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// A desired state was refused: outdated, or with a number outside its limits.
    Refused(OrderRefused),
    /// A desired state was for another node.
    WrongNode {
        /// The node it names.
        node: NodeId,
    },
    /// A desired state had expired when it was received.
    Expired {
        /// Its generation.
        generation: u64,
        /// Its age when it was received; absent: unknown, because it comes from the future.
        age: Option<Duration>,
    },
    /// A desired state names a GPU that the node does not have.
    UnknownGpu {
        /// The GPU.
        gpu: GpuIndex,
    },
    /// The lease expired; the GPUs return to their safe state.
    LeaseEnded {
        /// The generation of the lease.
        generation: u64,
    },
    /// Under a power limit over time another bound of every cap is in force.
    CapsBounded {
        /// The bound; absent: the ordered caps and the shares alone.
        bound: Option<Power>,
    },
    /// A grid event is over without an order: the shares from before it hold again.
    EventOver,
    /// The node has a limit, and a GPU that answers states no cap.
    NodeLimitUnbounded {
        /// The limit.
        limit: Power,
        /// The first such GPU.
        gpu: GpuIndex,
    },
    /// The lowest possible caps exceed the node's limit.
    NodeLimitMissed {
        /// The limit.
        limit: Power,
        /// The sum of the lowest possible caps.
        lowest: Power,
    },
    /// A setting was not applied.
    NotApplied {
        /// The GPU.
        gpu: GpuIndex,
        /// The cause.
        error: String,
    },
    /// A GPU supports no power cap.
    NoCap {
        /// The GPU.
        gpu: GpuIndex,
    },
    /// A GPU's clock cannot be locked.
    NoLock {
        /// The GPU.
        gpu: GpuIndex,
    },
    /// Another program changed a GPU's cap; it is set again.
    CapChanged {
        /// The GPU.
        gpu: GpuIndex,
        /// The cap that was set.
        set: Power,
        /// The cap that was read.
        found: Option<Power>,
    },
    /// A GPU runs above its lock; it is locked again.
    ClockAboveLock {
        /// The GPU.
        gpu: GpuIndex,
        /// The lock.
        set: Frequency,
        /// The clock that was read.
        found: Frequency,
    },
    /// A GPU does not answer.
    Lost {
        /// The GPU.
        gpu: GpuIndex,
        /// The driver's error.
        error: String,
    },
    /// A GPU answers again.
    Recovered {
        /// The GPU.
        gpu: GpuIndex,
    },
    /// A GPU was reset, or its driver was loaded again, between two readings.
    Restarted {
        /// The GPU.
        gpu: GpuIndex,
    },
    /// No GPU can be read.
    DriverFailed {
        /// The driver's error.
        error: String,
    },
    /// The GPUs can be read again.
    DriverReturned,
    /// A GPU has a condition.
    ConditionBegan {
        /// The GPU.
        gpu: GpuIndex,
        /// The condition.
        condition: GpuConditionKind,
        /// The driver's error or a count.
        detail: Option<String>,
    },
    /// A GPU no longer has a condition.
    ConditionEnded {
        /// The GPU.
        gpu: GpuIndex,
        /// The condition.
        condition: GpuConditionKind,
    },
    /// The number of GPUs does not fit `gpus_per_board`, which is not reported.
    InvalidBoards {
        /// The cause.
        error: String,
    },
    /// The sleep command starts.
    EntersSleep,
    /// The sleep command failed.
    SleepFailed {
        /// The cause.
        error: String,
    },
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refused) => write!(f, "desired state refused: {refused}"),
            Self::WrongNode { node } => write!(f, "desired state of node {node} ignored"),
            Self::Expired { generation, age: Some(age) } => write!(
                f,
                "desired state of generation {generation} ignored: it was {} s old: GPUs are in their \
                 safe state until the next one",
                age.as_secs()
            ),
            Self::Expired { generation, age: None } => write!(
                f,
                "desired state of generation {generation} ignored: this node's clock is behind the \
                 placer's; GPUs are in their safe state until the next one"
            ),
            Self::UnknownGpu { gpu } => write!(f, "GPU {gpu} is desired but not on this node"),
            Self::LeaseEnded { generation } => {
                write!(
                    f,
                    "lease of generation {generation} expired: GPUs return to their safe state"
                )
            }
            Self::CapsBounded { bound: Some(bound) } => {
                write!(f, "the power limit changes: no cap is above {bound}")
            }
            Self::CapsBounded { bound: None } => {
                f.write_str("the power limit changes: the ordered caps apply")
            }
            Self::EventOver => f.write_str(
                "the grid event is over and no order is in force: caps may be those from before it",
            ),
            Self::NodeLimitMissed { limit, lowest } => write!(
                f,
                "node_limit_w is exceeded: it is {limit}, and the lowest caps that can be set add up to \
                 {lowest}: correct node_limit_w, or find the GPU that refuses its cap"
            ),
            Self::NodeLimitUnbounded { limit, gpu } => write!(
                f,
                "node_limit_w is {limit}, and nothing bounds the power of GPU {gpu}, which states no cap: the limit \
                 holds for the other GPUs only"
            ),
            Self::NotApplied { gpu, error } => write!(f, "GPU {gpu}: not set: {error}"),
            Self::NoCap { gpu } => write!(
                f,
                "GPU {gpu} supports no power cap: it is advised only, and its node counts with the power that \
                 the GPU can draw"
            ),
            Self::NoLock { gpu } => {
                write!(f, "GPU {gpu}: its clock cannot be locked: clocks are advised only")
            }
            Self::CapChanged { gpu, set, found: Some(found) } => {
                write!(f, "GPU {gpu}: cap was set to {set} and is {found}: set again")
            }
            Self::CapChanged { gpu, set, found: None } => {
                write!(f, "GPU {gpu}: cap was set to {set} and cannot be read: set again")
            }
            Self::ClockAboveLock { gpu, set, found } => {
                write!(f, "GPU {gpu}: clock is locked at {set} and is {found}: locked again")
            }
            Self::Lost { gpu, error } => write!(f, "GPU {gpu} does not answer: {error}"),
            Self::Recovered { gpu } => write!(f, "GPU {gpu} answers again"),
            Self::Restarted { gpu } => write!(
                f,
                "GPU {gpu} was reset or its driver was loaded again: cap and clock are set again"
            ),
            Self::DriverReturned => {
                f.write_str("the GPUs can be read again: caps and clocks are set again")
            }
            Self::ConditionBegan { gpu, condition, detail } => {
                write!(f, "GPU {gpu} {}", condition.description())?;
                if let Some(detail) = detail {
                    write!(f, " ({detail})")?;
                }
                write!(f, "; {}", condition.remedy())
            }
            Self::ConditionEnded { gpu, condition } => {
                write!(f, "GPU {gpu}: condition ended: {}", condition.description())
            }
            Self::DriverFailed { error } => write!(f, "no GPU can be read: {error}"),
            Self::InvalidBoards { error } => write!(f, "gpus_per_board is not used: {error}"),
            Self::EntersSleep => f.write_str("the node is idle and enters sleep"),
            Self::SleepFailed { error } => write!(f, "the node cannot enter sleep: {error}"),
        }
    }
}
