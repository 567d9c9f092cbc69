//! Record of an order of a person: person, order, time, and whether it was accepted.
//!
//! * **Publisher:** placer, registry.
//! * **Listeners:** `wattle audit`.
//! * **How often:** once for each submission, cancellation, budget, event and promotion.
//! * **Delivery:** JetStream stream `orders`.
//! * **Lost or doubled:** the message id removes duplicates; the records of the last moments before a
//!   service is killed may be missing.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id::{EventId, JobId, PredictorId};
use crate::subject::Requester;
use crate::time::Timestamp;

/// An order and its outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderRecord {
    /// When it was answered.
    pub at_us: Timestamp,
    /// The person.
    pub requester: Requester,
    /// Whether the NATS server has proven the person's identity by a key.
    pub proven: bool,
    /// What was ordered.
    #[serde(flatten)]
    pub order: Order,
    /// Why it was refused; absent: it was accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// What was ordered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "order")]
pub enum Order {
    /// Run a job.
    Submit {
        /// The job.
        job: JobId,
    },
    /// Cancel a job.
    Cancel {
        /// The job.
        job: JobId,
    },
    /// Put a budget in force.
    Budget {
        /// The budget.
        budget: String,
    },
    /// Announce or change a grid event.
    Event {
        /// The event.
        event: EventId,
        /// What was ordered of it.
        change: String,
    },
    /// Make a predictor the champion.
    Promote {
        /// The predictor.
        predictor: PredictorId,
    },
    /// A request that cannot be decoded.
    Unreadable {
        /// Its topic.
        topic: String,
    },
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Submit { job } => write!(f, "submit {job}"),
            Self::Cancel { job } => write!(f, "cancel {job}"),
            Self::Budget { budget } => write!(f, "budget {budget}"),
            Self::Event { event, change } => write!(f, "event {event}: {change}"),
            Self::Promote { predictor } => write!(f, "promote {predictor}"),
            Self::Unreadable { topic } => write!(f, "unreadable {topic}"),
        }
    }
}
