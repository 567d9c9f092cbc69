//! A bucket with a single writer.
//!
//! Every write names the revision it replaces. A second writer is detected at its first write and
//! reported as [`ExclusiveError::OtherWriter`], so two writers never overwrite each other.
//!
//! Writes are ordered: each is acknowledged before the call returns. While the server is away the call
//! retries until the value is stored or the service stops. A write that timed out but was stored is
//! recognised by its value. A value that cannot be decoded is overwritten. Values lost with the
//! server's store are written again.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use wattle_common::codec;
use wattle_common::subject::Bucket;

use super::{Bus, BusError, Change, KvBucket};
use crate::shell::Shutdown;

/// Pause between two attempts, in wall time.
const RETRY: Duration = Duration::from_millis(250);

/// A bucket that only this process writes.
pub struct ExclusiveBucket {
    which: Bucket,
    bucket: KvBucket,
    revisions: BTreeMap<String, u64>,
}

/// Outcome of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Stored {
    /// Acknowledged at the first attempt.
    Immediately,
    /// Acknowledged after retries: the server was away meanwhile.
    AfterRetry,
    /// Shutdown was requested first; the value may not be stored.
    Interrupted,
}

/// Why an exclusive bucket cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum ExclusiveError {
    /// The server refuses the write.
    #[error("bucket {bucket} cannot be written")]
    Bus {
        /// The bucket.
        bucket: &'static str,
        /// The cause.
        #[source]
        source: BusError,
    },
    /// Another process wrote the key.
    #[error("key `{key}` of bucket {bucket} was written by another process")]
    OtherWriter {
        /// The bucket.
        bucket: &'static str,
        /// The key.
        key: String,
    },
}

impl ExclusiveError {
    /// The cause, if only this value is not stored ([`BusError::is_value_refused`]).
    #[must_use]
    pub fn refused_value(&self) -> Option<&BusError> {
        match self {
            Self::Bus { source, .. } => Some(source).filter(|source| source.is_value_refused()),
            Self::OtherWriter { .. } => None,
        }
    }
}

impl ExclusiveBucket {
    /// The bucket, for reading.
    #[must_use]
    pub const fn bucket(&self) -> &KvBucket {
        &self.bucket
    }

    /// Whether `key` has a value.
    #[must_use]
    pub fn contains(&self, key: &str) -> bool {
        self.revisions.contains_key(key)
    }

    /// Opens the bucket and reads its values. Waits for the server.
    ///
    /// # Errors
    /// As [`Bus::bucket`].
    pub async fn open(bus: &Bus, which: Bucket) -> Result<(Self, Vec<Change>), BusError> {
        let bucket = bus.bucket(which).await?;
        let changes = bucket.watch().await?.initial().await;
        // Includes values that cannot be decoded: their replacement must name their revision.
        let revisions = changes.iter().map(|change| (change.key.clone(), change.revision));
        let revisions = revisions.collect();
        Ok((Self { which, bucket, revisions }, changes))
    }

    /// Writes `value`, and retries while the server is away.
    ///
    /// # Errors
    /// If another process wrote the key, or the server refuses the write.
    pub async fn put<T: Serialize + DeserializeOwned>(
        &mut self,
        key: &str,
        value: &T,
        shutdown: &Shutdown,
    ) -> Result<Stored, ExclusiveError> {
        let mut stored = Stored::Immediately;
        loop {
            let written = match self.revisions.get(key) {
                Some(revision) => self.bucket.update(key, value, *revision).await,
                None => self.bucket.create(key, value).await,
            };
            let written = match written {
                Err(BusError::Conflict { .. }) => self.resolve_conflict(key, value).await?,
                Err(error) => Err(error),
                Ok(revision) => Ok(Some(revision)),
            };
            match written {
                Ok(Some(revision)) => {
                    self.revisions.insert(key.to_owned(), revision);
                    return Ok(stored);
                }
                Ok(None) => {}
                Err(error) => {
                    self.pause(key, error, &mut stored, shutdown).await?;
                    if stored == Stored::Interrupted {
                        return Ok(stored);
                    }
                }
            }
        }
    }

    /// Deletes `key`, and retries while the server is away.
    ///
    /// # Errors
    /// If the server refuses.
    pub async fn delete(
        &mut self,
        key: &str,
        shutdown: &Shutdown,
    ) -> Result<Stored, ExclusiveError> {
        let mut stored = Stored::Immediately;
        while let Err(error) = self.bucket.delete(key).await {
            self.pause(key, error, &mut stored, shutdown).await?;
            if stored == Stored::Interrupted {
                return Ok(stored);
            }
        }
        self.revisions.remove(key);
        Ok(stored)
    }

    /// The revision of an earlier attempt that was stored; `None` if the write must be repeated with
    /// the revision now known.
    async fn resolve_conflict<T: Serialize + DeserializeOwned>(
        &mut self,
        key: &str,
        value: &T,
    ) -> Result<Result<Option<u64>, BusError>, ExclusiveError> {
        let bucket = self.which.token();
        Ok(match self.bucket.get_bytes(key).await {
            // The attempt timed out and was stored.
            Ok(Some((bytes, revision))) if bytes == codec::encode_json(value) => Ok(Some(revision)),
            // Not written by this service.
            Ok(Some((bytes, revision))) if codec::decode_json::<T>(&bytes).is_err() => {
                tracing::warn!(bucket, key, revision, "undecodable value overwritten");
                self.revisions.insert(key.to_owned(), revision);
                Ok(None)
            }
            // The server lost its store.
            Ok(None) if self.revisions.remove(key).is_some() => Ok(None),
            Ok(_) => return Err(ExclusiveError::OtherWriter { bucket, key: key.to_owned() }),
            Err(error) => Err(error),
        })
    }

    /// Pauses before the next attempt; `stored` becomes `Interrupted` if shutdown comes first.
    async fn pause(
        &self,
        key: &str,
        error: BusError,
        stored: &mut Stored,
        shutdown: &Shutdown,
    ) -> Result<(), ExclusiveError> {
        let bucket = self.which.token();
        if !error.is_transient() {
            return Err(ExclusiveError::Bus { bucket, source: error });
        }
        if *stored == Stored::Immediately {
            tracing::warn!(bucket, key, %error, "not stored yet; retrying");
        }
        *stored = Stored::AfterRetry;
        tokio::select! {
            () = shutdown.wait() => *stored = Stored::Interrupted,
            () = tokio::time::sleep(RETRY) => {}
        }
        Ok(())
    }
}
