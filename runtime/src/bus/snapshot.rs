//! Snapshots of streams: the server's own copies, with messages, sequence numbers and consumers.
//!
//! A snapshot is one opaque file and a description, which is the server's answer. The server copies a
//! stream while others write to it; the copy is the stream at one instant. It restores a stream only if
//! none of that name exists.

use std::io;
use std::time::Duration;

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::GetStreamErrorKind;
use bytes::Bytes;
use futures_util::StreamExt as _;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Bus, BusError};

/// Bytes of one message of a snapshot. The largest payload of a server is usually 1 MiB.
const CHUNK_LEN: usize = 128 << 10;
/// Longest time between two messages of the server, wall time. It checks a stream before it answers.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// What the server states about a stream beside its snapshot; it is needed to restore it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StreamDescription {
    /// Its configuration.
    pub config: Value,
    /// The number and the sequence numbers of its messages.
    pub state: Value,
}

impl StreamDescription {
    /// Number of its messages.
    #[must_use]
    pub fn messages(&self) -> u64 {
        self.state.get("messages").and_then(Value::as_u64).unwrap_or(0)
    }
}

/// The server's answer to a request.
#[derive(Deserialize)]
struct Answer {
    error: Option<AnswerError>,
    config: Option<Value>,
    state: Option<Value>,
    deliver_subject: Option<String>,
}

#[derive(Deserialize)]
struct AnswerError {
    description: String,
    err_code: Option<u64>,
}

impl Bus {
    /// The version of the NATS server.
    #[must_use]
    pub fn server_version(&self) -> String {
        self.shared.client.now(|client| client.server_info().version)
    }

    /// The description of a stream, as NATS tools show it; `None`: it has none.
    ///
    /// # Errors
    /// If the server is away, or has no such stream.
    pub async fn stream_description(&self, stream: &str) -> Result<Option<String>, BusError> {
        let what = format!("read stream {stream}");
        let object = format!("stream {stream}");
        let read =
            self.shared.jetstream.call("find", &object, |context| context.get_stream(stream));
        match read.await? {
            Err(source) => Err(self.api_error(what, source)),
            Ok(stream) => Ok(stream.cached_info().config.description.clone()),
        }
    }

    /// The number of messages in a stream; `None` if the server has no such stream.
    ///
    /// # Errors
    /// If the server is away or refuses the request.
    pub async fn stream_messages(&self, stream: &str) -> Result<Option<u64>, BusError> {
        self.check_connected()?;
        let object = format!("stream {stream}");
        let found =
            self.shared.jetstream.call("find", &object, |context| context.get_stream(stream));
        match found.await? {
            Ok(found) => Ok(Some(found.cached_info().state.messages)),
            Err(error) => match error.kind() {
                GetStreamErrorKind::JetStream(reply)
                    if reply.error_code() == ErrorCode::STREAM_NOT_FOUND =>
                {
                    Ok(None)
                }
                _ => Err(self.api_error(format!("find stream {stream}"), error)),
            },
        }
    }

    /// Deletes a stream with all its messages. No role of a server with permissions may do this.
    ///
    /// # Errors
    /// If the server is away or refuses the request.
    pub async fn delete_stream(&self, stream: &str) -> Result<(), BusError> {
        self.check_connected()?;
        let object = format!("stream {stream}");
        let deleted =
            self.shared.jetstream.call("delete", &object, |context| context.delete_stream(stream));
        deleted
            .await?
            .map(drop)
            .map_err(|source| self.api_error(format!("delete stream {stream}"), source))
    }

    /// Copies a stream into `file`; `None` if the server has no such stream.
    ///
    /// # Errors
    /// If the server is away, refuses the copy or ends it early, or the file cannot be written.
    pub async fn take_snapshot(
        &self,
        stream: &str,
        file: &mut impl io::Write,
    ) -> Result<Option<StreamDescription>, BusError> {
        let what = || format!("copy stream {stream}");
        let inbox = self.new_inbox();
        let mut chunks = self.subscriber(inbox.clone()).await?;
        let request = json!({ "deliver_subject": inbox, "chunk_size": CHUNK_LEN, "jsck": true });
        let answer = self.api(&format!("SNAPSHOT.{stream}"), what(), &request).await?;
        if answer.error.as_ref().and_then(|error| error.err_code)
            == Some(ErrorCode::STREAM_NOT_FOUND.0)
        {
            return Ok(None);
        }
        let answer = accepted(answer, &what())?;
        loop {
            let chunk = tokio::time::timeout(ANSWER_WITHIN, chunks.next()).await;
            let chunk = chunk.map_err(|_| BusError::Timeout { what: what() })?;
            let chunk = chunk.ok_or_else(|| BusError::refused(what(), "the connection ended"))?;
            if chunk.payload.is_empty() {
                // The end, with a status if it is an early one.
                let early = chunk.status.filter(|status| status.as_u16() >= 400);
                if let Some(status) = early {
                    let cause = format!("the server ended it early with status {status}");
                    return Err(BusError::refused(what(), cause));
                }
                break;
            }
            file.write_all(&chunk.payload).map_err(|source| BusError::refused(what(), source))?;
            if let Some(reply) = chunk.reply {
                // Without this the server pauses after some MiB.
                let sent =
                    self.shared.client.send(|client| client.publish(reply, Bytes::new())).await?;
                sent.map_err(|source| BusError::refused(what(), source))?;
            }
        }
        let (config, state) = (answer.config.unwrap_or_default(), answer.state.unwrap_or_default());
        Ok(Some(StreamDescription { config, state }))
    }

    /// Restores a stream that does not exist from its snapshot.
    ///
    /// # Errors
    /// If the server is away or refuses the stream, or the snapshot cannot be read.
    pub async fn restore_snapshot(
        &self,
        stream: &str,
        description: &StreamDescription,
        snapshot: &mut impl io::Read,
    ) -> Result<(), BusError> {
        let what = || format!("restore stream {stream}");
        let answer = self.api(&format!("RESTORE.{stream}"), what(), description).await?;
        let deliver = accepted(answer, &what())?.deliver_subject;
        let deliver =
            deliver.ok_or_else(|| BusError::refused(what(), "the server names no subject"))?;
        let mut chunk = vec![0; CHUNK_LEN];
        loop {
            let len = snapshot.read(&mut chunk);
            let len = len.map_err(|source| BusError::refused(what(), source))?;
            // An empty message is the end; its answer has the result.
            let sent = Bytes::copy_from_slice(&chunk[..len]);
            let answer = self.ask_server(deliver.clone(), sent, what()).await?;
            if !answer.is_empty() {
                accepted(read(&answer, &what())?, &what())?;
            }
            if len == 0 {
                return Ok(());
            }
        }
    }

    /// Sends a request of the server's interface for streams.
    async fn api<T: Serialize>(
        &self,
        verb: &str,
        what: String,
        request: &T,
    ) -> Result<Answer, BusError> {
        let payload = wattle_common::codec::encode_json(request);
        let subject = format!("$JS.API.STREAM.{verb}");
        let answer = self.ask_server(subject, payload.into(), what.clone()).await?;
        read(&answer, &what)
    }

    async fn ask_server(
        &self,
        subject: String,
        payload: Bytes,
        what: String,
    ) -> Result<Bytes, BusError> {
        self.check(&subject, payload.len())?;
        let request = async_nats::Request::new().payload(payload).timeout(Some(ANSWER_WITHIN));
        // The client keeps the limit; the rest is for its queue.
        let answer = self.shared.client.now(|client| {
            let client = client.clone();
            async move { client.send_request(subject, request).await }
        });
        let answer = tokio::time::timeout(ANSWER_WITHIN * 2, answer).await;
        let answer = answer.map_err(|_| BusError::Timeout { what: what.clone() })?;
        match answer {
            Ok(answer) => Ok(answer.payload),
            Err(error) => match error.kind() {
                async_nats::RequestErrorKind::NoResponders => Err(self.no_jetstream()),
                async_nats::RequestErrorKind::TimedOut => Err(BusError::Timeout { what }),
                _ => Err(BusError::refused(what, error)),
            },
        }
    }
}

fn read(answer: &[u8], what: &str) -> Result<Answer, BusError> {
    serde_json::from_slice(answer).map_err(|source| BusError::refused(what, source))
}

fn accepted(answer: Answer, what: &str) -> Result<Answer, BusError> {
    match answer.error {
        Some(error) => Err(BusError::refused(what, error.description)),
        None => Ok(answer),
    }
}
