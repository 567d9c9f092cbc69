//! A subscription that queues the newest message of each subject, within a bound in bytes.
//!
//! For messages that are complete states: a newer one replaces an older one that still waits. A receiver
//! that is too slow then processes fewer messages, each of them current, and its memory is bounded. (The
//! client's own queue is bounded in messages only.)

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

use super::{Bus, BusError, Delivery, Subscription};

/// Bytes that a queued message needs besides its payload.
const OVERHEAD: usize = 256;

/// The waiting messages, at most one for each subject.
#[derive(Debug, Default)]
struct Queue {
    order: VecDeque<String>,
    payloads: BTreeMap<String, Bytes>,
    len: usize,
    /// Messages without room since the last log line.
    dropped: u64,
    closed: bool,
}

impl Queue {
    /// Adds a message, or replaces the waiting one of its subject; without room it is dropped.
    fn push(&mut self, subject: &str, payload: &[u8], len_max: usize) {
        let old = self.payloads.get(subject).map(|old| old.len() + OVERHEAD);
        let len = self.len - old.unwrap_or(0) + payload.len() + OVERHEAD;
        if len > len_max {
            self.dropped += 1;
            return;
        }
        self.len = len;
        // A copy: a slice would keep the buffer of the connection.
        let payload = Bytes::copy_from_slice(payload);
        if let Some(waiting) = self.payloads.get_mut(subject) {
            *waiting = payload;
            return;
        }
        self.order.push_back(subject.to_owned());
        self.payloads.insert(subject.to_owned(), payload);
    }

    fn pop(&mut self) -> Option<Delivery> {
        let subject = self.order.pop_front()?;
        let payload = self.payloads.remove(&subject)?;
        self.len -= payload.len() + OVERHEAD;
        Some(Delivery { subject, payload, headers: false })
    }
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Notify,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The newest waiting message of each subject of a pattern.
pub struct NewestMessages {
    shared: Arc<Shared>,
    _task: AbortOnDropHandle<()>,
}

impl NewestMessages {
    /// The message that waits for longest; `None` after the bus is closed. Cancel-safe.
    pub async fn next(&mut self) -> Option<Delivery> {
        loop {
            {
                let mut queue = self.shared.queue();
                if let Some(message) = queue.pop() {
                    return Some(message);
                }
                if queue.closed {
                    return None;
                }
                if queue.dropped > 0 {
                    let messages = std::mem::take(&mut queue.dropped);
                    tracing::warn!(messages, "messages dropped: this service is too slow");
                }
            }
            self.shared.changed.notified().await;
        }
    }
}

async fn receive(mut messages: Subscription, shared: Arc<Shared>, len_max: usize) {
    while let Some(message) = messages.next().await {
        shared.queue().push(&message.subject, &message.payload, len_max);
        shared.changed.notify_one();
    }
    shared.queue().closed = true;
    shared.changed.notify_one();
}

impl Bus {
    /// Subscribes to a pattern of messages that are complete states: of each subject only the newest
    /// waits, and all of them in at most `len_max` bytes; later ones are dropped and logged.
    ///
    /// # Errors
    /// As [`Bus::subscribe`].
    pub async fn subscribe_newest(
        &self,
        pattern: &str,
        len_max: usize,
    ) -> Result<NewestMessages, BusError> {
        let messages = self.subscribe(pattern).await?;
        let shared = Arc::new(Shared::default());
        let task = tokio::spawn(receive(messages, Arc::clone(&shared), len_max));
        Ok(NewestMessages { shared, _task: AbortOnDropHandle::new(task) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_message_of_a_subject_waits_within_the_bound() {
        let len_max = 2 * (OVERHEAD + 4);
        let mut queue = Queue::default();
        queue.push("a", b"1", len_max);
        queue.push("b", b"2", len_max);
        queue.push("c", b"3", len_max);
        assert_eq!(queue.dropped, 1, "c has no room");
        queue.push("a", b"1234567", len_max);
        queue.push("b", b"12345678", len_max);
        assert_eq!(queue.dropped, 2, "the longer b has no room");
        let popped: Vec<_> =
            std::iter::from_fn(|| queue.pop()).map(|m| (m.subject, m.payload)).collect();
        let expected =
            [("a".to_owned(), Bytes::from("1234567")), ("b".to_owned(), Bytes::from("2"))];
        assert_eq!((popped.as_slice(), queue.len), (&expected[..], 0));
    }
}
