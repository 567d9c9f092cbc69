//! How far a job is.
//!
//! * **Publisher:** profiler of the job's first node (rank 0 reports).
//! * **Listeners:** placer (remaining work, epoch ends), `wattle jobs`.
//! * **How often:** at each completed epoch, and every ten seconds.
//! * **Delivery:** core NATS, JSON.
//! * **Lost or doubled:** whole state, not a difference; the next says more.

use serde::{Deserialize, Serialize};

use crate::id::{JobId, NodeId};
use crate::time::Timestamp;

/// How far a job is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobProgressed {
    /// The job.
    pub job: JobId,
    /// The node it was heard on.
    pub node: NodeId,
    /// Which start of the job.
    pub attempt: u32,
    /// When.
    pub at_us: Timestamp,
    /// Steps done since the job's beginning.
    pub step: u64,
    /// Steps after which it is done, where it says so.
    #[serde(default)]
    pub steps_total: Option<u64>,
    /// Epochs completed.
    #[serde(default)]
    pub epoch: Option<u32>,
    /// Steps in an epoch.
    #[serde(default)]
    pub steps_per_epoch: Option<u64>,
    /// Steps a second over the last reports.
    #[serde(default)]
    pub steps_per_s: Option<f64>,
}
