//! The placer's reply to a job request.
//!
//! * **Publisher:** placer.
//! * **Listeners:** the requester.
//! * **How often:** once for each request.
//! * **Delivery:** NATS reply, JSON.
//! * **Lost or doubled:** repeat the request; see [`super::request`].

use serde::{Deserialize, Serialize};

use crate::generation::is_unknown;
use crate::id::JobId;

/// The placer's reply to a job request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "result")]
pub enum Reply {
    /// Done, and stored.
    Accepted {
        /// The job.
        job: JobId,
        /// The generation of its record that reflects the request ([`super::JobRecord::generation`]).
        #[serde(default, skip_serializing_if = "is_unknown")]
        generation: u64,
    },
    /// Not done.
    Refused {
        /// The cause and the remedy.
        error: String,
    },
}
