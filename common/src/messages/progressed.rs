//! Training progress of a job.
//!
//! * **Publisher:** profiler of the job's first node (rank 0 reports).
//! * **Listeners:** placer (remaining work, epoch ends), `wattle jobs`.
//! * **How often:** at each completed epoch, and every ten seconds.
//! * **Delivery:** core NATS, JSON.
//! * **Lost or doubled:** each message is complete; the next one replaces it.

use serde::{Deserialize, Serialize};

use crate::id::{AdmissionId, JobId, NodeId};
use crate::time::Timestamp;

/// Training progress of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobProgressed {
    /// The job.
    pub job: JobId,
    /// The submission that it is of; absent: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admission: Option<AdmissionId>,
    /// The node that received the job's report.
    pub node: NodeId,
    /// Number of this start of the job, from 1.
    pub attempt: u32,
    /// When it was reported.
    pub at_us: Timestamp,
    /// Steps since the job's beginning.
    pub step: u64,
    /// Total number of steps, if reported.
    #[serde(default)]
    pub steps_total: Option<u64>,
    /// Completed epochs.
    #[serde(default)]
    pub epoch: Option<u32>,
    /// Steps in an epoch.
    #[serde(default)]
    pub steps_per_epoch: Option<u64>,
    /// Steps per second over the last reports.
    #[serde(default)]
    pub steps_per_s: Option<f64>,
}
