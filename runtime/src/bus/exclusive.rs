//! A bucket that only the holder of a lease writes.
//!
//! Every write names the last sequence number of the bucket's stream, and the server refuses it if
//! anything was written since. A new holder writes a mark into the bucket, confirms its lease after that,
//! and only then reads and writes values. So the server refuses every later write of an earlier holder,
//! also one that was paused or delayed on the network, without comparing clocks:
//! * if the lease is confirmed, every later holder writes its mark after this one;
//! * if it is not, this process writes nothing but the mark.
//!
//! A refused write has one of three causes. Another process holds the lease: [`ExclusiveError::Lost`].
//! An earlier attempt timed out and was stored: it is recognised by its value. Another client wrote to the
//! bucket, or the server lost its store: the mark is written again, the lease is confirmed, and the write
//! is repeated. If the server lost acknowledged messages, which [`ExclusiveBucket::check`] also finds without a
//! write, [`ExclusiveBucket::take_lost`] reports it, and values of this process's copy ([`super::copies`]) are
//! stored again.
//!
//! The mark is a deleted key, so readers of values do not see it. Writes are ordered: each is acknowledged
//! before the call returns. While the server is away [`ExclusiveBucket::put`] retries until the value is
//! stored or the service stops. [`ExclusiveBucket::put_all`] sends several writes before the first is
//! acknowledged.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use wattle_common::codec;
use wattle_common::subject::Bucket;

use super::{ANSWER_WITHIN, Bus, BusError, Change, KvBucket, Leadership, LeaseLost};
use crate::shell::{Shutdown, chain};

/// Pause between two attempts, in wall time.
const RETRY: Duration = Duration::from_millis(250);
/// Most writes that are sent before the first is acknowledged.
const SENT_MAX: usize = 256;
/// The key of the mark. A key with a dot is no job and no node.
const MARK: &str = "writer.mark";

/// A bucket that only the holder of a lease writes.
pub struct ExclusiveBucket {
    which: Bucket,
    bucket: KvBucket,
    leadership: Leadership,
    /// The sequence number of the last message in the bucket's stream.
    last: u64,
    keys: BTreeSet<String>,
    /// Whether the server has lost acknowledged values.
    lost: bool,
    /// Where the bucket's stream ended after a loss, until the copies are compared with it.
    unrepaired: Option<u64>,
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
    /// Another process holds the lease.
    #[error(transparent)]
    Lost(#[from] LeaseLost),
}

impl ExclusiveError {
    /// The cause, if only this value is not stored ([`BusError::is_value_refused`]).
    #[must_use]
    pub fn refused_value(&self) -> Option<&BusError> {
        match self {
            Self::Bus { source, .. } => Some(source).filter(|source| source.is_value_refused()),
            Self::Lost(_) => None,
        }
    }
}

/// A value to write, or the deletion of its key.
type Value<'a> = (&'a str, Option<Bytes>);

impl ExclusiveBucket {
    /// The bucket, for reading.
    #[must_use]
    pub const fn bucket(&self) -> &KvBucket {
        &self.bucket
    }

    /// Whether `key` has a value.
    #[must_use]
    pub fn contains(&self, key: &str) -> bool {
        self.keys.contains(key)
    }

    /// Excludes earlier writers and reads the values. Waits for the server.
    ///
    /// # Errors
    /// As [`Bus::bucket`], or if another process holds the lease.
    pub async fn open(
        bus: &Bus,
        which: Bucket,
        leadership: &Leadership,
    ) -> Result<(Self, Vec<Change>), ExclusiveError> {
        let mut this = Self::exclusive(bus, which, leadership).await?;
        let mut watch = this.bucket.watch().await.map_err(|error| this.error(error))?;
        let mut changes = watch.initial().await;
        // Includes values that cannot be decoded.
        this.keys = changes.iter().map(|change| change.key.clone()).collect();
        this.restore(this.last.saturating_sub(1), &mut changes).await?;
        Ok((this, changes))
    }

    /// Stores again what the server has lost and this process has a copy of. The stream ended at `present`, and
    /// `changes` are its values.
    async fn restore(
        &mut self,
        present: u64,
        changes: &mut Vec<Change>,
    ) -> Result<(), ExclusiveError> {
        let lost = self.leadership.copies().missing_in(self.which, present, changes);
        if lost.is_empty() {
            return Ok(());
        }
        let (bucket, values) = (self.which.token(), lost.len());
        tracing::error!(
            bucket,
            present,
            values,
            "the server has lost acknowledged messages of the bucket: values of which this process has a \
             copy are stored again; check the server's disk and its log"
        );
        let writes: Vec<_> =
            lost.iter().map(|copy| (copy.key.clone(), copy.value.clone())).collect();
        for writes in writes.chunks(SENT_MAX) {
            // The caller ends the wait at a shutdown.
            for stored in self.write_together(writes.to_vec(), &Shutdown::default()).await {
                let _ = stored?;
            }
        }
        for copy in lost {
            changes.retain(|change| change.key != copy.key);
            changes.push(Change { revision: self.last, ..copy });
        }
        Ok(())
    }

    /// Compares the end of the bucket's stream with the last acknowledged message. If the server has lost
    /// messages, values of which this process has a copy are stored again, and [`Self::take_lost`] reports it.
    /// While the server does not answer, nothing is known.
    ///
    /// # Errors
    /// If another process holds the lease, or the server refuses.
    pub async fn check(&mut self) -> Result<(), ExclusiveError> {
        match self.find_loss().await {
            // The next check or write finds it again.
            Err(ExclusiveError::Bus { source, .. }) if source.is_transient() => Ok(()),
            checked => checked,
        }
    }

    async fn find_loss(&mut self) -> Result<(), ExclusiveError> {
        let before = self.last;
        let is_short = match self.bucket.last_sequence().await {
            Ok(present) => present < before,
            Err(error) => error.is_not_found(),
        };
        if is_short {
            // The mark creates a stream that is gone.
            self.exclude_others().await?;
            self.note_lost(before);
        }
        if let Some(present) = self.unrepaired {
            let mut watch = self.bucket.watch().await.map_err(|error| self.error(error))?;
            self.restore(present, &mut watch.initial().await).await?;
            self.unrepaired = None;
        }
        Ok(())
    }

    fn note_lost(&mut self, acknowledged: u64) {
        let present = self.last.saturating_sub(1);
        (self.lost, self.unrepaired) = (true, Some(present));
        tracing::error!(
            bucket = self.which.token(),
            acknowledged,
            present,
            "the server has lost acknowledged messages of the bucket: check its disk and its log"
        );
    }

    /// As [`Self::open`], but reads only the keys: the values of a large bucket need not fit into memory.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub async fn open_without_values(
        bus: &Bus,
        which: Bucket,
        leadership: &Leadership,
    ) -> Result<Self, ExclusiveError> {
        let mut this = Self::exclusive(bus, which, leadership).await?;
        let keys = loop {
            match this.bucket.keys().await {
                Ok(keys) => break keys,
                Err(error) if error.is_transient() => tokio::time::sleep(RETRY).await,
                Err(error) => return Err(this.error(error)),
            }
        };
        this.keys = keys.into_iter().collect();
        Ok(this)
    }

    /// Whether the server has lost acknowledged values since the last call: the owner of the values writes
    /// all of them again.
    #[must_use]
    pub const fn take_lost(&mut self) -> bool {
        std::mem::replace(&mut self.lost, false)
    }

    /// The bucket after earlier writers are excluded, with no keys known.
    async fn exclusive(
        bus: &Bus,
        which: Bucket,
        leadership: &Leadership,
    ) -> Result<Self, ExclusiveError> {
        let error = |source| ExclusiveError::Bus { bucket: which.token(), source };
        let bucket = bus.bucket(which).await.map_err(error)?;
        let (leadership, keys) = (leadership.clone(), BTreeSet::new());
        let mut this =
            Self { which, bucket, leadership, last: 0, keys, lost: false, unrepaired: None };
        while let Err(error) = this.exclude_others().await {
            match error {
                ExclusiveError::Bus { source, .. } if source.is_transient() => {
                    tokio::time::sleep(RETRY).await;
                }
                error => return Err(error),
            }
        }
        Ok(this)
    }

    /// Writes `value`, and retries while the server is away.
    ///
    /// # Errors
    /// If another process holds the lease, or the server refuses the write.
    pub async fn put<T: Serialize>(
        &mut self,
        key: &str,
        value: &T,
        shutdown: &Shutdown,
    ) -> Result<Stored, ExclusiveError> {
        self.write((key, Some(codec::encode_json(value).into())), shutdown).await
    }

    /// Writes values in their order, and retries while the server is away. Returns one result for each.
    ///
    /// All are sent before the first is acknowledged. From the first one that is not stored, the rest is
    /// written one by one as by [`Self::put`]: the server has stored none of them, unless only the
    /// acknowledgement was lost, which a repetition recognises.
    pub async fn put_all<T: Serialize>(
        &mut self,
        values: &[(&str, &T)],
        shutdown: &Shutdown,
    ) -> Vec<Result<Stored, ExclusiveError>> {
        let encode = |(key, value): &(&str, &T)| -> (String, Option<Bytes>) {
            ((*key).to_owned(), Some(codec::encode_json(*value).into()))
        };
        // Encoded in parts: values may be large and many.
        let mut results = Vec::with_capacity(values.len());
        for values in values.chunks(SENT_MAX) {
            let writes = values.iter().map(encode).collect();
            results.extend(self.write_together(writes, shutdown).await);
        }
        results
    }

    /// Deletes keys as [`Self::put_all`].
    pub async fn delete_all(
        &mut self,
        keys: &[String],
        shutdown: &Shutdown,
    ) -> Vec<Result<Stored, ExclusiveError>> {
        let mut results = Vec::with_capacity(keys.len());
        for keys in keys.chunks(SENT_MAX) {
            let writes = keys.iter().map(|key| (key.clone(), None)).collect();
            results.extend(self.write_together(writes, shutdown).await);
        }
        results
    }

    async fn write_together(
        &mut self,
        writes: Vec<(String, Option<Bytes>)>,
        shutdown: &Shutdown,
    ) -> Vec<Result<Stored, ExclusiveError>> {
        let stored = self.send_all(&writes).await;
        let mut results: Vec<_> = (0..stored).map(|_| Ok(Stored::Immediately)).collect();
        for (key, payload) in writes.into_iter().skip(stored) {
            results.push(self.write((&key, payload), shutdown).await);
        }
        results
    }

    /// Sends writes, and returns the number of acknowledged ones before the first that is not.
    async fn send_all(&mut self, writes: &[(String, Option<Bytes>)]) -> usize {
        let mut sent = Vec::with_capacity(writes.len());
        for ((key, payload), last) in writes.iter().zip(self.last..) {
            match self.bucket.send_after(key, payload.clone(), last).await {
                Ok(write) => sent.push(write),
                Err(_) => break,
            }
        }
        let mut stored = 0;
        for (write, (key, payload)) in sent.into_iter().zip(writes) {
            // The later ones are refused or lost as well; their repetition finds out.
            let Ok(sequence) = self.bucket.acknowledged(write).await else { break };
            self.last = sequence;
            self.remember(key, payload.is_some());
            stored += 1;
        }
        stored
    }

    /// Deletes `key`, and retries while the server is away.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub async fn delete(
        &mut self,
        key: &str,
        shutdown: &Shutdown,
    ) -> Result<Stored, ExclusiveError> {
        self.write((key, None), shutdown).await
    }

    /// Writes `value` in one attempt.
    ///
    /// # Errors
    /// As [`Self::put`], or a [transient](BusError::is_transient) error of the bus.
    pub async fn try_put<T: Serialize>(
        &mut self,
        key: &str,
        value: &T,
    ) -> Result<(), ExclusiveError> {
        self.attempt(&(key, Some(codec::encode_json(value).into()))).await
    }

    /// Deletes `key` in one attempt.
    ///
    /// # Errors
    /// As [`Self::try_put`].
    pub async fn try_delete(&mut self, key: &str) -> Result<(), ExclusiveError> {
        self.attempt(&(key, None)).await
    }

    async fn write(
        &mut self,
        value: Value<'_>,
        shutdown: &Shutdown,
    ) -> Result<Stored, ExclusiveError> {
        let mut stored = Stored::Immediately;
        loop {
            let error = match self.attempt(&value).await {
                Ok(()) => return Ok(stored),
                Err(ExclusiveError::Bus { source, .. }) if source.is_transient() => source,
                Err(error) => return Err(error),
            };
            if std::mem::replace(&mut stored, Stored::AfterRetry) == Stored::Immediately {
                let bucket = self.which.token();
                tracing::warn!(bucket, key = value.0, %error, "not stored yet; retrying");
            }
            tokio::select! {
                () = shutdown.wait() => return Ok(Stored::Interrupted),
                lost = self.leadership.lost() => return Err(lost.into()),
                () = tokio::time::sleep(RETRY) => {}
            }
        }
    }

    async fn attempt(&mut self, value: &Value<'_>) -> Result<(), ExclusiveError> {
        let (key, payload) = value;
        match self.publish(value).await {
            Err(BusError::Conflict { .. }) => {}
            Err(error) => return Err(self.error(error)),
            Ok(sequence) => {
                self.last = sequence;
                self.remember(key, payload.is_some());
                return Ok(());
            }
        }
        // An earlier attempt that timed out is the only message since.
        if let Some(payload) = payload
            && let Some((bytes, sequence)) =
                self.bucket.get_bytes(key).await.map_err(|error| self.error(error))?
            && bytes == *payload
            && sequence == self.last + 1
        {
            self.last = sequence;
            self.remember(key, true);
            return Ok(());
        }
        let before = self.last;
        self.exclude_others().await?;
        // The mark follows all messages that the server still has.
        if self.last <= before {
            self.note_lost(before);
        } else {
            tracing::warn!(
                bucket = self.which.token(),
                sequence = before,
                "the bucket was written by another client; this service holds the lease and writes its \
                 values again as they change"
            );
        }
        self.last = self.publish(value).await.map_err(|error| match error {
            // Repeated as after a time-out.
            BusError::Conflict { .. } => self.error(BusError::Busy),
            error => self.error(error),
        })?;
        self.remember(key, payload.is_some());
        Ok(())
    }

    /// Writes the mark, then confirms the lease.
    async fn exclude_others(&mut self) -> Result<(), ExclusiveError> {
        let bucket = self.which.token();
        let last = match self.bucket.put_mark(MARK).await {
            Ok(sequence) => sequence,
            Err(error) if error.is_value_refused() => {
                tracing::error!(
                    bucket,
                    error = chain(&error),
                    "the bucket is full: an earlier writer is excluded only from this service's next \
                     write on; enlarge the bucket with `nats stream edit`"
                );
                self.bucket.last_sequence().await.map_err(|error| self.error(error))?
            }
            Err(error) => return Err(self.error(error)),
        };
        match tokio::time::timeout(ANSWER_WITHIN * 2, self.leadership.confirm()).await {
            Ok(confirmed) => confirmed?,
            Err(_) => {
                let what = format!("confirm the lease for bucket {bucket}");
                return Err(self.error(BusError::Timeout { what }));
            }
        }
        self.last = last;
        Ok(())
    }

    async fn publish(&self, (key, payload): &Value<'_>) -> Result<u64, BusError> {
        match payload {
            Some(payload) => self.bucket.put_after(key, payload.clone(), self.last).await,
            None => self.bucket.delete_after(key, self.last).await,
        }
    }

    fn remember(&mut self, key: &str, has_value: bool) {
        if !has_value {
            self.keys.remove(key);
        } else if !self.keys.contains(key) {
            self.keys.insert(key.to_owned());
        }
    }

    const fn error(&self, source: BusError) -> ExclusiveError {
        ExclusiveError::Bus { bucket: self.which.token(), source }
    }
}
