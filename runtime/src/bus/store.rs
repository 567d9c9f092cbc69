//! Writes of messages to a stream.
//!
//! A server that was killed, or a cluster whose servers were affected one after another, may lose messages
//! that it has acknowledged: the stream ends earlier than before, and its sequence numbers are used again.
//! [`Appender`] notices this, because each of its messages names the sequence number of the one before on
//! the same subject, and stores again the recent ones that are missing.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use async_nats::HeaderMap;
use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use serde::Serialize;
use wattle_common::codec;
use wattle_common::subject::{StreamName, Subject};

use super::{Bus, BusError};

/// Most times that messages are stored again in one call.
const REPETITIONS_MAX: usize = 2;

/// Outcome of a write that names the message before it.
enum Written {
    /// Stored under this sequence number.
    Stored(u64),
    /// Not stored: the last message of the subject has this sequence number; 0: there is none.
    Refused(u64),
}

impl Bus {
    /// Stores a message as JSON; returns after the server's acknowledgement. A repetition with the same
    /// `message_id` within two minutes is ignored.
    ///
    /// # Errors
    /// After a [transient](BusError::is_transient) error, repeat the call with the same id.
    pub async fn store<T: Serialize>(
        &self,
        subject: &Subject,
        message_id: &str,
        message: &T,
    ) -> Result<(), BusError> {
        self.write(subject, message_id, message, None).await.map(drop)
    }

    /// Stores a message as [`Self::store`], if `last` is the sequence number of the last message of the
    /// subject.
    async fn write<T: Serialize>(
        &self,
        subject: &Subject,
        message_id: &str,
        message: &T,
        last: Option<u64>,
    ) -> Result<Written, BusError> {
        let stream = StreamName::ALL
            .into_iter()
            .find(|stream| stream.topic() == subject.topic())
            .ok_or_else(|| {
            BusError::refused(format!("store {subject}"), "no stream stores this topic")
        })?;
        let (subject, payload) = (subject.to_string(), codec::encode_json(message));
        self.check(&subject, payload.len())?;
        self.ready(stream).await?;
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Msg-Id", message_id);
        if let Some(last) = last {
            headers.insert("Nats-Expected-Last-Subject-Sequence", last.to_string());
        }
        let what = || format!("store {subject}");
        let object = format!("stream {}", stream.name(self.cluster()));
        let to = subject.clone();
        let stored = self.shared.jetstream.call("store", &object, |context| async move {
            context.publish_with_headers(to, headers, payload.into()).await?.await
        });
        match stored.await {
            Ok(Ok(ack)) => Ok(Written::Stored(ack.sequence)),
            Ok(Err(error)) if error.kind() == PublishErrorKind::WrongLastSequence => {
                Ok(Written::Refused(actual_last(&error)))
            }
            Ok(Err(source)) => {
                // The next attempt checks that the stream exists.
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
}

/// The sequence number in the server's text `wrong last sequence: 7`; 0 if the text has none.
fn actual_last(error: &PublishError) -> u64 {
    let text = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    let number = text.split(": ").nth(1).unwrap_or_default();
    let digits = number.split(|c: char| !c.is_ascii_digit()).next();
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// A message of an [`Appender`].
struct Recent<T> {
    id: String,
    message: T,
    /// Its sequence number; `None`: not stored, or lost.
    sequence: Option<u64>,
}

/// The only writer of a subject: stores its messages in order, and stores again the recent ones that the
/// server has acknowledged and lost.
///
/// A message may be stored twice, under the same id, so readers identify it. Messages of an earlier process
/// are not stored again.
pub struct Appender<T> {
    recent: VecDeque<Recent<T>>,
    /// The sequence number of the last message, as far as it is known.
    last: Option<u64>,
    recent_max: usize,
}

impl<T: Serialize> Appender<T> {
    /// Keeps at most `recent_max` messages in memory.
    #[must_use]
    pub const fn new(recent_max: usize) -> Self {
        Self { recent: VecDeque::new(), last: None, recent_max }
    }

    /// Stores a message after all earlier ones. A repetition with the same id is ignored by the server
    /// within two minutes, and here while the message is recent.
    ///
    /// # Errors
    /// As [`Bus::store`]: repeat the call with the same message and id.
    pub async fn append(
        &mut self,
        bus: &Bus,
        subject: &Subject,
        message_id: &str,
        message: T,
    ) -> Result<(), BusError> {
        if self.recent.iter().all(|recent| recent.id != message_id) {
            let id = message_id.to_owned();
            self.recent.push_back(Recent { id, message, sequence: None });
            while self.recent.len() > self.recent_max.max(1) {
                self.recent.pop_front();
            }
        }
        for _ in 0..=REPETITIONS_MAX {
            let Some(last) = self.store_missing(bus, subject).await? else { return Ok(()) };
            self.refused(subject, last);
        }
        Err(BusError::refused(format!("store {subject}"), "another client writes to this subject"))
    }

    /// Stores the messages that are not stored; returns the actual last sequence number if the server refuses
    /// one.
    async fn store_missing(
        &mut self,
        bus: &Bus,
        subject: &Subject,
    ) -> Result<Option<u64>, BusError> {
        for recent in self.recent.iter_mut().filter(|recent| recent.sequence.is_none()) {
            match bus.write(subject, &recent.id, &recent.message, self.last).await? {
                Written::Stored(sequence) => {
                    (self.last, recent.sequence) = (Some(sequence), Some(sequence));
                }
                Written::Refused(last) => return Ok(Some(last)),
            }
        }
        Ok(None)
    }

    /// The last message of the subject is another one than the last acknowledged one: an earlier one if
    /// messages were lost, and a later one if another process has written, or an acknowledgement was lost.
    fn refused(&mut self, subject: &Subject, last: u64) {
        let acknowledged = self.last.replace(last);
        let lost = self.recent.iter_mut().filter(|recent| recent.sequence > Some(last));
        let lost = lost.map(|recent| recent.sequence = None).count();
        if acknowledged > Some(last) {
            tracing::error!(
                %subject,
                acknowledged,
                present = last,
                stored_again = lost,
                "the server has lost acknowledged messages: the recent ones are stored again; check its \
                 disk and its log"
            );
        }
    }
}
