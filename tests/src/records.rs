//! Job records in the bucket `jobs`, as tests read and await them.

use std::time::Duration;

use wattle_common::JobId;
use wattle_common::messages::JobRecord;
use wattle_common::subject::Bucket;
use wattle_runtime::bus::Bus;
use wattle_runtime::testing;

/// A job's record.
pub async fn record(bus: &Bus, job: &JobId) -> Option<JobRecord> {
    let bucket = bus.bucket(Bucket::Jobs).await.ok()?;
    bucket.get(job.as_str()).await.ok().flatten().map(|(record, _)| record)
}

/// The records whose job id begins with `prefix`.
pub async fn with_prefix(bus: &Bus, prefix: &str) -> Vec<JobRecord> {
    let Ok(bucket) = bus.bucket(Bucket::Jobs).await else { return Vec::new() };
    let mut keys = bucket.keys().await.unwrap_or_default();
    keys.retain(|key| key.starts_with(prefix));
    let mut records = Vec::new();
    for key in keys {
        records.extend(bucket.get(&key).await.ok().flatten().map(|(record, _)| record));
    }
    records
}

/// Waits until a record that `read` returns satisfies `wanted`; `logs` are printed if none does.
///
/// # Panics
/// After `patience`.
pub async fn until(
    patience: Duration,
    what: &str,
    read: impl AsyncFn() -> Vec<JobRecord>,
    wanted: impl Fn(&JobRecord) -> bool,
    logs: impl Fn() -> String,
) -> JobRecord {
    let look = async || read().await.into_iter().find(|record| wanted(record));
    match testing::until(patience, look).await {
        Some(record) => record,
        None => panic!("waited {patience:?} for: {what}\nit is {:#?}\n{}", read().await, logs()),
    }
}
