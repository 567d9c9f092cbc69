//! The lease on a cluster: at most one registry writes at a time.
//!
//! Two registries on one cluster would overwrite each other's surfaces and scores. One holds the key
//! `registry` of the bucket `predictors`; another is on standby until the lease ends. A lease that ends
//! implausibly late is free ([`Lease::is_held`]). A write names the revision that was read, so two registries cannot acquire it at once. Lease times are the
//! system's; clocks must agree to within a part of the lease.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use wattle_common::bounds::CLOCK_TOLERANCE;
use wattle_common::subject::PredictorKey;
use wattle_common::{Timestamp, codec};
use wattle_runtime::bus::{BusError, KvBucket};
use wattle_runtime::clock;

/// The holder of a cluster's lease and the end of the lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The instance: host, process id and start time.
    pub instance: String,
    /// When it was last renewed.
    pub renewed_at_us: Timestamp,
    /// End of the lease.
    pub until_us: Timestamp,
}

/// Longest lease of another registry, as a multiple of this one's: their configurations may differ.
const LENGTH_RATIO_MAX: u32 = 10;

impl Lease {
    /// Whether it is in force at `now`, for a registry whose own lease has this length. A lease that
    /// ends later than [`LENGTH_RATIO_MAX`] own leases and the tolerated difference of clocks is not
    /// from a registry.
    fn is_held(&self, now: Timestamp, own: Duration) -> bool {
        let latest = now + CLOCK_TOLERANCE + own.saturating_mul(LENGTH_RATIO_MAX);
        now < self.until_us && self.until_us <= latest
    }
}

/// Result of an attempt to acquire the lease.
#[derive(Debug)]
pub(crate) enum Acquired {
    /// This instance holds it.
    Own(Held),
    /// Another instance holds it.
    Other(Lease),
}

/// A lease held by this instance.
#[derive(Debug)]
pub(crate) struct Held {
    lease: Lease,
    length: Duration,
    revision: u64,
}

/// A unique name of this instance.
pub(crate) fn instance() -> String {
    let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let (pid, began) = (std::process::id(), clock::wall_now().as_us());
    format!("{}, process {pid}, started {began}", machine.trim())
}

fn key() -> String {
    PredictorKey::Registry.to_string()
}

fn lease(instance: &str, length: Duration) -> Lease {
    let now = clock::now();
    Lease { instance: instance.to_owned(), renewed_at_us: now, until_us: now + length }
}

/// The stored lease and its revision; the lease is `None` where it cannot be decoded.
async fn stored(bucket: &KvBucket) -> Result<Option<(Option<Lease>, u64)>, BusError> {
    let found = bucket.get_bytes(&key()).await?;
    Ok(found.map(|(bytes, revision)| (codec::decode_json(&bytes).ok(), revision)))
}

/// Acquires the lease if it is free.
///
/// # Errors
/// Where the bus is unreachable, or another instance acquired it first ([`BusError::Conflict`]).
pub(crate) async fn take(
    bucket: &KvBucket,
    instance: &str,
    length: Duration,
) -> Result<Acquired, BusError> {
    let next = lease(instance, length);
    let revision = match stored(bucket).await? {
        Some((Some(other), _))
            if other.instance != instance && other.is_held(next.renewed_at_us, length) =>
        {
            return Ok(Acquired::Other(other));
        }
        Some((Some(other), revision)) if other.until_us > next.renewed_at_us => {
            let Lease { instance, until_us, .. } = other;
            tracing::error!(instance, until = %until_us, "lease ignored: it ends implausibly late");
            bucket.update(&key(), &next, revision).await?
        }
        Some((_, revision)) => bucket.update(&key(), &next, revision).await?,
        None => bucket.create(&key(), &next).await?,
    };
    Ok(Acquired::Own(Held { lease: next, length, revision }))
}

impl Held {
    /// Whether the lease has not ended.
    pub(crate) fn is_valid(&self) -> bool {
        clock::now() < self.lease.until_us
    }

    /// Renews it after a third of its length.
    ///
    /// # Errors
    /// The other holder, where it was lost. An unreachable bus is not an error: the lease then ends at
    /// its time.
    pub(crate) async fn renew(&mut self, bucket: &KvBucket) -> Result<(), Lease> {
        if clock::now() < self.lease.renewed_at_us + self.length / 3 {
            return Ok(());
        }
        let next = lease(&self.lease.instance, self.length);
        match bucket.update(&key(), &next, self.revision).await {
            Ok(revision) => (self.lease, self.revision) = (next, revision),
            Err(BusError::Conflict { .. }) => match stored(bucket).await {
                // An earlier renewal was written, but its acknowledgement was lost.
                Ok(Some((Some(found), revision))) if found.instance == self.lease.instance => {
                    (self.lease, self.revision) = (found, revision);
                }
                Ok(Some((Some(other), _))) => return Err(other),
                // Unreadable: the next renewal overwrites it.
                Ok(Some((None, revision))) => self.revision = revision,
                Ok(None) => {
                    if let Ok(revision) = bucket.create(&key(), &next).await {
                        (self.lease, self.revision) = (next, revision);
                    }
                }
                Err(error) => tracing::debug!(%error, "lease not readable"),
            },
            Err(error) => tracing::debug!(%error, "lease not renewed yet"),
        }
        Ok(())
    }

    /// Releases it, so that another registry need not wait for its end.
    pub(crate) async fn release(self, bucket: &KvBucket) {
        match stored(bucket).await {
            Ok(Some((Some(found), _))) if found.instance == self.lease.instance => {
                if let Err(error) = bucket.delete(&key()).await {
                    tracing::debug!(%error, "lease not released; it ends at its time");
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_without_end_is_free() {
        let (now, own) = (Timestamp::from_s(1_000_000), Duration::from_secs(10));
        let held = |until_us| {
            let lease = Lease { instance: "other".to_owned(), renewed_at_us: now, until_us };
            lease.is_held(now, own)
        };
        assert!(held(now + own) && held(now + own * LENGTH_RATIO_MAX), "a longer lease of another");
        assert!(!held(now));
        assert!(!held(now + Duration::from_secs(3_600)) && !held(Timestamp::FOREVER));
    }
}
