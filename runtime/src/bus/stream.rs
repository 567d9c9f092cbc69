//! JetStream streams: their settings, and ordered consumption of their messages ([`super::store`] writes
//! them).
//!
//! The first user creates a stream. An existing stream keeps its limits, which an operator may have
//! changed; only the settings that Wattle requires are checked.

use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::context::{CreateStreamErrorKind, GetStreamErrorKind};
use async_nats::jetstream::stream::{Config, DiscardPolicy, StorageType};
use async_nats::jetstream::{self, AckKind, ErrorCode};
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;
use wattle_common::codec::PAYLOAD_LEN_MAX;
use wattle_common::subject::{Bucket, StreamName};

use super::kv::FULL;
use super::{ANSWER_WITHIN, Bus, BusError, bounded};
use crate::shell::chain;

/// Retention of windows: predictors do not need those of jobs that ended over a month ago.
const WINDOWS_AGE_MAX: Duration = Duration::from_secs(30 * 86_400);
/// Most bytes of windows: 250,000 windows of about 1 kB.
const WINDOWS_LEN_MAX: i64 = 256 << 20;
/// Retention of the ledger: a year, and the month whose accounts are being closed.
const LEDGER_AGE_MAX: Duration = Duration::from_secs(400 * 86_400);
/// Most bytes of the ledger: 500,000 entries of about 1 kB, which is 100 nodes for three days at one a
/// minute, or ten for a month. A larger site raises it (`nats stream edit`).
const LEDGER_LEN_MAX: i64 = 512 << 20;
/// Retention of the records of orders: as the ledger.
const ORDERS_AGE_MAX: Duration = LEDGER_AGE_MAX;
/// Most bytes of the records of orders: 250,000 records of about 250 bytes.
const ORDERS_LEN_MAX: i64 = 64 << 20;
/// Retention of the power of the site: as the ledger.
const SITE_AGE_MAX: Duration = LEDGER_AGE_MAX;
/// Most bytes of the power of the site: 576,000 records, 400 days of one a minute, of at most 466 bytes with headers; with 16
/// feeders of about 150 bytes each 60 days.
const SITE_LEN_MAX: i64 = 256 << 20;
/// Most bytes of a stream.
pub(super) const fn len_max(stream: StreamName) -> i64 {
    match stream {
        StreamName::Windows => WINDOWS_LEN_MAX,
        StreamName::Ledger => LEDGER_LEN_MAX,
        StreamName::Orders => ORDERS_LEN_MAX,
        StreamName::Site => SITE_LEN_MAX,
    }
}
/// Interval within which the server detects a repeated message id.
const DUPLICATES_WITHIN: Duration = Duration::from_secs(120);
/// Time after which an unacknowledged message is delivered again, wall time.
const ACK_WITHIN: Duration = Duration::from_secs(5);
/// Messages requested from the server at once. Their acknowledgement time runs while they are queued: a
/// consumer may need up to 0.15 s for each.
const BATCH: usize = 32;
/// Most unacknowledged messages; the server holds back the rest. The entries of the ledger are counted in
/// order: each names until when its node is counted, so one that was delivered again after a later one
/// would be lost.
const fn unacked_max(stream: StreamName) -> i64 {
    match stream {
        StreamName::Ledger => 1,
        StreamName::Windows | StreamName::Orders | StreamName::Site => 1_024,
    }
}
/// Duration of a request for messages. A process that is paused receives messages until its request ends.
const REQUEST: Duration = Duration::from_secs(5);
/// Most deliveries of one message. One that is still not acknowledged, because its consumer ends while
/// it handles it, is terminated with an alarm; it stays in the stream for reports. Ten deliveries take
/// longer than a restart of a service or a server.
const DELIVERIES_MAX: i64 = 10;
/// Interval in which the position of a consumer is compared with the end of its stream, wall time.
const POSITION_EVERY: Duration = Duration::from_secs(5);
/// Pause before a failed consumer is created again.
const PAUSE: Duration = Duration::from_millis(250);

/// A message from a stream.
pub struct StoredDelivery {
    /// Its subject.
    pub subject: String,
    /// Its payload.
    pub payload: Bytes,
    /// Its sequence number in the stream, from 1.
    pub sequence: u64,
    acker: jetstream::message::Acker,
}

impl StoredDelivery {
    /// Acknowledges the message, so it is not delivered again. Also acknowledge a payload that cannot be
    /// decoded.
    ///
    /// # Errors
    /// If the acknowledgement is not sent; the message is delivered again.
    pub async fn ack(&self) -> Result<(), BusError> {
        match tokio::time::timeout(ANSWER_WITHIN, self.acker.ack()).await {
            Ok(done) => done.map_err(|source| BusError::refused("acknowledge", source)),
            Err(_) => Err(BusError::Busy),
        }
    }
}

/// A durable consumer: delivers each message of a stream at least once, and continues after the last
/// acknowledged one.
///
/// Messages are in order, except for redeliveries: those whose acknowledgement a killed server had not
/// stored, and in streams other than the ledger those not acknowledged in time. After the server has lost
/// messages, the newest ones are delivered again.
pub struct Consumer {
    messages: mpsc::Receiver<StoredDelivery>,
    _task: AbortOnDropHandle<()>,
}

impl Consumer {
    /// Waits for the next message. Survives a restart of the server. Cancel-safe.
    pub async fn next(&mut self) -> Option<StoredDelivery> {
        self.messages.recv().await
    }
}

impl Bus {
    /// Consumes the messages of a stream. Under the name `durable` the server stores the position, over
    /// restarts of both. Waits for the server.
    ///
    /// # Errors
    /// [`BusError::NoJetStream`], [`BusError::Foreign`], or if the server refuses.
    pub async fn consume(&self, stream: StreamName, durable: &str) -> Result<Consumer, BusError> {
        let first = self.retry_until_done("consume", || self.pull(stream, durable)).await?;
        let (sender, messages) = mpsc::channel(1);
        let (bus, durable) = (self.clone(), durable.to_owned());
        let task = tokio::spawn(async move {
            let mut messages = first;
            loop {
                let failure = tokio::select! {
                    failure = forward(&mut messages, &sender) => failure,
                    () = bus.beyond_end(stream, &durable) => {
                        Some("its position is beyond the end of the stream".to_owned())
                    }
                };
                let Some(failure) = failure else { return };
                tracing::debug!(?stream, durable, failure, "consumer is created again");
                messages = loop {
                    tokio::time::sleep(PAUSE).await;
                    match bus.retry_until_done("consume", || bus.pull(stream, &durable)).await {
                        Ok(messages) => break messages,
                        Err(error) => {
                            let error = chain(&error);
                            tracing::error!(?stream, durable, %error, "cannot consume; retrying");
                        }
                    }
                };
            }
        });
        Ok(Consumer { messages, _task: AbortOnDropHandle::new(task) })
    }

    /// Returns when the position of a consumer is beyond the end of its stream, which the server does not
    /// report.
    async fn beyond_end(&self, stream: StreamName, durable: &str) {
        let name = stream.name(self.cluster());
        loop {
            tokio::time::sleep(POSITION_EVERY).await;
            let position = self.position(&name, durable).await;
            if position.is_ok_and(|position| position.is_some_and(|it| it.is_beyond_end())) {
                return;
            }
        }
    }

    async fn pull(&self, stream: StreamName, durable: &str) -> Result<pull::Stream, BusError> {
        self.ready_again(stream).await?;
        let name = stream.name(self.cluster());
        let config = pull::Config {
            durable_name: Some(durable.to_owned()),
            deliver_policy: self.start_of(&name, durable).await?,
            ack_policy: AckPolicy::Explicit,
            ack_wait: ACK_WITHIN,
            max_ack_pending: unacked_max(stream),
            ..pull::Config::default()
        };
        let what = || format!("consume stream {name} as {durable}");
        let object = format!("stream {name}");
        let consumer = self
            .shared
            .jetstream
            .call("consume", &object, |context| context.create_consumer_on_stream(config, &name));
        let consumer = consumer.await?.map_err(|source| match source.kind() {
            jetstream::stream::ConsumerErrorKind::TimedOut => BusError::Timeout { what: what() },
            _ => self.api_error(what(), source),
        })?;
        let messages = consumer
            .stream()
            .max_messages_per_batch(BATCH)
            .expires(REQUEST)
            .heartbeat(Duration::from_secs(2))
            .messages();
        bounded::sent(messages).await?.map_err(|source| BusError::refused(what(), source))
    }

    /// Makes sure that `stream` is there, also if the server has lost it since the last time.
    pub(super) async fn ready_again(&self, stream: StreamName) -> Result<(), BusError> {
        self.flag(stream).store(false, Ordering::Relaxed);
        self.ready(stream).await
    }

    /// Makes sure that `stream` is there, once.
    pub(super) async fn ready(&self, stream: StreamName) -> Result<(), BusError> {
        let flag = self.flag(stream);
        if !flag.load(Ordering::Relaxed) {
            let max_age = match stream {
                StreamName::Windows => WINDOWS_AGE_MAX,
                StreamName::Ledger => LEDGER_AGE_MAX,
                StreamName::Orders => ORDERS_AGE_MAX,
                StreamName::Site => SITE_AGE_MAX,
            };
            self.ensure(Config {
                name: stream.name(self.cluster()),
                description: Some(stream.description().to_owned()),
                subjects: vec![stream.topic().pattern(self.cluster())],
                storage: StorageType::File,
                discard: DiscardPolicy::Old,
                num_replicas: self.shared.replicas.unwrap_or(1),
                max_consumers: -1,
                max_messages: -1,
                max_messages_per_subject: -1,
                max_message_size: PAYLOAD_LEN_MAX as i32,
                max_bytes: len_max(stream),
                max_age,
                duplicate_window: DUPLICATES_WITHIN,
                ..Config::default()
            })
            .await?;
            flag.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Creates all buckets and streams. The placer does this at its start, because no other service may
    /// create any on a server with permissions. Waits for the server.
    ///
    /// # Errors
    /// [`BusError::NoJetStream`], [`BusError::Foreign`], [`BusError::Limit`], or if the server refuses.
    pub async fn create_storage(&self) -> Result<(), BusError> {
        self.wait_connected().await;
        self.check_version()?;
        for bucket in Bucket::ALL {
            self.bucket(bucket).await?;
        }
        for stream in StreamName::ALL {
            self.retry_until_done("create a stream", || self.ready(stream)).await?;
        }
        Ok(())
    }

    pub(super) fn flag(&self, stream: StreamName) -> &std::sync::atomic::AtomicBool {
        &self.shared.streams_ready[stream as usize]
    }

    /// Creates the stream if necessary; an existing one with other settings is an error.
    pub(super) async fn ensure(&self, config: Config) -> Result<(), BusError> {
        self.check_connected()?;
        let name = config.name.clone();
        let what = || format!("find stream {name}");
        let object = format!("stream {name}");
        let found =
            self.shared.jetstream.call("find", &object, |context| context.get_stream(&name));
        let found = match found.await? {
            Ok(stream) => stream.cached_info().config.clone(),
            Err(error) => match error.kind() {
                GetStreamErrorKind::JetStream(reply)
                    if reply.error_code() == ErrorCode::STREAM_NOT_FOUND =>
                {
                    self.create(config.clone()).await.map_err(|error| match error {
                        BusError::Timeout { .. } => BusError::Missing { stream: name.clone() },
                        error => error,
                    })?
                }
                GetStreamErrorKind::JetStream(reply) => {
                    return Err(self.jetstream_error(what(), reply));
                }
                _ => return Err(self.api_error(what(), error)),
            },
        };
        essentials(&name, &config, &found)?;
        match self.shared.replicas {
            Some(replicas) if replicas != found.num_replicas => {
                let changed = Config { num_replicas: replicas, ..found };
                let updated = self
                    .shared
                    .jetstream
                    .call("update", &object, |context| context.update_stream(changed.clone()));
                updated.await?.map_err(|error| self.create_error(&changed.name, error)).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Creates a stream; returns its configuration.
    async fn create(&self, config: Config) -> Result<Config, BusError> {
        let name = config.name.clone();
        let object = format!("stream {name}");
        let created = self
            .shared
            .jetstream
            .call("create", &object, |context| context.create_stream(config.clone()));
        match created.await? {
            Ok(stream) => Ok(stream.cached_info().config.clone()),
            Err(error) if overlaps(&error) && self.exists_soon(&name).await => {
                Err(BusError::Timeout { what: format!("create stream {name}") })
            }
            Err(error) => Err(self.create_error(&name, error)),
        }
    }

    /// Whether a stream exists within half a second. While another process creates it, the server reports that
    /// its subjects overlap.
    async fn exists_soon(&self, name: &str) -> bool {
        for _ in 0..5 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let object = format!("stream {name}");
            let found =
                self.shared.jetstream.call("find", &object, |context| context.get_stream(name));
            if found.await.is_ok_and(|found| found.is_ok()) {
                return true;
            }
        }
        false
    }

    fn create_error(&self, name: &str, error: jetstream::context::CreateStreamError) -> BusError {
        let what = format!("create stream {name}");
        match error.kind() {
            CreateStreamErrorKind::TimedOut => BusError::Timeout { what },
            CreateStreamErrorKind::JetStreamUnavailable => self.no_jetstream(),
            // Another process created it at the same time: check again.
            CreateStreamErrorKind::JetStream(reply)
                if reply.error_code() == ErrorCode::STREAM_NAME_EXIST =>
            {
                BusError::Timeout { what }
            }
            CreateStreamErrorKind::JetStream(reply) => {
                self.storage_limit(&reply).unwrap_or_else(|| self.jetstream_error(what, reply))
            }
            _ => BusError::refused(what, error),
        }
    }

    fn jetstream_error(&self, what: String, reply: jetstream::Error) -> BusError {
        if [ErrorCode::JETSTREAM_NOT_ENABLED, ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT]
            .contains(&reply.error_code())
        {
            return self.no_jetstream();
        }
        if is_unavailable(&reply) {
            return BusError::Timeout { what: format!("{what}: {reply}") };
        }
        BusError::refused(what, reply)
    }

    /// The error of a failed JetStream call; its errors have the kind in one of their sources.
    pub(super) fn api_error(
        &self,
        what: String,
        error: impl std::error::Error + Send + Sync + 'static,
    ) -> BusError {
        use async_nats::jetstream::context::{RequestError, RequestErrorKind};
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
        while let Some(this) = cause {
            if let Some(reply) = this.downcast_ref::<jetstream::Error>()
                && is_unavailable(reply)
            {
                return BusError::Timeout { what: format!("{what}: {reply}") };
            }
            if let Some(request) = this.downcast_ref::<RequestError>() {
                match request.kind() {
                    RequestErrorKind::NoResponders => return self.no_jetstream(),
                    RequestErrorKind::TimedOut => return BusError::Timeout { what },
                    RequestErrorKind::InvalidSubject | RequestErrorKind::Other => {}
                }
            }
            // A value is read directly from the stream.
            if let Some(request) = this.downcast_ref::<async_nats::RequestError>() {
                match request.kind() {
                    async_nats::RequestErrorKind::NoResponders => return self.no_jetstream(),
                    async_nats::RequestErrorKind::TimedOut => return BusError::Timeout { what },
                    _ => {}
                }
            }
            cause = this.source();
        }
        BusError::refused(what, error)
    }
}

/// Whether another stream has the subjects.
fn overlaps(error: &jetstream::context::CreateStreamError) -> bool {
    matches!(error.kind(), CreateStreamErrorKind::JetStream(reply)
        if reply.error_code() == ErrorCode::STREAM_SUBJECT_OVERLAP)
}

/// Whether the server is starting, has no leader of the stream, or moves its streams: a code of 500 to 599 that
/// does not state full storage, or too few servers for the copies, as while a cluster starts.
pub(super) fn is_unavailable(reply: &jetstream::Error) -> bool {
    let code = reply.error_code();
    ((500..600).contains(&reply.code()) && !FULL.contains(&code))
        || code == ErrorCode::CLUSTER_NO_PEERS
}

/// Passes messages on until an error, which it returns, or until the receiver is dropped.
async fn forward(
    messages: &mut pull::Stream,
    sender: &mpsc::Sender<StoredDelivery>,
) -> Option<String> {
    loop {
        let message = tokio::select! {
            message = messages.next() => message,
            () = sender.closed() => return None,
        };
        let message = match message {
            Some(Ok(message)) => message,
            Some(Err(error)) => return Some(error.to_string()),
            None => return Some("the stream ended".to_owned()),
        };
        let (sequence, deliveries) = match message.info() {
            Ok(info) => (info.stream_sequence, info.delivered),
            Err(error) => return Some(error.to_string()),
        };
        let (message, acker) = message.split();
        if deliveries > DELIVERIES_MAX {
            let subject = message.subject.as_str();
            tracing::error!(
                subject,
                sequence,
                deliveries,
                "message ignored: it was delivered repeatedly and never acknowledged"
            );
            // Delivered again, and terminated then, if this fails.
            if let Err(error) = acker.ack_with(AckKind::Term).await {
                return Some(error.to_string());
            }
            continue;
        }
        let delivery = StoredDelivery {
            subject: message.subject.to_string(),
            payload: message.payload,
            sequence,
            acker,
        };
        if sender.send(delivery).await.is_err() {
            return None;
        }
    }
}

/// Checks the settings that Wattle requires.
fn essentials(name: &str, needed: &Config, found: &Config) -> Result<(), BusError> {
    let show = |config: &Config| {
        format!(
            "subjects {}, {} per subject, discard {:?}, storage {:?}",
            config.subjects.join(" "),
            config.max_messages_per_subject,
            config.discard,
            config.storage
        )
    };
    if show(needed) == show(found) {
        return Ok(());
    }
    Err(BusError::Foreign { stream: name.to_owned(), found: show(found), needed: show(needed) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_without_a_leader_is_unavailable_and_a_full_one_is_not() {
        let reply = |code: u16, err_code: u64| {
            let text = format!(r#"{{"code":{code},"err_code":{err_code},"description":"x"}}"#);
            serde_json::from_str::<jetstream::Error>(&text).unwrap()
        };
        assert!(is_unavailable(&reply(503, 10_008)));
        assert!(is_unavailable(&reply(503, 10_009)));
        assert!(!is_unavailable(&reply(503, 10_023)), "insufficient resources");
        assert!(!is_unavailable(&reply(404, 10_059)), "stream not found");
    }
}
