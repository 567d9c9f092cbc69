//! Follows the buckets and the ledger.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use wattle_common::subject::{Bucket, StreamName, Topic};
use wattle_runtime::bus::BusError;
use wattle_runtime::shell::chain;

use super::{Shared, now};
use crate::model::{Model, Now};

/// Changes that are applied at once.
const BATCH: usize = 256;
/// Pause after an error, wall time.
const PAUSE: Duration = Duration::from_secs(2);
/// Interval in which the connection is looked at, wall time.
const LOOK_EVERY: Duration = Duration::from_millis(500);

type Apply = fn(&mut Model, &str, Option<&[u8]>, Now);

/// The followed buckets, and how their changes are applied.
const BUCKETS: [(Bucket, Apply); 6] = [
    (Bucket::Jobs, |model, key, value, _| model.job(key, value)),
    (Bucket::Actual, Model::report),
    (Bucket::Desired, |model, key, value, _| model.order(key, value)),
    (Bucket::Budget, |model, key, value, _| model.budget(key, value)),
    (Bucket::Predictors, |model, key, value, _| model.predictor(key, value)),
    (Bucket::Leases, Model::lease),
];

/// Starts a task for each bucket, and one for the ledger.
pub(super) fn start(shared: &Arc<Shared>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for (bucket, apply) in BUCKETS {
        tasks.spawn(follow(Arc::clone(shared), bucket, apply));
    }
    tasks.spawn(ledger(Arc::clone(shared)));
    tasks
}

async fn follow(shared: Arc<Shared>, bucket: Bucket, apply: Apply) {
    loop {
        if let Err(error) = changes(&shared, bucket, apply).await {
            let error = chain(&error);
            tracing::warn!(bucket = bucket.token(), error, "bucket not followed; retrying");
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Applies the changes of a bucket until the bus is closed.
async fn changes(shared: &Shared, bucket: Bucket, apply: Apply) -> Result<(), BusError> {
    let mut watch = shared.bus.bucket(bucket).await?.watch().await?;
    while let Some(batch) = watch.next_batch(BATCH).await {
        let now = now();
        let mut model = shared.model();
        for change in batch {
            apply(&mut model, &change.key, change.value.as_deref(), now);
        }
    }
    Ok(())
}

/// Counts the stored entries of the ledger and the new ones. After the bus was away the stored ones are
/// read again; repeated ones do not count.
async fn ledger(shared: Arc<Shared>) {
    loop {
        if let Err(error) = entries(&shared).await {
            tracing::warn!(error = chain(&error), "the ledger is not read; retrying");
            tokio::time::sleep(PAUSE).await;
        }
    }
}

async fn entries(shared: &Shared) -> Result<(), BusError> {
    let bus = &shared.bus;
    let mut new = bus.subscribe(&Topic::EnergyMetered.pattern(bus.cluster())).await?;
    let mut stored = bus.replay(StreamName::Ledger, None).await?;
    while let Some(entry) = stored.next_message().await? {
        shared.model().entry(&entry.subject, &entry.payload, now());
    }
    // It would receive the new entries too, and nothing would take them.
    drop(stored);
    shared.model().ledger_read = true;
    loop {
        tokio::select! {
            entry = new.next() => match entry {
                Some(entry) => shared.model().entry(&entry.subject, &entry.payload, now()),
                None => return Ok(()),
            },
            () = lost(shared) => break,
        }
    }
    while !bus.is_connected() {
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(())
}

/// Returns when the bus is away.
async fn lost(shared: &Shared) {
    while shared.bus.is_connected() {
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
