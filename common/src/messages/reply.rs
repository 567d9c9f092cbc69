//! The placer's reply to a job request.
//!
//! * **Publisher:** placer.
//! * **Listeners:** the requester.
//! * **How often:** once for each request.
//! * **Delivery:** NATS reply, JSON.
//! * **Lost or doubled:** repeat the request; see [`super::request`].

use serde::{Deserialize, Serialize};

use crate::id::JobId;

/// The placer's reply to a job request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "result")]
pub enum Reply {
    /// Done, and stored.
    Accepted {
        /// The job.
        job: JobId,
    },
    /// Not done.
    Refused {
        /// The cause and the remedy.
        error: String,
    },
}
