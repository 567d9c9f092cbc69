//! The placer's answer to a request.
//!
//! * **Publisher:** placer.
//! * **Listeners:** whoever asked.
//! * **How often:** once for each request.
//! * **Delivery:** NATS reply, JSON.
//! * **Lost or doubled:** ask again; see [`super::request`].

use serde::{Deserialize, Serialize};

use crate::id::JobId;

/// The placer's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "answer")]
pub enum Reply {
    /// Done, and stored.
    Accepted {
        /// The job it is about.
        job: JobId,
    },
    /// Not done.
    Refused {
        /// What is wrong and what to do about it.
        error: String,
    },
}
