//! Watches a few keys without a consumer on the server.
//!
//! A consumer delivers stored messages to any subject that its creator names. A process that writes a
//! key could therefore publish on any subject, so it reads that key in the server's JSON envelope. The
//! subscription to the keys only signals changes; the stored value counts.

use std::time::Duration;

use async_nats::Message;
use async_nats::jetstream::stream::LastRawMessageErrorKind;
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::{SelectAll, select_all};
use tokio::sync::{mpsc, watch};
use tokio_util::task::AbortOnDropHandle;

use super::changes::Item;
use super::{BusError, Change, KvBucket, Watch};
use crate::shell::chain;

/// Interval of reading without a signal, wall time.
const READ_EVERY: Duration = Duration::from_secs(10);
/// Pauses after a signal before the value is read again, because it is stored after the signal. They double, so a
/// value is read at most twice as late as it is stored, on a server of any speed.
const PAUSES_MS: [u64; 11] = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512];

impl KvBucket {
    /// Watches `keys`, which this process may also write. Waits for the server.
    ///
    /// # Errors
    /// If the server refuses.
    pub async fn follow(&self, keys: Vec<String>) -> Result<Watch, BusError> {
        let mut signals = Vec::new();
        for key in &keys {
            signals.push(self.bus().subscriber(self.subject(key)).await?.boxed());
        }
        let (sender, items) = mpsc::channel(keys.len().max(1) * 2);
        let known = vec![0; keys.len()];
        let follower = Follower { bucket: self.clone(), keys, known, sender };
        let reached = self.bus().shared.reached.clone();
        let task = tokio::spawn(follower.run(select_all(signals), reached));
        Ok(Watch::new(self, items, AbortOnDropHandle::new(task)))
    }

    /// The value and the revision of a key that this process may also write.
    ///
    /// # Errors
    /// If the server is away or refuses.
    pub async fn get_own(&self, key: &str) -> Result<Option<(Bytes, u64)>, BusError> {
        let stored = self.read_enveloped(key).await?;
        Ok(stored.and_then(|change| change.value.map(|value| (value, change.revision))))
    }

    /// The stored value of a key, in the server's envelope.
    pub(super) async fn read_enveloped(&self, key: &str) -> Result<Option<Change>, BusError> {
        self.bus().check_connected()?;
        let what = self.what("read", key);
        let subject = self.subject(key);
        let read = self.store().call("read", self.object(), |store| {
            store.stream.get_last_raw_message_by_subject(&subject)
        });
        let message = match read.await? {
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => {
                return Ok(None);
            }
            Err(error) => return Err(self.bus().api_error(what, error)),
            Ok(message) => message,
        };
        let deleted = message.headers.get("KV-Operation").is_some_and(|op| op.as_str() != "PUT");
        Ok(Some(Change {
            key: key.to_owned(),
            value: (!deleted).then_some(message.payload),
            revision: message.sequence,
            initial_done: true,
            stored_at: message.time.unix_timestamp_nanos(),
        }))
    }
}

struct Follower {
    bucket: KvBucket,
    keys: Vec<String>,
    /// The revision last sent, by key.
    known: Vec<u64>,
    sender: mpsc::Sender<Item>,
}

impl Follower {
    async fn run(
        mut self,
        mut signals: SelectAll<futures_util::stream::BoxStream<'static, Message>>,
        mut reached: watch::Receiver<u64>,
    ) {
        let mut caught_up = false;
        loop {
            for pause in PAUSES_MS {
                tokio::time::sleep(Duration::from_millis(pause)).await;
                match self.read().await {
                    Ok(0) => {}
                    Ok(_) => break,
                    Err(None) => return,
                    Err(Some(error)) => {
                        let error = chain(&error);
                        tracing::debug!(keys = ?self.keys, error, "not read; retrying");
                    }
                }
            }
            if !std::mem::replace(&mut caught_up, true)
                && self.sender.send(Item::CaughtUp).await.is_err()
            {
                return;
            }
            tokio::select! {
                Some(_) = signals.next() => {}
                changed = reached.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(READ_EVERY) => {}
                () = self.sender.closed() => return,
            }
        }
    }

    /// Sends the keys that have changed; returns their number. `Err(None)`: the watch was dropped.
    async fn read(&mut self) -> Result<usize, Option<BusError>> {
        let mut changed = 0;
        for (key, known) in self.keys.iter().zip(&mut self.known) {
            let Some(change) = self.bucket.read_enveloped(key).await? else { continue };
            if change.revision != *known {
                *known = change.revision;
                changed += 1;
                self.sender.send(Item::Change(change)).await.map_err(|_| None)?;
            }
        }
        Ok(changed)
    }
}
