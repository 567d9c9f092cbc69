//! The stored position of a consumer after its stream has lost messages.
//!
//! The server keeps the position apart from the stream. If acknowledged messages are lost, new ones get
//! their sequence numbers, and a consumer whose position is beyond the end of the stream is given none of
//! them.

use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::context::ConsumerInfoErrorKind;
use async_nats::jetstream::stream::Stream;

use super::{Bus, BusError, bounded};
use crate::shell::chain;

/// Messages before the end of the stream that are delivered again after a loss: new ones may have arrived
/// before it was noticed. As many as a minute's entries of 1,000 nodes.
const REPEATED: u64 = 1_024;

/// The position of a consumer, and the end of its stream, as sequence numbers.
pub(super) struct Position {
    stream: Stream<()>,
    delivered: u64,
    end: u64,
    /// From where the consumer was created.
    start: DeliverPolicy,
}

impl Position {
    /// The sequence number of the last delivered message.
    pub(super) const fn delivered(&self) -> u64 {
        self.delivered
    }

    /// The sequence number of the stream's last message.
    pub(super) const fn end(&self) -> u64 {
        self.end
    }

    /// Whether messages that were delivered are not in the stream any more.
    pub(super) const fn is_beyond_end(&self) -> bool {
        self.delivered > self.end
    }
}

impl Bus {
    /// The position of the consumer `durable`; `None`: there is no such consumer.
    ///
    /// # Errors
    /// If the server is away.
    pub(super) async fn position(
        &self,
        stream: &str,
        durable: &str,
    ) -> Result<Option<Position>, BusError> {
        let away =
            || BusError::Timeout { what: format!("find consumer {durable} of stream {stream}") };
        let object = format!("stream {stream}");
        let found = self.shared.jetstream.call("find", &object, |context| async move {
            let found = context.get_stream_no_info(stream).await;
            let stream = found.map_err(|_| away())?;
            let consumer = match stream.consumer_info(durable).await {
                Ok(consumer) => consumer,
                Err(error) if error.kind() == ConsumerInfoErrorKind::NotFound => return Ok(None),
                Err(_) => return Err(away()),
            };
            let (delivered, start) =
                (consumer.delivered.stream_sequence, consumer.config.deliver_policy);
            // Read after the position, which may advance meanwhile.
            let end = stream.get_info().await.map_err(|_| away())?.state.last_sequence;
            Ok(Some(Position { stream, delivered, end, start }))
        });
        found.await?
    }

    /// From where the consumer `durable` of a stream is to be created. An existing one whose position is
    /// beyond the end of the stream is deleted; where that is not permitted, it remains, with an alarm.
    ///
    /// # Errors
    /// If the server is away.
    pub(super) async fn start_of(
        &self,
        stream: &str,
        durable: &str,
    ) -> Result<DeliverPolicy, BusError> {
        let Some(position) = self.position(stream, durable).await? else {
            return Ok(DeliverPolicy::All);
        };
        if !position.is_beyond_end() {
            return Ok(position.start);
        }
        let Position { delivered, end, start, .. } = position;
        match bounded::sent(position.stream.delete_consumer(durable)).await? {
            Ok(_) => {
                tracing::error!(
                    stream,
                    durable,
                    delivered,
                    end,
                    "the server has lost acknowledged messages of the stream, whose newest are delivered \
                     again; check the server's disk and its log"
                );
                let start_sequence = end.saturating_sub(REPEATED) + 1;
                Ok(DeliverPolicy::ByStartSequence { start_sequence })
            }
            Err(error) => {
                tracing::error!(
                    stream,
                    durable,
                    delivered,
                    end,
                    error = chain(&error),
                    "the server has lost acknowledged messages of the stream, and this service receives no \
                     new ones until the stream is as long as before: renew the server's permissions with \
                     `wattle keys`"
                );
                Ok(start)
            }
        }
    }
}
