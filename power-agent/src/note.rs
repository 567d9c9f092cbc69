//! What the machine wants said in the log.
//!
//! The machine does not log (it has no output of its own but actions); the shell writes each note
//! once, with fields. A note is said when something changes, not every time it is seen.

use std::fmt;

use wattle_common::{Frequency, GpuIndex, NodeId, Power, Timestamp};

/// Something a person who reads the log should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// An order older than the newest was ignored.
    Older {
        /// The generation it had.
        generation: u64,
        /// The newest known.
        newest: u64,
    },
    /// An order was for another node.
    ForeignNode {
        /// The node it names.
        node: NodeId,
    },
    /// An order had expired when it came.
    Stale {
        /// Its generation.
        generation: u64,
        /// When it expired.
        expired_at: Timestamp,
    },
    /// An order names a GPU that the node does not have.
    NoSuchGpu {
        /// The GPU.
        gpu: GpuIndex,
    },
    /// The lease ran out; the cards go to their safe state.
    LeaseEnded {
        /// The generation whose lease it was.
        generation: u64,
    },
    /// An order, or the driver's refusal of it, stands unfulfilled.
    Refused {
        /// The GPU.
        gpu: GpuIndex,
        /// Why.
        error: String,
    },
    /// Somebody else changed a card's cap; it is set again.
    ForeignCap {
        /// The GPU.
        gpu: GpuIndex,
        /// What was set.
        set: Power,
        /// What was found.
        found: Option<Power>,
    },
    /// A card runs faster than its lock; it is locked again.
    ForeignClock {
        /// The GPU.
        gpu: GpuIndex,
        /// The lock.
        set: Frequency,
        /// What was found.
        found: Frequency,
    },
    /// A card does not answer.
    Lost {
        /// The GPU.
        gpu: GpuIndex,
        /// The driver's words.
        error: String,
    },
    /// A card answers again.
    Back {
        /// The GPU.
        gpu: GpuIndex,
    },
    /// No card can be read.
    DriverAway {
        /// The driver's words.
        error: String,
    },
    /// The cards cannot be on boards as the configuration has it; nobody is told of boards.
    NoSuchBoards {
        /// Why.
        error: String,
    },
    /// The sleep command is run.
    FallsAsleep,
    /// It did not do its work.
    StaysAwake {
        /// Why.
        error: String,
    },
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Older { generation, newest } => {
                write!(f, "order of generation {generation} ignored: {newest} is newer")
            }
            Self::ForeignNode { node } => write!(f, "order for node {node} ignored"),
            Self::Stale { generation, expired_at } => write!(
                f,
                "order of generation {generation} had expired at {expired_at}: cards go to their safe state"
            ),
            Self::NoSuchGpu { gpu } => write!(f, "order names gpu {gpu}, which is not here"),
            Self::LeaseEnded { generation } => {
                write!(f, "lease of generation {generation} ran out: cards go to their safe state")
            }
            Self::Refused { gpu, error } => write!(f, "gpu {gpu}: not set: {error}"),
            Self::ForeignCap { gpu, set, found: Some(found) } => {
                write!(f, "gpu {gpu}: cap was set to {set} and found at {found}: set again")
            }
            Self::ForeignCap { gpu, set, found: None } => {
                write!(f, "gpu {gpu}: cap was set to {set} and cannot be read: set again")
            }
            Self::ForeignClock { gpu, set, found } => {
                write!(f, "gpu {gpu}: clock is locked at {set} and found at {found}: locked again")
            }
            Self::Lost { gpu, error } => write!(f, "gpu {gpu} does not answer: {error}"),
            Self::Back { gpu } => write!(f, "gpu {gpu} answers again"),
            Self::DriverAway { error } => write!(f, "no card can be read: {error}"),
            Self::NoSuchBoards { error } => write!(f, "gpus_per_board is not used: {error}"),
            Self::FallsAsleep => f.write_str("nobody needs the node: it falls asleep"),
            Self::StaysAwake { error } => write!(f, "the node cannot fall asleep: {error}"),
        }
    }
}
