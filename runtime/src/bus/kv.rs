//! Key-value buckets: the state that services share.
//!
//! A bucket is a stream with one message per key. It is made through the stream API: the client's
//! own call needs an account answer that nats-server 2.9 does not give. No key has a time to live
//! (2.9 knows none); what expires carries its time in its value. A bucket refuses new values when
//! it is full rather than forgetting old ones.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use async_nats::jetstream::consumer::{DeliverPolicy, ReplayPolicy, push};
use async_nats::jetstream::kv::{self, Operation};
use async_nats::jetstream::stream::{Config, DiscardPolicy, StorageType};
use bytes::Bytes;
use futures_util::StreamExt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, watch};
use tokio_util::task::AbortOnDropHandle;
use wattle_common::codec::{self, PAYLOAD_LEN_MAX};
use wattle_common::subject::Bucket;

use super::{ANSWER_WITHIN, Bus, BusError};
use crate::shell::chain;

/// A job's record is a few kB: room for tens of thousands of jobs.
const BUCKET_LEN_MAX: i64 = 128 << 20;
/// Keys listed at once.
const KEYS_MAX: usize = 100_000;
/// Changes that wait for whoever watches.
const CHANGES_MAX: usize = 256;
/// Pause before a watch that failed is begun again.
const PAUSE: Duration = Duration::from_millis(250);

/// One bucket of one cluster.
#[derive(Clone)]
pub struct KvBucket {
    bus: Bus,
    name: String,
    store: kv::Store,
}

impl Bus {
    /// Opens a bucket; makes it if it is not there. Waits for the server.
    ///
    /// # Errors
    /// [`BusError::NoJetStream`], [`BusError::Foreign`], or a server that refuses.
    pub async fn bucket(&self, bucket: Bucket) -> Result<KvBucket, BusError> {
        let name = bucket.name(self.cluster());
        let store = self.insist("bucket", || self.open_bucket(&name)).await?;
        Ok(KvBucket { bus: self.clone(), name, store })
    }

    async fn open_bucket(&self, name: &str) -> Result<kv::Store, BusError> {
        self.ensure_bucket(name).await?;
        let opened = self.shared.jetstream.get_key_value(name).await;
        opened.map_err(|source| self.api_error(format!("open bucket {name}"), source))
    }

    async fn ensure_bucket(&self, name: &str) -> Result<(), BusError> {
        self.ensure(Config {
            name: format!("KV_{name}"),
            subjects: vec![format!("$KV.{name}.>")],
            storage: StorageType::File,
            discard: DiscardPolicy::New,
            num_replicas: 1,
            max_consumers: -1,
            max_messages: -1,
            max_messages_per_subject: 1,
            max_message_size: PAYLOAD_LEN_MAX as i32,
            max_bytes: BUCKET_LEN_MAX,
            allow_rollup: true,
            deny_delete: true,
            allow_direct: true,
            ..Config::default()
        })
        .await
    }
}

impl KvBucket {
    /// The value of `key` and its revision; `None` where there is none.
    ///
    /// # Errors
    /// Where the server is away, or [`BusError::Codec`] where the value is no `T`.
    pub async fn get<T: DeserializeOwned>(&self, key: &str) -> Result<Option<(T, u64)>, BusError> {
        match self.get_bytes(key).await? {
            Some((bytes, revision)) => Ok(Some((codec::decode_json(&bytes)?, revision))),
            None => Ok(None),
        }
    }

    /// As [`Self::get`], for a reader that shows what is there, readable or not.
    ///
    /// # Errors
    /// Where the server is away.
    pub async fn get_bytes(&self, key: &str) -> Result<Option<(Bytes, u64)>, BusError> {
        self.bus.check_connected()?;
        let what = self.what("read", key);
        let entry = tokio::time::timeout(ANSWER_WITHIN * 2, self.store.entry(key)).await;
        let entry =
            entry.map_err(|_| BusError::Timeout { what: what.clone() })?.map_err(|source| {
                match source.kind() {
                    kv::EntryErrorKind::TimedOut => BusError::Timeout { what },
                    _ => self.bus.api_error(what, source),
                }
            })?;
        Ok(entry.and_then(|entry| match entry.operation {
            Operation::Put => Some((entry.value, entry.revision)),
            Operation::Delete | Operation::Purge => None,
        }))
    }

    /// Writes, whatever was there; returns the new revision.
    ///
    /// # Errors
    /// After [`BusError::Timeout`] it may have been written or not.
    pub async fn put<T: Serialize>(&self, key: &str, value: &T) -> Result<u64, BusError> {
        let (payload, what) = (self.payload(key, value)?, self.what("write", key));
        self.done(&what, self.store.put(key, payload)).await?.map_err(|source| {
            match source.kind() {
                kv::PutErrorKind::Ack => self.publish_error(what, source),
                _ => BusError::refused(what, source),
            }
        })
    }

    /// Writes only where there is no value; returns the new revision.
    ///
    /// # Errors
    /// [`BusError::Conflict`] where there is one. As [`Self::put`].
    pub async fn create<T: Serialize>(&self, key: &str, value: &T) -> Result<u64, BusError> {
        let (payload, what) = (self.payload(key, value)?, self.what("create", key));
        self.done(&what, self.store.create(key, payload)).await?.map_err(|source| {
            match source.kind() {
                kv::CreateErrorKind::AlreadyExists => self.conflict(key),
                _ => self.publish_error(what, source),
            }
        })
    }

    /// Writes only where the value still has this `revision`; returns the new one.
    ///
    /// # Errors
    /// [`BusError::Conflict`] where it has another. As [`Self::put`]; after a time-out a second try
    /// may find its own first one: read again.
    pub async fn update<T: Serialize>(
        &self,
        key: &str,
        value: &T,
        revision: u64,
    ) -> Result<u64, BusError> {
        let (payload, what) = (self.payload(key, value)?, self.what("update", key));
        let updated = self.done(&what, self.store.update(key, payload, revision)).await?;
        updated.map_err(|source| match source.kind() {
            kv::UpdateErrorKind::WrongLastRevision => self.conflict(key),
            kv::UpdateErrorKind::TimedOut => BusError::Timeout { what },
            _ => self.publish_error(what, source),
        })
    }

    /// Deletes; a key that is not there is no error.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub async fn delete(&self, key: &str) -> Result<(), BusError> {
        self.bus.check_connected()?;
        let what = self.what("delete", key);
        let deleted = self.done(&what, self.store.delete(key)).await?;
        deleted.map_err(|source| self.publish_error(what, source))
    }

    /// Every key with a value, in order.
    ///
    /// # Errors
    /// Where the server is away.
    pub async fn keys(&self) -> Result<Vec<String>, BusError> {
        self.bus.check_connected()?;
        let what = format!("list bucket {}", self.name);
        let listed = async {
            let (mut messages, of) = self.replay(true).await?;
            // Whether each has a value.
            let mut keys: BTreeMap<String, bool> = BTreeMap::new();
            while keys.len() < of.min(KEYS_MAX) {
                let Some(message) = messages.next().await else { break };
                let message = message.map_err(|e| BusError::refused(what.clone(), e))?;
                if let Some(key) = self.key_of(&message.subject) {
                    keys.insert(key.to_owned(), !is_deleted(&message));
                }
            }
            Ok(keys.into_iter().filter(|(_, has_value)| *has_value).map(|(key, _)| key).collect())
        };
        tokio::time::timeout(ANSWER_WITHIN * 2, listed)
            .await
            .map_err(|_| BusError::Timeout { what: what.clone() })?
    }

    /// Says every last value, then every change as it happens. Waits for the server.
    ///
    /// # Errors
    /// Where the server refuses.
    pub async fn watch(&self) -> Result<Watch, BusError> {
        let first = self.bus.insist("watch", || self.replay(false)).await?;
        let (sender, items) = mpsc::channel(CHANGES_MAX);
        let bucket = self.clone();
        let watcher = Watcher { bucket, sender, caught_up: false, seen: BTreeSet::new() };
        let reached = self.bus.shared.reached.clone();
        let task = tokio::spawn(watcher.run(first, reached));
        Ok(Watch { items, caught_up: false, _task: AbortOnDropHandle::new(task) })
    }

    /// A consumer that says the last value of each key and then goes on; and how many keys there
    /// are, deleted ones too. Once so many have been said, all there were at the beginning have: a
    /// key's last message may be written anew meanwhile, but never vanishes. The server's count of
    /// what is still to come goes wrong where that happens (seen with 2.9.10): a reader that waits
    /// for its end waits for ever, or misses keys.
    async fn replay(&self, headers_only: bool) -> Result<(push::Ordered, usize), BusError> {
        self.bus.ensure_bucket(&self.name).await?;
        let what = format!("watch bucket {}", self.name);
        let config = push::OrderedConfig {
            deliver_subject: self.bus.shared.client.new_inbox(),
            description: Some("a watch on the bucket".to_owned()),
            filter_subject: format!("$KV.{}.>", self.name),
            replay_policy: ReplayPolicy::Instant,
            deliver_policy: DeliverPolicy::LastPerSubject,
            headers_only,
            ..push::OrderedConfig::default()
        };
        let stream = format!("KV_{}", self.name);
        let jetstream = &self.bus.shared.jetstream;
        let consumer = jetstream.create_consumer_on_stream(config, stream.clone()).await;
        let consumer = consumer.map_err(|source| match source.kind() {
            async_nats::jetstream::stream::ConsumerErrorKind::TimedOut => {
                BusError::Timeout { what: what.clone() }
            }
            _ => self.bus.api_error(what.clone(), source),
        })?;
        let stream = jetstream.get_stream(stream).await;
        let stream = stream.map_err(|source| self.bus.api_error(what.clone(), source))?;
        let keys = stream.cached_info().state.subjects_count as usize;
        let messages = consumer.messages().await;
        Ok((messages.map_err(|source| BusError::refused(what, source))?, keys))
    }

    /// The key that a message of the bucket's stream is of.
    fn key_of<'a>(&self, subject: &'a str) -> Option<&'a str> {
        subject.strip_prefix("$KV.")?.strip_prefix(self.name.as_str())?.strip_prefix('.')
    }

    fn payload<T: Serialize>(&self, key: &str, value: &T) -> Result<Bytes, BusError> {
        let payload = codec::encode_json(value);
        self.bus.check(&format!("{}.{key}", self.name), payload.len())?;
        Ok(payload.into())
    }

    async fn done<T>(&self, what: &str, work: impl Future<Output = T>) -> Result<T, BusError> {
        // The client waits for the acknowledgement itself; this also bounds a full queue.
        tokio::time::timeout(ANSWER_WITHIN * 2, work)
            .await
            .map_err(|_| BusError::Timeout { what: what.to_owned() })
    }

    /// What a failed write means; the client's errors bury the kind in their sources.
    fn publish_error(
        &self,
        what: String,
        error: impl std::error::Error + Send + Sync + 'static,
    ) -> BusError {
        use async_nats::jetstream::context::{PublishError, PublishErrorKind};
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
        while let Some(this) = cause {
            if let Some(publish) = this.downcast_ref::<PublishError>()
                && matches!(
                    publish.kind(),
                    PublishErrorKind::TimedOut | PublishErrorKind::StreamNotFound
                )
            {
                return BusError::Timeout { what };
            }
            cause = this.source();
        }
        self.bus.api_error(what, error)
    }

    fn what(&self, verb: &str, key: &str) -> String {
        format!("{verb} key `{key}` of bucket {}", self.name)
    }

    fn conflict(&self, key: &str) -> BusError {
        BusError::Conflict { bucket: self.name.clone(), key: key.to_owned() }
    }
}

/// Whether a message says that its key has no value any more.
fn is_deleted(message: &async_nats::Message) -> bool {
    let operation = message.headers.as_ref().and_then(|headers| headers.get("KV-Operation"));
    operation.is_some_and(|operation| operation.as_str() != "PUT")
}

/// A key's value, as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The key.
    pub key: String,
    /// Its value; `None`: it was deleted.
    pub value: Option<Bytes>,
    /// Its revision, for [`KvBucket::update`].
    pub revision: u64,
    /// Whether, with this one, every value that was there when the watch began has been said.
    pub initial_done: bool,
}

/// What happens in a bucket, from its last values on.
///
/// It survives the server's restart: then every last value is said again, so nothing that changed
/// meanwhile is missed, and a value may be said twice. A bucket whose store was lost begins empty;
/// the keys it had are not said to be deleted.
pub struct Watch {
    items: mpsc::Receiver<Item>,
    caught_up: bool,
    _task: AbortOnDropHandle<()>,
}

enum Item {
    Change(Change),
    /// The bucket was empty: there is no last value to say it with.
    CaughtUp,
}

impl Watch {
    /// The next change; waits for it. `None` only once the bus is gone. May be cancelled.
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

    /// Every value that is there as the watch begins; none for an empty bucket. Call it before
    /// [`Self::next`], where the beginning matters: an empty bucket says nothing there. Deleted keys
    /// are left out.
    pub async fn initial(&mut self) -> Vec<Change> {
        let mut values = Vec::new();
        while !self.caught_up {
            match self.items.recv().await {
                Some(Item::Change(change)) => {
                    self.caught_up = change.initial_done;
                    values.extend(Some(change).filter(|change| change.value.is_some()));
                }
                Some(Item::CaughtUp) | None => self.caught_up = true,
            }
        }
        values
    }

    /// Whether every value that was there when the watch began has been said.
    #[must_use]
    pub const fn caught_up(&self) -> bool {
        self.caught_up
    }
}

/// Feeds a [`Watch`]; begins again whenever the server has been away.
struct Watcher {
    bucket: KvBucket,
    sender: mpsc::Sender<Item>,
    caught_up: bool,
    /// The keys said so far, until it has caught up.
    seen: BTreeSet<String>,
}

impl Watcher {
    async fn run(mut self, first: (push::Ordered, usize), mut reached: watch::Receiver<u64>) {
        reached.mark_unchanged();
        let mut replay = first;
        loop {
            let (messages, keys) = &mut replay;
            self.seen.clear();
            if *keys == 0 && !self.caught_up {
                self.caught_up = true;
                if self.sender.send(Item::CaughtUp).await.is_err() {
                    return;
                }
            }
            if !self.follow(messages, *keys, &mut reached).await {
                return;
            }
            replay = loop {
                match self.bucket.bus.insist("watch", || self.bucket.replay(false)).await {
                    Ok(replay) => break replay,
                    Err(error) => {
                        let error = chain(&error);
                        tracing::error!(bucket = %self.bucket.name, %error, "cannot watch; retrying");
                        tokio::time::sleep(PAUSE).await;
                    }
                }
            };
        }
    }

    /// Passes changes on until the server was away (`true`) or nobody watches (`false`).
    async fn follow(
        &mut self,
        messages: &mut push::Ordered,
        keys: usize,
        reached: &mut watch::Receiver<u64>,
    ) -> bool {
        loop {
            let message = tokio::select! {
                message = messages.next() => message,
                changed = reached.changed() => return changed.is_ok(),
                () = self.sender.closed() => return false,
            };
            let message = match message {
                Some(Ok(message)) => message,
                failed => {
                    let error = failed.map(|failed| failed.err().map(|error| error.to_string()));
                    tracing::debug!(bucket = %self.bucket.name, ?error, "watch begins again");
                    tokio::time::sleep(PAUSE).await;
                    return true;
                }
            };
            let Ok(info) = message.info() else { return true };
            let revision = info.stream_sequence;
            let Some(key) = self.bucket.key_of(&message.subject) else { continue };
            if !self.caught_up {
                self.seen.insert(key.to_owned());
                self.caught_up = self.seen.len() >= keys;
            }
            let change = Change {
                key: key.to_owned(),
                value: (!is_deleted(&message)).then(|| message.payload.clone()),
                revision,
                initial_done: self.caught_up,
            };
            if self.sender.send(Item::Change(change)).await.is_err() {
                return false;
            }
        }
    }
}
