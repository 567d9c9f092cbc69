//! The state that must survive a restart of the service: which attempts it has released, and which orders it
//! has obeyed.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use wattle_common::bounds::OrderVersion;
use wattle_common::{JobId, NodeId, Timestamp};

/// The newest attempt of a job that was released, or that was found running.
///
/// It is stored before the release. An attempt is never released twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Released {
    /// The attempt.
    pub attempt: u32,
    /// The scheduler's restart count of its run. A higher one means that the run has ended.
    pub restarts: u32,
    /// When it was released.
    pub at_us: Timestamp,
    /// When its stop was first requested, by a signal or a requeue. A program that ends with code 0 after that
    /// has stopped and not completed, unless its owner has declared another code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_at_us: Option<Timestamp>,
    /// Whether the scheduler has answered the command that sends the checkpoint signal. Until then a process that
    /// continues sends it again: a job must not lose a checkpoint because a process ended.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_signalled: bool,
}

/// The state that outlives a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PersistedState {
    /// The newest released attempt of each job.
    pub released: BTreeMap<JobId, Released>,
    /// The version of the last order of each node.
    pub obeyed: BTreeMap<NodeId, OrderVersion>,
    /// Jobs whose energy is in the scheduler's accounting.
    pub energy: BTreeSet<JobId>,
}
