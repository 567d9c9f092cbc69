//! Which registry looks after a cluster: a key that is held for a while and renewed.
//!
//! Two registries on one cluster would write over each other's surfaces and scores, each by what it
//! heard itself. So one holds the key `registry` of the bucket `predictors`, and another stands by
//! until that lease ends. Only who read the newest value can write the next one (by its revision),
//! so two cannot take it at once. Lengths are by the system's clocks, which must agree to within a
//! part of a lease. Nothing of the contest is decided here.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use wattle_common::subject::PredictorKey;
use wattle_common::{Timestamp, codec};
use wattle_runtime::bus::{BusError, KvBucket};
use wattle_runtime::clock;

/// Who holds the cluster's registry, and until when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The instance: machine, process and when it began.
    pub instance: String,
    /// When it was last renewed.
    pub renewed_at_us: Timestamp,
    /// Until when no other may take it.
    pub until_us: Timestamp,
}

/// What became of a try to hold it.
#[derive(Debug)]
pub(crate) enum Tried {
    /// It is this instance's.
    Held(Held),
    /// It is another's.
    Others(Lease),
}

/// A lease that is held.
#[derive(Debug)]
pub(crate) struct Held {
    lease: Lease,
    length: Duration,
    revision: u64,
}

/// A name for this instance that no other has.
pub(crate) fn instance() -> String {
    let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let (pid, began) = (std::process::id(), clock::wall_now().as_us());
    format!("{}, process {pid}, begun {began}", machine.trim())
}

fn key() -> String {
    PredictorKey::Registry.to_string()
}

fn lease(instance: &str, length: Duration) -> Lease {
    let now = clock::now();
    Lease { instance: instance.to_owned(), renewed_at_us: now, until_us: now + length }
}

/// The lease that stands and its revision; `None` in place of one that cannot be read.
async fn standing(bucket: &KvBucket) -> Result<Option<(Option<Lease>, u64)>, BusError> {
    let found = bucket.get_bytes(&key()).await?;
    Ok(found.map(|(bytes, revision)| (codec::decode_json(&bytes).ok(), revision)))
}

/// Takes the lease where nobody holds it.
///
/// # Errors
/// Where the bus is away, or somebody else took it at that moment ([`BusError::Conflict`]).
pub(crate) async fn take(
    bucket: &KvBucket,
    instance: &str,
    length: Duration,
) -> Result<Tried, BusError> {
    let next = lease(instance, length);
    let revision = match standing(bucket).await? {
        Some((Some(other), _))
            if other.instance != instance && other.until_us > next.renewed_at_us =>
        {
            return Ok(Tried::Others(other));
        }
        Some((_, revision)) => bucket.update(&key(), &next, revision).await?,
        None => bucket.create(&key(), &next).await?,
    };
    Ok(Tried::Held(Held { lease: next, length, revision }))
}

impl Held {
    /// Whether nobody else can have it now.
    pub(crate) fn stands(&self) -> bool {
        clock::now() < self.lease.until_us
    }

    /// Renews it once a third of it is over.
    ///
    /// # Errors
    /// Who has it, where another took it; it is not this instance's any more. A bus that is away is
    /// no error: the lease then runs on, and ends.
    pub(crate) async fn renew(&mut self, bucket: &KvBucket) -> Result<(), Lease> {
        if clock::now() < self.lease.renewed_at_us + self.length / 3 {
            return Ok(());
        }
        let next = lease(&self.lease.instance, self.length);
        match bucket.update(&key(), &next, self.revision).await {
            Ok(revision) => (self.lease, self.revision) = (next, revision),
            Err(BusError::Conflict { .. }) => match standing(bucket).await {
                // An earlier try of this instance's own was written though no answer came.
                Ok(Some((Some(found), revision))) if found.instance == self.lease.instance => {
                    (self.lease, self.revision) = (found, revision);
                }
                Ok(Some((Some(other), _))) => return Err(other),
                // It was taken away, or cannot be read: whoever did so is found at the next try.
                Ok(Some((None, revision))) => self.revision = revision,
                Ok(None) => {
                    if let Ok(revision) = bucket.create(&key(), &next).await {
                        (self.lease, self.revision) = (next, revision);
                    }
                }
                Err(error) => tracing::debug!(%error, "the registry's lease cannot be read"),
            },
            Err(error) => tracing::debug!(%error, "the registry's lease is not renewed yet"),
        }
        Ok(())
    }

    /// Gives it up, so that the next need not wait for its end.
    pub(crate) async fn give_up(self, bucket: &KvBucket) {
        match standing(bucket).await {
            Ok(Some((Some(found), _))) if found.instance == self.lease.instance => {
                if let Err(error) = bucket.delete(&key()).await {
                    tracing::debug!(%error, "the registry's lease ends by itself");
                }
            }
            _ => {}
        }
    }
}
