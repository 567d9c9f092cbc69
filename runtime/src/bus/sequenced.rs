//! Writes to a bucket that name the last sequence number of its stream, for
//! [`super::ExclusiveBucket`].
//!
//! The server processes the messages of one connection in their order, so several writes may be sent
//! before the first is acknowledged, each with the sequence number that the one before it will have.
//! If one is refused, the server refuses all later ones of the sequence.

use async_nats::jetstream::context::{PublishAckFuture, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use bytes::Bytes;

use super::{BusError, KvBucket};

const OPERATION: &str = "KV-Operation";

/// A write that was sent and is not acknowledged yet.
pub(super) struct SentWrite {
    key: String,
    acknowledged: PublishAckFuture,
}

impl KvBucket {
    /// Writes only if `last` is the sequence number of the last message in the bucket's stream; returns
    /// the new one.
    ///
    /// # Errors
    /// [`BusError::Conflict`] if it is not. As [`Self::put`].
    pub(super) async fn put_after(
        &self,
        key: &str,
        payload: Bytes,
        last: u64,
    ) -> Result<u64, BusError> {
        self.bus().check(&self.what("write", key), payload.len())?;
        let message = PublishMessage::build().payload(payload).expected_last_sequence(last);
        self.publish("write", key, message).await
    }

    /// Sends a write as [`Self::put_after`], or a deletion for `None`, without waiting for its
    /// acknowledgement.
    ///
    /// # Errors
    /// As [`Self::put_after`]; nothing was sent.
    pub(super) async fn send_after(
        &self,
        key: &str,
        payload: Option<Bytes>,
        last: u64,
    ) -> Result<SentWrite, BusError> {
        let message = PublishMessage::build().expected_last_sequence(last);
        let message = match payload {
            Some(payload) => {
                self.bus().check(&self.what("write", key), payload.len())?;
                message.payload(payload)
            }
            None => {
                self.bus().check_connected()?;
                message.header(OPERATION, "DEL")
            }
        };
        let what = self.what("write", key);
        let subject = self.subject(key);
        let sent =
            self.bus().shared.jetstream.send(|context| context.send_publish(subject, message));
        let acknowledged = sent.await?.map_err(|error| self.publish_error(what, error))?;
        Ok(SentWrite { key: key.to_owned(), acknowledged })
    }

    /// Waits for the acknowledgement of a write; returns its sequence number.
    ///
    /// # Errors
    /// As [`Self::put_after`].
    pub(super) async fn acknowledged(&self, sent: SentWrite) -> Result<u64, BusError> {
        let SentWrite { key, acknowledged } = sent;
        let what = self.what("write", &key);
        let answer = self.store().call("write", self.object(), |_| acknowledged.into_future());
        match answer.await? {
            Ok(ack) => Ok(ack.sequence),
            Err(error) if error.kind() == PublishErrorKind::WrongLastSequence => {
                Err(self.conflict(&key))
            }
            Err(error) => Err(self.publish_error(what, error)),
        }
    }

    /// Deletes a key as [`Self::put_after`].
    pub(super) async fn delete_after(&self, key: &str, last: u64) -> Result<u64, BusError> {
        self.bus().check_connected()?;
        let message = PublishMessage::build().header(OPERATION, "DEL").expected_last_sequence(last);
        self.publish("delete", key, message).await
    }

    /// Writes the deletion of a key that has no value, unconditionally; returns its sequence number.
    pub(super) async fn put_mark(&self, key: &str) -> Result<u64, BusError> {
        self.bus().check_connected()?;
        self.ensure().await?;
        self.publish("mark", key, PublishMessage::build().header(OPERATION, "DEL")).await
    }

    /// The sequence number of the last message in the bucket's stream.
    pub(super) async fn last_sequence(&self) -> Result<u64, BusError> {
        let what = self.what("count", "*");
        Ok(self.info(what).await?.state.last_sequence)
    }

    async fn publish(
        &self,
        verb: &str,
        key: &str,
        message: PublishMessage,
    ) -> Result<u64, BusError> {
        let what = self.what(verb, key);
        let subject = self.subject(key);
        let stored =
            self.bus().shared.jetstream.call("write", self.object(), |context| async move {
                context.send_publish(subject, message).await?.await
            });
        match stored.await? {
            Ok(ack) => Ok(ack.sequence),
            Err(error) if error.kind() == PublishErrorKind::WrongLastSequence => {
                Err(self.conflict(key))
            }
            Err(error) if error.kind() == PublishErrorKind::StreamNotFound => {
                // The server lost its store: the repetition finds an empty bucket.
                self.ensure().await?;
                Err(BusError::Timeout { what })
            }
            Err(error) => Err(self.publish_error(what, error)),
        }
    }
}
