//! Requests to the placer: submit a job, cancel a job.
//!
//! * **Publisher:** `wattle submit`, `wattle cancel`, any NATS client.
//! * **Listeners:** placer, through the NATS service API.
//! * **How often:** on request.
//! * **Delivery:** request and reply ([`super::Reply`]). The reply is sent after the job is stored, so
//!   an acknowledged job is never lost.
//! * **Lost or doubled:** without a reply, repeat the request with the same job id and submission id: it is
//!   acknowledged again and not duplicated. Another submission of a known job id is refused.

use serde::{Deserialize, Serialize};

use crate::id::{JobId, SubmissionId};
use crate::job::JobSpec;

/// Request: accept this job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubmitJob {
    /// The job; the placer sets its `submitted_at_us` and, from the subject, its `user`.
    pub spec: JobSpec,
    /// Identifies the submission, to recognise a repeated request. Absent: an equal specification is a
    /// repeated request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submission: Option<SubmissionId>,
    /// Whether the NATS server has proven the identity of `spec.user`. Only the placer sets it.
    #[serde(skip)]
    pub user_proven: bool,
}

/// Request: cancel this job; a running job is stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelJob {
    /// The job.
    pub job: JobId,
}
