//! What a decision changes for the job and for others, against what it replaces.
//!
//! It is a part of a reason in the job's record ([`RecordedReason`](crate::messages::RecordedReason)). All of it is
//! predicted at the time of the decision, under the assumptions of the expected times
//! ([`crate::messages::ExpectedTimes`]).

use serde::{Deserialize, Serialize};

/// What a decision changes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Consequence {
    /// What the decision is compared with, for people: `8 GPUs`, `a cap of 250 W`, `waiting for 1 GPU of its own`.
    pub in_place_of: String,
    /// How much later the job ends, seconds; negative: sooner. Absent: its speed is not predicted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_later_s: Option<f64>,
    /// How much more energy its GPUs draw until its end, joules; negative: less. Absent: its power is not predicted, or
    /// other jobs share the GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy_more_j: Option<f64>,
    /// The queued jobs that start sooner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued_sooner: Option<MovedJobs>,
    /// The queued jobs that start later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued_later: Option<MovedJobs>,
    /// The jobs on the same GPUs that end later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenants_later: Option<MovedJobs>,
}

/// Jobs whose start or end a decision moves.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MovedJobs {
    /// Number of jobs.
    pub jobs: u32,
    /// By how much on average, seconds.
    pub by_s: f64,
}
