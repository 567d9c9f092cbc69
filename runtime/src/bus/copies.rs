//! Copies of buckets in the memory of a process, for the case that the server loses what it has acknowledged.
//!
//! Every process that competes for a lease follows the buckets that its holder writes, on standby as well as while it
//! is active. When it opens a bucket as the holder ([`super::ExclusiveBucket`]) and the bucket's stream ends before a
//! message of the copy, the values that are missing or older are stored again. So a value
//! survives as long as the store or one such process does; a copy is complete up to the last fraction of a second.
//!
//! After a loss the server uses sequence numbers again, so a lower one may be the newer value. It is the newer one if
//! the server stored it later by its own clock.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;
use wattle_common::subject::Bucket;

use super::bounded::CALL_WITHIN;
use super::{Bus, Change};
use crate::shell::chain;

/// The copies of one process. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Copies(Arc<Mutex<BTreeMap<&'static str, BucketCopy>>>);

/// The copy of one bucket.
#[derive(Debug, Default)]
struct BucketCopy {
    /// The last value of each key. As many bytes as the bucket may have.
    values: BTreeMap<String, Change>,
    /// Sequence number and time of the newest message.
    newest: (u64, i128),
}

impl BucketCopy {
    fn add(&mut self, change: Change) {
        let is_newer = |revision: u64, stored_at: i128| {
            change.revision >= revision || change.stored_at > stored_at
        };
        if self.values.get(&change.key).is_some_and(|old| !is_newer(old.revision, old.stored_at)) {
            return;
        }
        if is_newer(self.newest.0, self.newest.1) {
            self.newest = (change.revision, change.stored_at);
        }
        // A copy of the payload: a slice would keep the buffer of the connection.
        match change.value.as_deref().map(Bytes::copy_from_slice) {
            Some(value) => {
                self.values.insert(change.key.clone(), Change { value: Some(value), ..change });
            }
            // After a loss it may return, which does no harm: only ended jobs are deleted.
            None => drop(self.values.remove(&change.key)),
        }
    }

    /// Values that a stream which ended at `end` and has `stored` does not have.
    fn missing_in(&self, end: u64, stored: &[Change]) -> Vec<Change> {
        if end >= self.newest.0 {
            return Vec::new();
        }
        let stored: BTreeMap<&str, &Change> =
            stored.iter().map(|change| (change.key.as_str(), change)).collect();
        let is_missing = |copy: &&Change| {
            stored.get(copy.key.as_str()).is_none_or(|stored| {
                stored.revision < copy.revision && stored.stored_at < copy.stored_at
            })
        };
        self.values.values().filter(is_missing).cloned().collect()
    }
}

impl Copies {
    /// Follows `buckets` until the handles are dropped. Waits until their values are copied, for at most the time of
    /// a call for each.
    pub(super) async fn follow(&self, bus: &Bus, buckets: &[Bucket]) -> Vec<AbortOnDropHandle<()>> {
        let mut following = Vec::new();
        for bucket in buckets {
            let (copies, bus, bucket) = (self.clone(), bus.clone(), *bucket);
            let (is_copied, copied) = oneshot::channel();
            let keep = async move { copies.keep(&bus, bucket, is_copied).await };
            following.push(AbortOnDropHandle::new(tokio::spawn(keep)));
            // A bucket without an answer is copied later.
            let _ = tokio::time::timeout(CALL_WITHIN, copied).await;
        }
        following
    }

    async fn keep(&self, bus: &Bus, bucket: Bucket, is_copied: oneshot::Sender<()>) {
        let watch = async { bus.bucket(bucket).await?.watch().await };
        let mut watch = match watch.await {
            Ok(watch) => watch,
            Err(error) => {
                let (bucket, error) = (bucket.token(), chain(&error));
                tracing::error!(bucket, error, "the bucket is not copied: a loss is not repaired");
                return;
            }
        };
        for change in watch.initial().await {
            self.with(bucket, |copy| copy.add(change));
        }
        // The receiver may wait no longer.
        let _ = is_copied.send(());
        while let Some(change) = watch.next().await {
            self.with(bucket, |copy| copy.add(change));
        }
    }

    /// Values of which a bucket's stream that ended at `end` has nothing or something older.
    pub(super) fn missing_in(&self, bucket: Bucket, end: u64, stored: &[Change]) -> Vec<Change> {
        self.with(bucket, |copy| copy.missing_in(end, stored))
    }

    /// The number of values in the copy of `bucket`.
    pub(super) fn len(&self, bucket: Bucket) -> usize {
        self.with(bucket, |copy| copy.values.len())
    }

    fn with<T>(&self, bucket: Bucket, work: impl FnOnce(&mut BucketCopy) -> T) -> T {
        let mut copies = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        work(copies.entry(bucket.token()).or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(key: &str, value: &'static str, revision: u64, stored_at: i128) -> Change {
        let value = (!value.is_empty()).then(|| Bytes::from(value));
        Change { key: key.to_owned(), value, revision, initial_done: true, stored_at }
    }

    fn copy(changes: &[Change]) -> BucketCopy {
        let mut copy = BucketCopy::default();
        changes.iter().cloned().for_each(|change| copy.add(change));
        copy
    }

    fn values(changes: &[Change]) -> Vec<(&str, &[u8])> {
        changes.iter().map(|c| (c.key.as_str(), c.value.as_deref().unwrap_or_default())).collect()
    }

    #[test]
    fn what_an_emptied_stream_lacks_is_known() {
        let copy = copy(&[
            change("a", "1", 2, 20),
            change("b", "1", 3, 30),
            change("a", "2", 4, 40),
            change("b", "", 5, 50),
            change("c", "1", 6, 60),
        ]);
        assert_eq!(values(&copy.missing_in(0, &[])), [("a", &b"2"[..]), ("c", b"1")]);
        // Nothing is lost: another process has deleted what the copy still has.
        assert!(copy.missing_in(6, &[]).is_empty());
        assert!(copy.missing_in(9, &[change("a", "2", 4, 40)]).is_empty());
    }

    #[test]
    fn a_stream_that_lost_its_end_gets_the_newer_values() {
        let copy =
            copy(&[change("a", "1", 2, 20), change("b", "1", 3, 30), change("b", "2", 9, 90)]);
        let stored = [change("a", "1", 2, 20), change("b", "1", 3, 30)];
        assert_eq!(values(&copy.missing_in(3, &stored)), [("b", &b"2"[..])]);
    }

    #[test]
    fn values_that_were_stored_again_replace_the_copy_and_older_ones_do_not() {
        let mut copy = copy(&[change("a", "old", 2, 20), change("a", "queued", 80, 800)]);
        // The server has lost the second message and delivers the first one again.
        copy.add(change("a", "old", 2, 20));
        assert_eq!(
            values(&copy.missing_in(2, &[change("a", "old", 2, 20)])),
            [("a", &b"queued"[..])]
        );
        // The active process has stored its value again.
        copy.add(change("a", "running", 4, 900));
        assert!(copy.missing_in(4, &[change("a", "running", 4, 900)]).is_empty());
        assert_eq!(values(&copy.missing_in(0, &[])), [("a", &b"running"[..])]);
    }
}
