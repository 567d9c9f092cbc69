//! The bus: Wattle's interface to NATS. The only module that names `async_nats`.
//!
//! Guarantees:
//! * Every call has a time limit in wall time (`bounded`), unless its documentation states that it waits. A
//!   process that holds a lease gives it up when such a wait lasts ([`crate::service`]).
//! * While the server is away, sending returns [`BusError::Disconnected`] at once. (The client library
//!   would accept the message and deliver it after it reconnects, when it may be out of date.) The
//!   connection may break after the check, so a receiver judges a message by the time in it, not by its
//!   arrival.
//! * Watches, consumers and subscriptions survive a restart of the server. A watch or consumer may
//!   then repeat values.
//! * All functions work with nats-server 2.9.10, which distributions ship, and with the newest.

mod bounded;
mod changes;
mod claim;
mod clusters;
mod config;
mod connect;
mod copies;
mod credentials;
mod decode;
mod error;
mod exclusive;
mod follow;
mod identity;
mod kv;
mod latest;
mod lease;
mod limits;
mod newest;
mod pending;
mod position;
mod repeated;
mod replay;
mod sequenced;
mod service;
mod snapshot;
mod store;
mod stream;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use async_nats::jetstream;
use bounded::{Answers, Bounded};
use bytes::Bytes;
use futures_util::StreamExt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use wattle_common::ClusterId;
use wattle_common::codec::{self, PAYLOAD_LEN_MAX};
use wattle_common::subject::{RequestTopic, Requester, StreamName, Subject};

pub use changes::{Change, Watch};
pub(crate) use claim::{Claim, Claimed};
pub use claim::{claimant, claimant_of};
pub use config::BusConfig;
pub use decode::JobChange;
pub use error::BusError;
pub use exclusive::{ExclusiveBucket, ExclusiveError, Stored};
pub use kv::{Fill, KvBucket};
pub use lease::{LeaderElector, Leadership, LeaseLost};
pub use limits::{Limit, ServerLimits};
pub use newest::NewestMessages;
pub use pending::PendingWrites;
pub use replay::Replay;
pub use service::{
    FoundEndpoint, FoundService, ProcessStatistics, Request, Requests, SERVICE_BUSY, Service,
};
pub use snapshot::StreamDescription;
pub use store::Appender;
pub use stream::{Consumer, StoredDelivery};

/// Time limit of a request, wall time. A loopback reply takes 0.2 ms; two seconds allow for a busy
/// server without stalling a service's loop.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// One cluster's messages on a NATS server. Clones share one connection.
#[derive(Clone)]
pub struct Bus {
    shared: Arc<Shared>,
}

struct Shared {
    client: Bounded<async_nats::Client>,
    jetstream: Bounded<jetstream::Context>,
    answers: Arc<Answers>,
    cluster: ClusterId,
    url: String,
    requester: Requester,
    /// The public key that this process presents; absent: none.
    key: Option<String>,
    /// Whether the key's file names an identity of the role table.
    has_role: bool,
    /// Whether the server refused the last connection because of the identity.
    refused: Arc<AtomicBool>,
    /// Whether the server has refused a message of this process.
    forbidden: Arc<AtomicBool>,
    /// Whether the client has given up.
    ended: Arc<AtomicBool>,
    /// Number of connections so far.
    reached: watch::Receiver<u64>,
    /// Streams known to exist, in the order of [`StreamName::ALL`].
    streams_ready: [AtomicBool; StreamName::ALL.len()],
    /// Number of servers that keep each bucket and stream, if this process sets it.
    replicas: Option<usize>,
    /// Whether opening a bucket ends with an error after [`connect::OPENED_WITHIN`]; otherwise it waits.
    gives_up: AtomicBool,
}

/// A received message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Its subject; parse it with [`Subject`]'s `FromStr`.
    pub subject: String,
    /// Its payload.
    pub payload: Bytes,
    /// Whether it has NATS headers.
    pub headers: bool,
}

/// The messages on the subjects of a pattern.
///
/// It queues at most 131,072 messages; later ones are dropped and logged.
pub struct Subscription(async_nats::Subscriber);

impl Subscription {
    /// The next message; `None` after the bus is closed.
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
    /// The client library, for tests of what the bus does not permit.
    pub(crate) fn client(&self) -> async_nats::Client {
        self.shared.client.now(Clone::clone)
    }

    /// The cluster.
    #[must_use]
    pub fn cluster(&self) -> &ClusterId {
        &self.shared.cluster
    }

    /// The subject of this process's request to the placer or registry.
    #[must_use]
    pub fn request_subject(&self, topic: RequestTopic) -> Subject {
        Subject::request(self.cluster().clone(), topic, self.requester().clone())
    }

    /// The server's address, without a password.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.shared.url
    }

    /// Whether the server is connected; a silently broken connection is detected within seconds.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.shared.client.now(async_nats::Client::connection_state)
            == async_nats::connection::State::Connected
    }

    /// Number of connections to the server so far; each after the first is a reconnection.
    #[must_use]
    pub fn connections(&self) -> u64 {
        *self.shared.reached.borrow()
    }

    /// Publishes a message as JSON to the current subscribers.
    ///
    /// # Errors
    /// [`BusError::Disconnected`], [`BusError::TooLarge`] or [`BusError::Busy`]; nothing was sent.
    pub async fn publish<T: Serialize>(
        &self,
        subject: &Subject,
        message: &T,
    ) -> Result<(), BusError> {
        self.publish_bytes(subject, codec::encode_json(message)).await
    }

    /// Publishes bytes to the current subscribers. For a message that may be lost, ignore the error.
    ///
    /// # Errors
    /// As [`Self::publish`].
    pub async fn publish_bytes(&self, subject: &Subject, payload: Vec<u8>) -> Result<(), BusError> {
        let subject = subject.to_string();
        self.check(&subject, payload.len())?;
        // While the client's queue is full the server accepts nothing.
        let sent =
            self.shared.client.send(|client| client.publish(subject, payload.into())).await?;
        sent.map_err(|source| BusError::refused("publish", source))
    }

    /// Sends a request and waits for the reply for at most two seconds of wall time.
    ///
    /// # Errors
    /// [`BusError::NoResponder`] without a service on the subject, [`BusError::Timeout`] without a
    /// reply (the request may have been carried out), [`BusError::Service`] if the service replied
    /// with an error, [`BusError::Codec`] if the reply cannot be decoded.
    pub async fn request<T: Serialize, R: DeserializeOwned>(
        &self,
        subject: &Subject,
        message: &T,
    ) -> Result<R, BusError> {
        let (subject, payload) = (subject.to_string(), codec::encode_json(message));
        self.check(&subject, payload.len())?;
        let reply =
            self.shared.client.send(|client| client.request(subject.clone(), payload.into())).await;
        let reply = match reply {
            Err(_) => return Err(BusError::Timeout { what: format!("request {subject}") }),
            Ok(reply) => reply.map_err(|source| match source.kind() {
                async_nats::RequestErrorKind::NoResponders => BusError::NoResponder { subject },
                async_nats::RequestErrorKind::TimedOut => {
                    BusError::Timeout { what: format!("request {subject}") }
                }
                _ => BusError::refused("request", source),
            })?,
        };
        if let Some(error) = service::error_of(&reply) {
            return Err(error);
        }
        Ok(codec::decode_json(&reply.payload)?)
    }

    /// Subscribes to a subject or a pattern ([`wattle_common::subject::Topic::pattern`],
    /// [`Subject::everything`]).
    ///
    /// # Errors
    /// If the pattern is invalid.
    pub async fn subscribe(&self, pattern: &str) -> Result<Subscription, BusError> {
        let subscriber = self.subscriber(pattern.to_owned()).await?;
        // Subscribing queues the command; after a flush it precedes later messages.
        self.flush().await;
        Ok(Subscription(subscriber))
    }

    async fn subscriber(&self, subject: String) -> Result<async_nats::Subscriber, BusError> {
        let subscribed = self.shared.client.send(|client| client.subscribe(subject)).await?;
        subscribed.map_err(|source| BusError::refused("subscribe", source))
    }

    /// Writes queued messages to the connection. It does not prove their delivery.
    pub async fn flush(&self) {
        if self.shared.client.send(async_nats::Client::flush).await.is_err() {
            tracing::debug!("queued messages not written");
        }
    }

    /// A new name of a consumer, which no other process can guess.
    fn consumer_name(&self) -> String {
        let inbox = self.new_inbox();
        inbox.rsplit('.').next().unwrap_or(&inbox).to_owned()
    }

    fn new_inbox(&self) -> String {
        self.shared.client.now(async_nats::Client::new_inbox)
    }

    fn check(&self, subject: &str, len: usize) -> Result<(), BusError> {
        let server_max = self.shared.client.now(async_nats::Client::max_payload);
        if len > PAYLOAD_LEN_MAX.min(server_max) {
            return Err(self.too_large(subject, len, server_max));
        }
        self.check_connected()
    }

    fn check_connected(&self) -> Result<(), BusError> {
        if self.is_connected() {
            Ok(())
        } else {
            Err(BusError::Disconnected { url: self.shared.url.clone() })
        }
    }
}
