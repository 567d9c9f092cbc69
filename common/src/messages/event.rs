//! Grid events: requests about them, the reply, and the stored records.
//!
//! * **Publisher:** `wattle event`, any NATS client ([`EventRequest`]); only the placer ([`EventBook`]).
//! * **Listeners:** placer, through the NATS service API; `wattle event list`; the placer itself when it restarts.
//! * **How often:** when a person or a source announces or changes an event; the records also when an event begins, and
//!   when an old one is dropped.
//! * **Delivery:** request and reply ([`EventReply`]), sent after the records are stored; key-value bucket `budget`, key
//!   `events`; the last value is current.
//! * **Lost or doubled:** repeat the request: an event is known by its id and content, and a repetition changes nothing.

use serde::{Deserialize, Serialize};

#[cfg(doc)]
use crate::event::EventBook;
use crate::event::{EventRecord, GridEvent};
use crate::generation::is_unknown;
use crate::id::EventId;

/// Request: announce or change an event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "request")]
pub enum EventRequest {
    /// Announce an event. The power drawn now is its baseline.
    Add {
        /// The event.
        event: GridEvent,
    },
    /// Shorten or extend it, also after it has begun.
    Change {
        /// Its id.
        event: EventId,
        /// The time at the target, seconds.
        duration_s: u64,
    },
    /// Cancel it, also after it has begun: then its ramp up begins.
    Cancel {
        /// Its id.
        event: EventId,
    },
    /// Decline a voluntary event before its start.
    Decline {
        /// Its id.
        event: EventId,
    },
}

impl EventRequest {
    /// The event that it is about.
    #[must_use]
    pub const fn event(&self) -> &EventId {
        match self {
            Self::Add { event } => &event.event,
            Self::Change { event, .. } | Self::Cancel { event } | Self::Decline { event } => event,
        }
    }
}

/// The placer's reply to [`EventRequest`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "result")]
pub enum EventReply {
    /// The event is stored.
    Stored {
        /// Its record.
        record: Box<EventRecord>,
        /// The generation with which it is stored ([`EventBook::generation`]).
        #[serde(default, skip_serializing_if = "is_unknown")]
        generation: u64,
    },
    /// Nothing changed.
    Refused {
        /// The cause and the remedy.
        error: String,
    },
}
