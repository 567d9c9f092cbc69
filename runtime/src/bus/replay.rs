//! The stored messages of a stream, read once from the first, or from a sequence number on, to the newest.
//!
//! Unlike a [`super::Consumer`], a replay stores no position on the server.

use async_nats::jetstream::consumer::{DeliverPolicy, ReplayPolicy, push};
use bytes::Bytes;
use futures_util::StreamExt;
use wattle_common::subject::StreamName;

use super::bounded;
use super::{ANSWER_WITHIN, Bus, BusError, Delivery};

/// The messages that a stream contained when the replay began, in order.
pub struct Replay {
    messages: push::Ordered,
    left: u64,
    what: String,
}

impl Bus {
    /// Reads the stored messages of a stream whose subject matches `filter`, or all. Waits for the
    /// server.
    ///
    /// # Errors
    /// [`BusError::NoJetStream`], [`BusError::Foreign`], or if the server refuses.
    pub async fn replay(
        &self,
        stream: StreamName,
        filter: Option<&str>,
    ) -> Result<Replay, BusError> {
        let all = DeliverPolicy::All;
        self.retry_until_done("read a stream", || self.begin_replay(stream, filter, all)).await
    }

    /// As [`Self::replay`], from the message of this sequence number on.
    ///
    /// # Errors
    /// As [`Self::replay`].
    pub async fn replay_from(&self, stream: StreamName, sequence: u64) -> Result<Replay, BusError> {
        let from = DeliverPolicy::ByStartSequence { start_sequence: sequence.max(1) };
        self.retry_until_done("read a stream", || self.begin_replay(stream, None, from)).await
    }

    /// The sequence number of the last message of a stream; 0: there is none.
    ///
    /// # Errors
    /// As [`Self::replay`].
    pub async fn last_sequence(&self, stream: StreamName) -> Result<u64, BusError> {
        let find = || async {
            self.ready_again(stream).await?;
            let name = stream.name(self.cluster());
            let (what, object) = (format!("find stream {name}"), format!("stream {name}"));
            let found =
                self.shared.jetstream.call("find", &object, |context| context.get_stream(&name));
            let found = found.await?.map_err(|error| self.api_error(what, error))?;
            Ok(found.cached_info().state.last_sequence)
        };
        self.retry_until_done("find a stream", find).await
    }

    async fn begin_replay(
        &self,
        stream: StreamName,
        filter: Option<&str>,
        deliver_policy: DeliverPolicy,
    ) -> Result<Replay, BusError> {
        self.ready_again(stream).await?;
        let name = stream.name(self.cluster());
        let what = format!("read stream {name}");
        let config = push::OrderedConfig {
            deliver_subject: self.new_inbox(),
            name: Some(self.consumer_name()),
            description: Some("replay of the stream".to_owned()),
            filter_subject: filter
                .map_or_else(|| stream.topic().pattern(self.cluster()), str::to_owned),
            replay_policy: ReplayPolicy::Instant,
            deliver_policy,
            ..push::OrderedConfig::default()
        };
        let object = format!("stream {name}");
        let consumer = self
            .shared
            .jetstream
            .call("consume", &object, |context| context.create_consumer_on_stream(config, name));
        let consumer = consumer.await?.map_err(|source| match source.kind() {
            async_nats::jetstream::stream::ConsumerErrorKind::TimedOut => {
                BusError::Timeout { what: what.clone() }
            }
            _ => self.api_error(what.clone(), source),
        })?;
        let left = consumer.cached_info().num_pending;
        let messages = bounded::sent(consumer.messages()).await?;
        let messages = messages.map_err(|source| BusError::refused(what.clone(), source))?;
        Ok(Replay { messages, left, what })
    }
}

impl Replay {
    /// The payload of the next message; `None` after the newest.
    ///
    /// # Errors
    /// If the server is away.
    pub async fn next(&mut self) -> Result<Option<Bytes>, BusError> {
        Ok(self.next_message().await?.map(|message| message.payload))
    }

    /// The next message, with its subject; `None` after the newest.
    ///
    /// # Errors
    /// If the server is away.
    pub async fn next_message(&mut self) -> Result<Option<Delivery>, BusError> {
        if self.left == 0 {
            return Ok(None);
        }
        match tokio::time::timeout(ANSWER_WITHIN * 2, self.messages.next()).await {
            Ok(Some(Ok(message))) => {
                self.left -= 1;
                Ok(Some(Delivery {
                    subject: message.subject.to_string(),
                    headers: message.headers.is_some(),
                    payload: message.payload.clone(),
                }))
            }
            Ok(Some(Err(source))) => Err(BusError::refused(self.what.clone(), source)),
            Ok(None) | Err(_) => Err(BusError::Timeout { what: self.what.clone() }),
        }
    }
}
