//! JetStream streams: storing what must not be lost, and taking it in order.
//!
//! A stream is made by whoever needs it first. On a server that has one of that name already its
//! limits are left alone, since an operator may have changed them on purpose; only what Wattle
//! cannot work without is checked.

use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use async_nats::jetstream::context::{CreateStreamErrorKind, GetStreamErrorKind, PublishErrorKind};
use async_nats::jetstream::stream::{Config, DiscardPolicy, StorageType};
use async_nats::jetstream::{self, ErrorCode};
use bytes::Bytes;
use futures_util::StreamExt;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;
use wattle_common::codec::{self, PAYLOAD_LEN_MAX};
use wattle_common::subject::{StreamName, Subject};

use super::{ANSWER_WITHIN, Bus, BusError};
use crate::shell::chain;

/// Windows teach the predictor; older ones than a month describe jobs long gone.
const WINDOWS_AGE_MAX: Duration = Duration::from_secs(30 * 86_400);
/// A window is about 1 kB: room for 250,000.
const WINDOWS_LEN_MAX: i64 = 256 << 20;
/// The ledger answers for a year and the month that is being closed.
const LEDGER_AGE_MAX: Duration = Duration::from_secs(400 * 86_400);
/// An entry is about 1 kB: room for 500,000, which is 100 nodes for three days at one a minute, or
/// ten for a month. A larger site raises it (`nats stream edit`); Wattle keeps what it finds.
const LEDGER_LEN_MAX: i64 = 512 << 20;
/// Within so long the server recognises a message id it has stored before.
const DUPLICATES_WITHIN: Duration = Duration::from_secs(120);
/// A message that was not acknowledged comes again after this, in wall time.
const ACK_WITHIN: Duration = Duration::from_secs(5);
/// Messages asked of the server at once. They wait here, and their time to be acknowledged runs: a
/// taker that needs up to 0.15 s for each keeps within it.
const BATCH: usize = 32;
/// Messages given out and not acknowledged; the server holds back the rest.
const UNACKED_MAX: i64 = 1_024;
/// Pause before a consumer that failed is made again.
const PAUSE: Duration = Duration::from_millis(250);

/// What arrives from a stream.
pub struct StoredDelivery {
    /// Its subject.
    pub subject: String,
    /// What was stored.
    pub payload: Bytes,
    /// Its place in the stream, from 1; the same message always has the same.
    pub sequence: u64,
    acker: jetstream::message::Acker,
}

impl StoredDelivery {
    /// Says that it is dealt with and need not come again. A payload that cannot be read is dealt
    /// with, too: it would be no better the next time.
    ///
    /// # Errors
    /// [`BusError::Refused`]; the message comes again.
    pub async fn ack(&self) -> Result<(), BusError> {
        match tokio::time::timeout(ANSWER_WITHIN, self.acker.ack()).await {
            Ok(done) => done.map_err(|source| BusError::refused("acknowledge", source)),
            Err(_) => Err(BusError::Busy),
        }
    }
}

/// Takes a stream's messages, each at least once, from where this name last was.
///
/// They come in order, but for those that come again: what was not acknowledged in time, or whose
/// acknowledgement a killed server had not written yet.
pub struct Consumer {
    messages: mpsc::Receiver<StoredDelivery>,
    _task: AbortOnDropHandle<()>,
}

impl Consumer {
    /// The next message; waits for it. Survives the server's restart. May be cancelled.
    pub async fn next(&mut self) -> Option<StoredDelivery> {
        self.messages.recv().await
    }
}

impl Bus {
    /// Stores a message as JSON; returns once the server has it. Storing it again with the same
    /// `message_id` within two minutes stores nothing.
    ///
    /// # Errors
    /// Where it [may pass](BusError::is_transient), store it again with the same id.
    pub async fn store<T: Serialize>(
        &self,
        subject: &Subject,
        message_id: &str,
        message: &T,
    ) -> Result<(), BusError> {
        let stream = StreamName::ALL
            .into_iter()
            .find(|stream| stream.topic() == subject.topic())
            .ok_or_else(|| {
            BusError::refused(format!("store {subject}"), "no stream keeps this topic")
        })?;
        let (subject, payload) = (subject.to_string(), codec::encode_json(message));
        self.check(&subject, payload.len())?;
        self.ready(stream).await?;
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Msg-Id", message_id);
        let what = || format!("store {subject}");
        let stored = async {
            self.shared
                .jetstream
                .publish_with_headers(subject.clone(), headers, payload.into())
                .await?
                .await
        };
        match tokio::time::timeout(ANSWER_WITHIN * 2, stored).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(source)) => {
                // Whatever it was, the next try looks whether the stream is there.
                self.flag(stream).store(false, Ordering::Relaxed);
                Err(match source.kind() {
                    PublishErrorKind::TimedOut | PublishErrorKind::StreamNotFound => {
                        BusError::Timeout { what: what() }
                    }
                    PublishErrorKind::MaxAckPending => BusError::Busy,
                    _ => BusError::refused(what(), source),
                })
            }
            Err(_) => Err(BusError::Timeout { what: what() }),
        }
    }

    /// Takes the messages of a stream. `durable` is the taker's name: under it the server remembers
    /// what is done, over restarts of both. Waits for the server.
    ///
    /// # Errors
    /// [`BusError::NoJetStream`], [`BusError::Foreign`], or a server that refuses.
    pub async fn consume(&self, stream: StreamName, durable: &str) -> Result<Consumer, BusError> {
        let first = self.insist("consume", || self.pull(stream, durable)).await?;
        let (sender, messages) = mpsc::channel(1);
        let (bus, durable) = (self.clone(), durable.to_owned());
        let task = tokio::spawn(async move {
            let mut messages = first;
            loop {
                let failure = forward(&mut messages, &sender).await;
                let Some(failure) = failure else { return };
                tracing::debug!(?stream, durable, failure, "consumer is made again");
                messages = loop {
                    tokio::time::sleep(PAUSE).await;
                    match bus.insist("consume", || bus.pull(stream, &durable)).await {
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

    async fn pull(&self, stream: StreamName, durable: &str) -> Result<pull::Stream, BusError> {
        self.flag(stream).store(false, Ordering::Relaxed);
        self.ready(stream).await?;
        let name = stream.name(self.cluster());
        let config = pull::Config {
            durable_name: Some(durable.to_owned()),
            deliver_policy: DeliverPolicy::All,
            ack_policy: AckPolicy::Explicit,
            ack_wait: ACK_WITHIN,
            max_ack_pending: UNACKED_MAX,
            ..pull::Config::default()
        };
        let what = || format!("consume stream {name} as {durable}");
        let consumer =
            self.shared.jetstream.create_consumer_on_stream(config, &name).await.map_err(
                |source| match source.kind() {
                    jetstream::stream::ConsumerErrorKind::TimedOut => {
                        BusError::Timeout { what: what() }
                    }
                    _ => BusError::refused(what(), source),
                },
            )?;
        consumer
            .stream()
            .max_messages_per_batch(BATCH)
            .expires(Duration::from_secs(30))
            .heartbeat(Duration::from_secs(2))
            .messages()
            .await
            .map_err(|source| BusError::refused(what(), source))
    }

    /// Makes sure that `stream` is there, once.
    async fn ready(&self, stream: StreamName) -> Result<(), BusError> {
        let flag = self.flag(stream);
        if !flag.load(Ordering::Relaxed) {
            let (max_age, max_bytes) = match stream {
                StreamName::Windows => (WINDOWS_AGE_MAX, WINDOWS_LEN_MAX),
                StreamName::Ledger => (LEDGER_AGE_MAX, LEDGER_LEN_MAX),
            };
            self.ensure(Config {
                name: stream.name(self.cluster()),
                subjects: vec![stream.topic().pattern(self.cluster())],
                storage: StorageType::File,
                discard: DiscardPolicy::Old,
                num_replicas: 1,
                max_consumers: -1,
                max_messages: -1,
                max_messages_per_subject: -1,
                max_message_size: PAYLOAD_LEN_MAX as i32,
                max_bytes,
                max_age,
                duplicate_window: DUPLICATES_WITHIN,
                ..Config::default()
            })
            .await?;
            flag.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    fn flag(&self, stream: StreamName) -> &std::sync::atomic::AtomicBool {
        &self.shared.streams_ready[stream as usize]
    }

    /// Makes the stream unless it is there; a wrong one of that name is an error.
    pub(super) async fn ensure(&self, config: Config) -> Result<(), BusError> {
        self.check_connected()?;
        let name = config.name.clone();
        let what = || format!("look for stream {name}");
        let found = match self.shared.jetstream.get_stream(&name).await {
            Ok(stream) => stream.cached_info().config.clone(),
            Err(error) => match error.kind() {
                GetStreamErrorKind::JetStream(reply)
                    if reply.error_code() == ErrorCode::STREAM_NOT_FOUND =>
                {
                    match self.shared.jetstream.create_stream(config.clone()).await {
                        Ok(stream) => stream.cached_info().config.clone(),
                        Err(error) => return Err(self.create_error(&name, error)),
                    }
                }
                GetStreamErrorKind::JetStream(reply) => {
                    return Err(self.jetstream_error(what(), reply));
                }
                _ => return Err(self.api_error(what(), error)),
            },
        };
        essentials(&name, &config, &found)
    }

    fn create_error(&self, name: &str, error: jetstream::context::CreateStreamError) -> BusError {
        let what = format!("make stream {name}");
        match error.kind() {
            CreateStreamErrorKind::TimedOut => BusError::Timeout { what },
            CreateStreamErrorKind::JetStreamUnavailable => self.no_jetstream(),
            // Somebody made it at this very moment: look again.
            CreateStreamErrorKind::JetStream(reply)
                if reply.error_code() == ErrorCode::STREAM_NAME_EXIST =>
            {
                BusError::Timeout { what }
            }
            CreateStreamErrorKind::JetStream(reply) => self.jetstream_error(what, reply),
            _ => BusError::refused(what, error),
        }
    }

    fn jetstream_error(&self, what: String, reply: jetstream::Error) -> BusError {
        if [ErrorCode::JETSTREAM_NOT_ENABLED, ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT]
            .contains(&reply.error_code())
        {
            return self.no_jetstream();
        }
        // 5xx: the server is starting or moving its streams.
        if (500..600).contains(&reply.code())
            && reply.error_code() != ErrorCode::INSUFFICIENT_RESOURCES
        {
            return BusError::Timeout { what };
        }
        BusError::refused(what, reply)
    }

    /// What a failed call of the JetStream API means; its errors bury the kind in their sources.
    pub(super) fn api_error(
        &self,
        what: String,
        error: impl std::error::Error + Send + Sync + 'static,
    ) -> BusError {
        use async_nats::jetstream::context::{RequestError, RequestErrorKind};
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
        while let Some(this) = cause {
            if let Some(request) = this.downcast_ref::<RequestError>() {
                match request.kind() {
                    RequestErrorKind::NoResponders => return self.no_jetstream(),
                    RequestErrorKind::TimedOut => return BusError::Timeout { what },
                    RequestErrorKind::InvalidSubject | RequestErrorKind::Other => {}
                }
            }
            // Reading a value goes past the API, straight to the stream.
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

    fn no_jetstream(&self) -> BusError {
        BusError::NoJetStream { url: self.url().to_owned() }
    }
}

/// Passes messages on until it fails (and says how) or nobody takes them any more.
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
            None => return Some("it ended".to_owned()),
        };
        let sequence = match message.info() {
            Ok(info) => info.stream_sequence,
            Err(error) => return Some(error.to_string()),
        };
        let (message, acker) = message.split();
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

/// Checks what Wattle cannot work without.
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
