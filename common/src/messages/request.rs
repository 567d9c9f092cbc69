//! What a person asks of the placer: take this job, take that one back.
//!
//! * **Publisher:** `wattle submit`, `wattle cancel`, any NATS client.
//! * **Listeners:** placer, through the NATS service API.
//! * **How often:** when asked.
//! * **Delivery:** request and reply ([`super::Reply`]). The reply comes only after the job is
//!   stored, so what was acknowledged is never lost.
//! * **Lost or doubled:** without a reply, ask again with the same job id: a job that is known with
//!   the same specification is acknowledged again and not doubled.

use serde::{Deserialize, Serialize};

use crate::id::JobId;
use crate::job::JobSpec;

/// Take this job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubmitJob {
    /// The job; its `submitted_at_us` is set by the placer.
    pub spec: JobSpec,
}

/// Take this job back: stop it if it runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelJob {
    /// The job.
    pub job: JobId,
}
