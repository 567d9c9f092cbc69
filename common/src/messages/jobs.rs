//! Request for the records of jobs, for people without access to the bucket `jobs`.
//!
//! * **Publisher:** `wattle jobs` and other commands with the key of a user or monitor.
//! * **Listeners:** placer, through the NATS service API.
//! * **How often:** on request.
//! * **Delivery:** request and reply ([`JobsReply`]), in pages.
//! * **Lost or doubled:** repeat the request: it changes nothing.

use serde::{Deserialize, Serialize};

use crate::id::JobId;
use crate::messages::JobRecord;

/// Most bytes of the records of one reply, as JSON; one longer record is a page of its own.
pub const PAGE_LEN_MAX: usize = 256 << 10;

/// Request: the records of the jobs that the requester may see, in the order of their ids.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadJobs {
    /// Only this job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobId>,
    /// Only jobs after this one: the last job of the previous page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<JobId>,
}

/// The placer's reply to [`ReadJobs`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "result")]
pub enum JobsReply {
    /// A page of records.
    Jobs {
        /// The records.
        records: Vec<JobRecord>,
        /// Whether further jobs follow after the last one.
        more: bool,
    },
    /// The request is refused.
    Refused {
        /// The cause and the remedy.
        error: String,
    },
}
