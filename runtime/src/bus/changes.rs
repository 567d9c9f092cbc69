//! Watches of a bucket: its values, then their changes.
//!
//! A consumer without a stored position delivers them; the server places it on any of the servers with a copy
//! of the bucket. If the cluster has lost acknowledged messages, a copy may have more than the others. The
//! server of this copy then passes over as many new messages as it has too many (observed with 2.9.10), and a
//! consumer there receives none of them: only its position beyond the end of the stream shows it. So a
//! silent watch compares the two, and reads all values again by another consumer.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::consumer::{DeliverPolicy, ReplayPolicy, push};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use tokio::sync::{mpsc, watch};
use tokio_util::task::AbortOnDropHandle;

use super::bounded::{self, Answers, CALL_WITHIN};
use super::kv::{ALL_KEYS, is_deleted};
use super::{BusError, KvBucket};
use crate::shell::chain;

/// Length of a watch's queue.
const CHANGES_MAX: usize = 256;
/// Pause before a failed watch is restarted.
const PAUSE: Duration = Duration::from_millis(250);
/// Time without a message after which the position is compared with the end of the stream, wall time. Orders
/// of the default lease are renewed more often, so a working watch of them is never compared.
const SILENT: Duration = Duration::from_secs(30);

/// A consumer that delivers the values of a bucket.
pub(super) struct Values {
    pub(super) messages: push::Ordered,
    /// Number of keys when it was created, including deleted ones.
    pub(super) keys: usize,
    /// Its name.
    consumer: String,
}

impl KvBucket {
    /// Watches the bucket: every current value, then every change. Waits for the server.
    ///
    /// # Errors
    /// If the server refuses.
    pub async fn watch(&self) -> Result<Watch, BusError> {
        self.watch_keys(ALL_KEYS).await
    }

    /// As [`Self::watch`], for one key or a pattern of keys (`a.>`).
    ///
    /// # Errors
    /// As [`Self::watch`].
    pub async fn watch_keys(&self, keys: &str) -> Result<Watch, BusError> {
        self.watch_keys_compared(keys, SILENT).await
    }

    /// As [`Self::watch_keys`], with the time without a message after which the position is compared with the
    /// end of the stream, wall time.
    ///
    /// # Errors
    /// As [`Self::watch`].
    pub async fn watch_keys_compared(
        &self,
        keys: &str,
        silent: Duration,
    ) -> Result<Watch, BusError> {
        let first = self.bus().retry_until_done("watch", || self.replay(keys, false)).await?;
        let (sender, items) = mpsc::channel(CHANGES_MAX);
        let (bucket, keys) = (self.clone(), keys.to_owned());
        let received = BTreeSet::new();
        let watcher = Watcher { bucket, keys, silent, sender, caught_up: false, received };
        let reached = self.bus().shared.reached.clone();
        let task = tokio::spawn(watcher.run(first, reached));
        Ok(Watch::new(self, items, AbortOnDropHandle::new(task)))
    }

    /// A consumer of the last value of each key and later changes. After as many different keys as there are,
    /// all initial values were received: a key's last message may be replaced meanwhile but never disappears.
    /// The server's count of pending messages is wrong in that case (observed with 2.9.10), so it is not used.
    pub(super) async fn replay(&self, keys: &str, headers_only: bool) -> Result<Values, BusError> {
        self.ensure().await?;
        let shared = &self.bus().shared;
        let what = format!("watch bucket {}", self.name());
        let name = self.bus().consumer_name();
        let config = push::OrderedConfig {
            deliver_subject: self.bus().new_inbox(),
            // With a name the request's subject contains the filter, which permissions can restrict.
            name: Some(name.clone()),
            description: Some("watch of the bucket".to_owned()),
            filter_subject: self.subject(keys),
            replay_policy: ReplayPolicy::Instant,
            deliver_policy: DeliverPolicy::LastPerSubject,
            headers_only,
            ..push::OrderedConfig::default()
        };
        let (stream, jetstream) = (self.stream_name(), &shared.jetstream);
        let consumer = jetstream.call("watch", self.object(), |context| {
            context.create_consumer_on_stream(config, stream.clone())
        });
        let consumer = consumer.await?.map_err(|source| match source.kind() {
            async_nats::jetstream::stream::ConsumerErrorKind::TimedOut => {
                BusError::Timeout { what: what.clone() }
            }
            _ => self.bus().api_error(what.clone(), source),
        })?;
        let keys = if keys == ALL_KEYS {
            self.info(what.clone()).await?.state.subjects_count as usize
        } else {
            let subjects = self.subject(keys);
            let what = &what;
            let count = jetstream.call("count", self.object(), |context| async move {
                let stream = context.get_stream_no_info(stream).await;
                let stream = stream.map_err(|error| self.bus().api_error(what.clone(), error))?;
                let found = stream.info_with_subjects(subjects).await;
                let found = found.map_err(|error| self.bus().api_error(what.clone(), error))?;
                // The client's stream of subjects panics if it is read after an error.
                let count = found.try_fold(0, |count, _| std::future::ready(Ok(count + 1))).await;
                count.map_err(|error| self.bus().api_error(what.clone(), error))
            });
            count.await??
        };
        let messages = bounded::sent(consumer.messages()).await?;
        let messages = messages.map_err(|source| BusError::refused(what, source))?;
        Ok(Values { messages, keys, consumer: name })
    }
}

/// A new value of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The key.
    pub key: String,
    /// Its value; `None` if deleted.
    pub value: Option<Bytes>,
    /// Its revision, for [`KvBucket::update`].
    pub revision: u64,
    /// Whether all initial values have been returned, including this one.
    pub initial_done: bool,
    /// When the server stored it, by its own clock, nanoseconds since 1970.
    pub stored_at: i128,
}

/// The values of a bucket and their changes.
///
/// After a restart of the server all current values are returned again, so no change is missed and a
/// value may be repeated. If the server lost its store, the lost keys are not reported as deleted.
pub struct Watch {
    items: mpsc::Receiver<Item>,
    caught_up: bool,
    /// The name of the bucket in alarms.
    object: String,
    answers: Arc<Answers>,
    _task: AbortOnDropHandle<()>,
}

pub(super) enum Item {
    Change(Change),
    /// All initial values were received; sent for an empty bucket.
    CaughtUp,
}

impl Watch {
    pub(super) fn new(
        bucket: &KvBucket,
        items: mpsc::Receiver<Item>,
        task: AbortOnDropHandle<()>,
    ) -> Self {
        let answers = Arc::clone(&bucket.bus().shared.answers);
        Self { items, caught_up: false, object: bucket.object().to_owned(), answers, _task: task }
    }

    /// Waits for the next change; `None` after the bus is closed. Cancel-safe.
    pub async fn next(&mut self) -> Option<Change> {
        loop {
            match self.items.recv().await? {
                Item::CaughtUp => self.caught_up = true,
                Item::Change(change) => {
                    self.caught_up |= change.initial_done;
                    return Some(change);
                }
            }
        }
    }

    /// Waits for the next change and returns it with those that were received since, at most `limit`;
    /// `None` after the bus is closed. Cancel-safe.
    pub async fn next_batch(&mut self, limit: usize) -> Option<Vec<Change>> {
        let mut batch = vec![self.next().await?];
        while batch.len() < limit {
            match self.items.try_recv() {
                Ok(Item::CaughtUp) => self.caught_up = true,
                Ok(Item::Change(change)) => batch.push(change),
                Err(_) => break,
            }
        }
        Some(batch)
    }

    /// All initial values, without deleted keys. Call it before [`Self::next`], which returns nothing
    /// for an empty bucket.
    pub async fn initial(&mut self) -> Vec<Change> {
        let mut values = Vec::new();
        while !self.caught_up {
            let received = tokio::time::timeout(CALL_WITHIN, self.items.recv()).await;
            self.answers.received(&self.object, received.is_ok());
            let Ok(received) = received else { continue };
            match received {
                Some(Item::Change(change)) => {
                    self.caught_up = change.initial_done;
                    values.extend(Some(change).filter(|change| change.value.is_some()));
                }
                Some(Item::CaughtUp) | None => self.caught_up = true,
            }
        }
        values
    }

    /// Whether all initial values have been returned.
    #[must_use]
    pub const fn caught_up(&self) -> bool {
        self.caught_up
    }
}

/// Feeds a [`Watch`]; restarts after each reconnection.
struct Watcher {
    bucket: KvBucket,
    keys: String,
    silent: Duration,
    sender: mpsc::Sender<Item>,
    caught_up: bool,
    /// Keys received so far, until all initial values were received.
    received: BTreeSet<String>,
}

impl Watcher {
    async fn run(mut self, first: Values, mut reached: watch::Receiver<u64>) {
        reached.mark_unchanged();
        let mut replay = first;
        loop {
            self.received.clear();
            if replay.keys == 0 && !self.caught_up {
                self.caught_up = true;
                if self.sender.send(Item::CaughtUp).await.is_err() {
                    return;
                }
            }
            if !self.follow(&mut replay, &mut reached).await {
                return;
            }
            replay = loop {
                let again = || self.bucket.replay(&self.keys, false);
                match self.bucket.bus().retry_until_done("watch", again).await {
                    Ok(replay) => break replay,
                    Err(error) => {
                        let error = chain(&error);
                        tracing::error!(bucket = self.bucket.name(), %error, "cannot watch; retrying");
                        tokio::time::sleep(PAUSE).await;
                    }
                }
            };
        }
    }

    /// Passes changes on until the values are to be read again (`true`): the connection was lost, or the
    /// consumer receives nothing. `false`: the watch is dropped.
    async fn follow(&mut self, values: &mut Values, reached: &mut watch::Receiver<u64>) -> bool {
        let Values { messages, keys, consumer } = values;
        loop {
            let message = tokio::select! {
                message = messages.next() => message,
                changed = reached.changed() => return changed.is_ok(),
                () = self.sender.closed() => return false,
                () = tokio::time::sleep(self.silent) => {
                    if self.is_misplaced(consumer).await {
                        return true;
                    }
                    continue;
                }
            };
            let message = match message {
                Some(Ok(message)) => message,
                failed => {
                    let error = failed.map(|failed| failed.err().map(|error| error.to_string()));
                    tracing::debug!(bucket = self.bucket.name(), ?error, "watch restarts");
                    tokio::time::sleep(PAUSE).await;
                    return true;
                }
            };
            let Ok(info) = message.info() else { return true };
            let (revision, stored_at) =
                (info.stream_sequence, info.published.unix_timestamp_nanos());
            let Some(key) = self.bucket.key_of(&message.subject) else { continue };
            if !self.caught_up {
                self.received.insert(key.to_owned());
                self.caught_up = self.received.len() >= *keys;
            }
            let change = Change {
                key: key.to_owned(),
                value: (!is_deleted(&message)).then(|| message.payload.clone()),
                revision,
                initial_done: self.caught_up,
                stored_at,
            };
            if self.sender.send(Item::Change(change)).await.is_err() {
                return false;
            }
        }
    }

    /// Whether the silent consumer misses messages of the stream. While the server is away nothing is known.
    async fn is_misplaced(&self, consumer: &str) -> bool {
        let bucket = self.bucket.name();
        if !self.caught_up {
            // Its copy has fewer keys than that of the server which counted them.
            tracing::warn!(bucket, "not all values were received; reading them again");
            return true;
        }
        match self.bucket.bus().position(&self.bucket.stream_name(), consumer).await {
            Ok(Some(position)) if position.is_beyond_end() => {
                tracing::error!(
                    bucket,
                    keys = self.keys,
                    delivered = position.delivered(),
                    end = position.end(),
                    "the server has lost acknowledged messages of the bucket, and this watch received no new \
                     ones: all values are read again; check the disks and the logs of the servers"
                );
                true
            }
            // The client has created it again under another name.
            Ok(None) => true,
            Ok(Some(_)) | Err(_) => false,
        }
    }
}
