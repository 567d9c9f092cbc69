//! Key-value buckets: the state that services share.
//!
//! A bucket is a stream with one message for each key. It is created through the stream API, because
//! the client's own call needs an account reply that nats-server 2.9 does not give. Keys have no time
//! to live (2.9 has none); a value that expires contains its expiry time. A full bucket refuses new
//! values and keeps the old ones.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::GetStreamError;
use async_nats::jetstream::kv::{self, Operation};
use async_nats::jetstream::stream::{Config, DiscardPolicy, Info, StorageType};
use bytes::Bytes;
use futures_util::StreamExt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use wattle_common::Timestamp;
use wattle_common::codec::{self, PAYLOAD_LEN_MAX};
use wattle_common::subject::Bucket;

use super::bounded::{Bounded, CALL_WITHIN};
use super::changes::Values;
use super::connect::OPENED_WITHIN;
use super::{Bus, BusError};

/// Most bytes of a bucket: a job record is a few kB, enough for tens of thousands of jobs; a surface is up
/// to 75 kB.
pub(super) const fn len_max(bucket: Bucket) -> i64 {
    match bucket {
        Bucket::Surfaces => 1 << 30,
        _ => 128 << 20,
    }
}
/// Most keys of one listing.
const KEYS_MAX: usize = 100_000;
/// The pattern of all keys.
pub(super) const ALL_KEYS: &str = ">";
/// The server's errors for a value without room. A bucket over its limit answers with the first.
pub(super) const FULL: [ErrorCode; 4] = [
    ErrorCode::STREAM_STORE_FAILED,
    ErrorCode::STORAGE_RESOURCES_EXCEEDED,
    ErrorCode::ACCOUNT_RESOURCES_EXCEEDED,
    ErrorCode::INSUFFICIENT_RESOURCES,
];

/// One bucket of one cluster.
#[derive(Clone)]
pub struct KvBucket {
    bus: Bus,
    name: String,
    /// The name in alarms: `bucket NAME`.
    object: String,
    store: Bounded<kv::Store>,
}

impl Bus {
    /// Opens a bucket and creates it if necessary. Waits for the server; after [`Bus::connect_within`] for
    /// ten seconds of wall time.
    ///
    /// # Errors
    /// [`BusError::NoJetStream`], [`BusError::Foreign`], [`BusError::NoStorage`], or if the server refuses.
    pub async fn bucket(&self, bucket: Bucket) -> Result<KvBucket, BusError> {
        let name = bucket.name(self.cluster());
        // Of a server that does not answer in time nothing is known, in particular not that it has no storage.
        let is_missing = AtomicBool::new(false);
        let opened = self.retry_until_done("bucket", || async {
            let opened = self.open_bucket(&name).await;
            let missing = matches!(opened, Err(BusError::Missing { .. }));
            is_missing.store(missing, Ordering::Relaxed);
            opened
        });
        let store = if self.shared.gives_up.load(Ordering::Relaxed) {
            match tokio::time::timeout(OPENED_WITHIN, opened).await {
                Ok(opened) => opened?,
                Err(_) if !self.is_connected() => return Err(self.not_connected()),
                Err(_) => {
                    let (url, cluster) = (self.shared.url.clone(), self.cluster().clone());
                    return Err(if is_missing.into_inner() {
                        BusError::NoStorage { url, cluster }
                    } else {
                        BusError::StorageUnanswered { url, cluster }
                    });
                }
            }
        } else {
            opened.await?
        };
        let (object, store) = (format!("bucket {name}"), self.shared.client.with(store));
        Ok(KvBucket { bus: self.clone(), name, object, store })
    }

    async fn open_bucket(&self, name: &str) -> Result<kv::Store, BusError> {
        self.ensure_bucket(name).await?;
        let object = format!("bucket {name}");
        let opened = self
            .shared
            .jetstream
            .call("open", &object, |context| context.get_key_value(name))
            .await?;
        opened.map_err(|source| self.api_error(format!("open bucket {name}"), source))
    }

    async fn ensure_bucket(&self, name: &str) -> Result<(), BusError> {
        let bucket = Bucket::ALL.into_iter().find(|bucket| bucket.name(self.cluster()) == name);
        self.ensure(Config {
            name: format!("KV_{name}"),
            description: bucket.map(|bucket| bucket.description().to_owned()),
            subjects: vec![format!("$KV.{name}.>")],
            storage: StorageType::File,
            discard: DiscardPolicy::New,
            num_replicas: self.shared.replicas.unwrap_or(1),
            max_consumers: -1,
            max_messages: -1,
            max_messages_per_subject: 1,
            max_message_size: PAYLOAD_LEN_MAX as i32,
            max_bytes: bucket.map_or(-1, len_max),
            allow_rollup: true,
            deny_delete: true,
            allow_direct: true,
            ..Config::default()
        })
        .await
    }
}

/// How full a bucket is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Fill {
    /// The used share of its size; 0 without a limit.
    pub share: f64,
    /// Its largest size, bytes, if it is limited.
    pub bytes_max: Option<u64>,
}

impl KvBucket {
    /// The value of `key` and its revision; `None` without a value.
    ///
    /// # Errors
    /// If the server is away, or [`BusError::Codec`] if the value is not a `T`.
    pub async fn get<T: DeserializeOwned>(&self, key: &str) -> Result<Option<(T, u64)>, BusError> {
        match self.get_bytes(key).await? {
            Some((bytes, revision)) => Ok(Some((codec::decode_json(&bytes)?, revision))),
            None => Ok(None),
        }
    }

    /// As [`Self::get`], without decoding.
    ///
    /// # Errors
    /// If the server is away.
    pub async fn get_bytes(&self, key: &str) -> Result<Option<(Bytes, u64)>, BusError> {
        self.bus.check_connected()?;
        let what = self.what("read", key);
        let entry = self.store.call("read", &self.object, |store| store.entry(key)).await?;
        let entry = entry.map_err(|source| match source.kind() {
            kv::EntryErrorKind::TimedOut => BusError::Timeout { what },
            _ => self.bus.api_error(what, source),
        })?;
        Ok(entry.and_then(|entry| match entry.operation {
            Operation::Put => Some((entry.value, entry.revision)),
            Operation::Delete | Operation::Purge => None,
        }))
    }

    /// The revision of `key`, and when the server stored it by its own clock (wall time); `None` without a
    /// value.
    ///
    /// # Errors
    /// If the server is away.
    pub async fn stored_at(&self, key: &str) -> Result<Option<(u64, Timestamp)>, BusError> {
        self.bus.check_connected()?;
        let what = self.what("read", key);
        let entry = self.store.call("read", &self.object, |store| store.entry(key)).await?;
        let entry = entry.map_err(|source| self.bus.api_error(what, source))?;
        Ok(entry.map(|entry| {
            let us = entry.created.unix_timestamp_nanos() / 1_000;
            (entry.revision, Timestamp::from_us(u64::try_from(us).unwrap_or_default()))
        }))
    }

    /// Writes unconditionally; returns the new revision.
    ///
    /// # Errors
    /// After [`BusError::Timeout`] the value may have been written.
    pub async fn put<T: Serialize>(&self, key: &str, value: &T) -> Result<u64, BusError> {
        let (payload, what) = (self.payload(key, value)?, self.what("write", key));
        let put = self.store.call("write", &self.object, |store| store.put(key, payload)).await?;
        put.map_err(|source| match source.kind() {
            kv::PutErrorKind::Ack => self.publish_error(what, source),
            _ => BusError::refused(what, source),
        })
    }

    /// Writes only if there is no value; returns the new revision.
    ///
    /// # Errors
    /// [`BusError::Conflict`] if there is one. As [`Self::put`].
    pub async fn create<T: Serialize>(&self, key: &str, value: &T) -> Result<u64, BusError> {
        let (payload, what) = (self.payload(key, value)?, self.what("create", key));
        let created = self.store.call("write", &self.object, |store| store.create(key, payload));
        created.await?.map_err(|source| match source.kind() {
            kv::CreateErrorKind::AlreadyExists => self.conflict(key),
            _ => self.publish_error(what, source),
        })
    }

    /// Writes only if the value has this `revision`; returns the new one.
    ///
    /// # Errors
    /// [`BusError::Conflict`] if it has another. As [`Self::put`]; after a time-out the conflict may be
    /// with the caller's own first attempt: read the value.
    pub async fn update<T: Serialize>(
        &self,
        key: &str,
        value: &T,
        revision: u64,
    ) -> Result<u64, BusError> {
        let (payload, what) = (self.payload(key, value)?, self.what("update", key));
        let updated =
            self.store.call("write", &self.object, |store| store.update(key, payload, revision));
        updated.await?.map_err(|source| match source.kind() {
            kv::UpdateErrorKind::WrongLastRevision => self.conflict(key),
            kv::UpdateErrorKind::TimedOut => BusError::Timeout { what },
            _ => self.publish_error(what, source),
        })
    }

    /// Deletes; a missing key is not an error.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub async fn delete(&self, key: &str) -> Result<(), BusError> {
        self.bus.check_connected()?;
        let what = self.what("delete", key);
        let deleted = self.store.call("write", &self.object, |store| store.delete(key)).await?;
        deleted.map_err(|source| self.publish_error(what, source))
    }

    /// Every key with a value, in order.
    ///
    /// # Errors
    /// If the server is away.
    pub async fn keys(&self) -> Result<Vec<String>, BusError> {
        self.bus.check_connected()?;
        let what = format!("list bucket {}", self.name);
        let listed = async {
            let Values { mut messages, keys: of, .. } = self.replay(ALL_KEYS, true).await?;
            // Key, and whether it has a value.
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
        tokio::time::timeout(CALL_WITHIN, listed)
            .await
            .map_err(|_| BusError::Timeout { what: what.clone() })?
    }

    /// The used share of the bucket's size limit; 0 without a limit.
    ///
    /// # Errors
    /// If the server is away.
    pub async fn fill(&self) -> Result<Fill, BusError> {
        self.bus.check_connected()?;
        let what = format!("read the size of bucket {}", self.name);
        let info = self.info(what).await?;
        let bytes_max = u64::try_from(info.config.max_bytes).ok().filter(|max| *max > 0);
        let share = bytes_max.map_or(0.0, |max| info.state.bytes as f64 / max as f64);
        Ok(Fill { share, bytes_max })
    }

    /// The state and the configuration of the bucket's stream.
    pub(super) async fn info(&self, what: String) -> Result<Info, BusError> {
        self.bus.check_connected()?;
        let name = self.stream_name();
        let found = self.bus.shared.jetstream.call("find", &self.object, |context| {
            let stream = context.get_stream(name);
            async { Ok::<_, GetStreamError>(stream.await?.cached_info().clone()) }
        });
        found.await?.map_err(|source| self.bus.api_error(what, source))
    }

    /// Creates the bucket if it is missing.
    pub(super) async fn ensure(&self) -> Result<(), BusError> {
        self.bus.ensure_bucket(&self.name).await
    }

    pub(super) const fn bus(&self) -> &Bus {
        &self.bus
    }

    /// The bucket through the client library.
    pub(super) const fn store(&self) -> &Bounded<kv::Store> {
        &self.store
    }

    /// The name of the bucket in alarms.
    pub(super) fn object(&self) -> &str {
        &self.object
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn stream_name(&self) -> String {
        format!("KV_{}", self.name)
    }

    /// The subject of a key or a pattern of keys.
    pub(super) fn subject(&self, keys: &str) -> String {
        format!("$KV.{}.{keys}", self.name)
    }

    /// The key of a message in the bucket's stream.
    pub(super) fn key_of<'a>(&self, subject: &'a str) -> Option<&'a str> {
        subject.strip_prefix("$KV.")?.strip_prefix(self.name.as_str())?.strip_prefix('.')
    }

    fn payload<T: Serialize>(&self, key: &str, value: &T) -> Result<Bytes, BusError> {
        let payload = codec::encode_json(value);
        self.bus.check(&format!("{}.{key}", self.name), payload.len())?;
        Ok(payload.into())
    }

    /// The error of a failed write; the client's errors have the kind in one of their sources.
    pub(super) fn publish_error(
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
            if let Some(reply) = this.downcast_ref::<async_nats::jetstream::Error>()
                && FULL.contains(&reply.error_code())
            {
                return BusError::Full { what, source: error.into() };
            }
            cause = this.source();
        }
        self.bus.api_error(what, error)
    }

    pub(super) fn what(&self, verb: &str, key: &str) -> String {
        format!("{verb} key `{key}` of bucket {}", self.name)
    }

    pub(super) fn conflict(&self, key: &str) -> BusError {
        BusError::Conflict { bucket: self.name.clone(), key: key.to_owned() }
    }
}

/// Whether a message deletes its key.
pub(super) fn is_deleted(message: &async_nats::Message) -> bool {
    let operation = message.headers.as_ref().and_then(|headers| headers.get("KV-Operation"));
    operation.is_some_and(|operation| operation.as_str() != "PUT")
}
