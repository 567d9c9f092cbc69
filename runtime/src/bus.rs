//! The bus: NATS, as Wattle uses it. The only module of the project that names `async_nats`.
//!
//! What a caller can rely on:
//! * Nothing waits for ever, except where it says so. NATS's own time-outs count wall time.
//! * While the server is away, sending answers [`BusError::Away`] at once. (The client underneath
//!   would say yes, and deliver when the server is back: an order could arrive long after it was
//!   right.) The link may break after the check, so a receiver still judges a message by the time in
//!   it, never by its arrival.
//! * Watches, consumers and subscriptions survive the server's restart. A watch and a consumer may
//!   then say again what they had said.
//! * Everything works on nats-server 2.9.10, which distributions ship, and on the newest.

mod config;
mod connect;
mod error;
mod exclusive;
mod kv;
mod latest;
mod pending;
mod service;
mod stream;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use async_nats::jetstream;
use bytes::Bytes;
use futures_util::StreamExt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use wattle_common::ClusterId;
use wattle_common::codec::{self, PAYLOAD_LEN_MAX};
use wattle_common::subject::{StreamName, Subject};

pub use config::BusConfig;
pub use error::BusError;
pub use exclusive::{ExclusiveBucket, ExclusiveError, Stored};
pub use kv::{Change, KvBucket, Watch};
pub use pending::PendingWrites;
pub use service::{FoundService, Request, Requests, Service};
pub use stream::{Consumer, StoredDelivery};

/// Longest wait for an answer, in wall time. A loopback answer takes 0.2 ms; two seconds are a busy
/// server, and more would stall a service's loop.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// One cluster's messages on a NATS server. Clones share one connection.
#[derive(Clone)]
pub struct Bus {
    shared: Arc<Shared>,
}

struct Shared {
    client: async_nats::Client,
    jetstream: jetstream::Context,
    cluster: ClusterId,
    url: String,
    /// How often the server was reached; 0 is never yet.
    reached: watch::Receiver<u64>,
    /// Streams that are known to be there, in the order of [`StreamName::ALL`].
    streams_ready: [AtomicBool; StreamName::ALL.len()],
}

/// A message that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Its subject; [`Subject`]'s `FromStr` takes it apart.
    pub subject: String,
    /// What was sent, as it was sent.
    pub payload: Bytes,
    /// Whether it came with NATS headers.
    pub headers: bool,
}

/// What arrives on the subjects of a pattern.
///
/// Holds at most 65,536 messages that nobody took; later ones are dropped and logged.
pub struct Subscription(async_nats::Subscriber);

impl Subscription {
    /// The next message; `None` once the bus is closed for good.
    pub async fn next(&mut self) -> Option<Delivery> {
        let message = self.0.next().await?;
        Some(Delivery {
            subject: message.subject.to_string(),
            headers: message.headers.is_some(),
            payload: message.payload,
        })
    }
}

impl Bus {
    /// The cluster whose messages these are.
    #[must_use]
    pub fn cluster(&self) -> &ClusterId {
        &self.shared.cluster
    }

    /// The address it was told to connect to, without a password in it.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.shared.url
    }

    /// Whether the server is there, as far as is known: a link that broke without a word is noticed
    /// within seconds.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.shared.client.connection_state() == async_nats::connection::State::Connected
    }

    /// Sends a message as JSON, to whoever listens now.
    ///
    /// # Errors
    /// [`BusError::Away`], [`BusError::TooLarge`] or [`BusError::Busy`]; nothing was sent.
    pub async fn publish<T: Serialize>(
        &self,
        subject: &Subject,
        message: &T,
    ) -> Result<(), BusError> {
        self.publish_bytes(subject, codec::encode_json(message)).await
    }

    /// Sends bytes, to whoever listens now. What may be lost is dropped by ignoring the error.
    ///
    /// # Errors
    /// As [`Self::publish`].
    pub async fn publish_bytes(&self, subject: &Subject, payload: Vec<u8>) -> Result<(), BusError> {
        let subject = subject.to_string();
        self.check(&subject, payload.len())?;
        let sent = self.shared.client.publish(subject, payload.into());
        match tokio::time::timeout(ANSWER_WITHIN, sent).await {
            Ok(sent) => sent.map_err(|source| BusError::refused("publish", source)),
            // The client's own queue is full: the server takes nothing.
            Err(_) => Err(BusError::Busy),
        }
    }

    /// Asks, and waits for the answer for at most two seconds of wall time.
    ///
    /// # Errors
    /// [`BusError::NoResponder`] where nobody serves the subject, [`BusError::Timeout`] where the
    /// answer did not come (it may have been acted upon), [`BusError::Service`] where the service
    /// answered with an error, [`BusError::Codec`] where the answer is none.
    pub async fn request<T: Serialize, R: DeserializeOwned>(
        &self,
        subject: &Subject,
        message: &T,
    ) -> Result<R, BusError> {
        let (subject, payload) = (subject.to_string(), codec::encode_json(message));
        self.check(&subject, payload.len())?;
        let answer = self.shared.client.request(subject.clone(), payload.into());
        let answer = match tokio::time::timeout(ANSWER_WITHIN, answer).await {
            Err(_) => return Err(BusError::Timeout { what: format!("ask {subject}") }),
            Ok(answer) => answer.map_err(|source| match source.kind() {
                async_nats::RequestErrorKind::NoResponders => BusError::NoResponder { subject },
                async_nats::RequestErrorKind::TimedOut => {
                    BusError::Timeout { what: format!("ask {subject}") }
                }
                _ => BusError::refused("ask", source),
            })?,
        };
        if let Some(error) = service::error_of(&answer) {
            return Err(error);
        }
        Ok(codec::decode_json(&answer.payload)?)
    }

    /// Listens to a subject or a pattern ([`wattle_common::subject::Topic::pattern`],
    /// [`Subject::everything`]).
    ///
    /// # Errors
    /// Where the pattern is none.
    pub async fn subscribe(&self, pattern: &str) -> Result<Subscription, BusError> {
        let subscriber = self.shared.client.subscribe(pattern.to_owned()).await;
        let subscriber = subscriber.map_err(|source| BusError::refused("subscribe", source))?;
        // Subscribing only queues the command; written out, it precedes whatever is sent next.
        let _ = tokio::time::timeout(ANSWER_WITHIN, self.shared.client.flush()).await;
        Ok(Subscription(subscriber))
    }

    /// Writes out what was sent. It is no proof that anybody has it.
    pub async fn flush(&self) {
        if tokio::time::timeout(ANSWER_WITHIN, self.shared.client.flush()).await.is_err() {
            tracing::debug!("not everything sent could be written out");
        }
    }

    fn check(&self, subject: &str, len: usize) -> Result<(), BusError> {
        if len > PAYLOAD_LEN_MAX.min(self.shared.client.max_payload()) {
            return Err(BusError::TooLarge { subject: subject.to_owned(), len });
        }
        self.check_connected()
    }

    fn check_connected(&self) -> Result<(), BusError> {
        if self.is_connected() {
            Ok(())
        } else {
            Err(BusError::Away { url: self.shared.url.clone() })
        }
    }
}
