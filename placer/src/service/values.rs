//! Decodes stored values and messages. One that cannot be decoded is logged with its key and ignored.

use serde::de::DeserializeOwned;
use wattle_common::codec;
use wattle_common::messages::{JobProgressed, LaunchReport, LedgerEntry, NodeSummary, PowerReport};
use wattle_common::subject::{Bucket, Reporter, Subject};
use wattle_runtime::bus::{
    Bus, Change, ExclusiveBucket, ExclusiveError, Leadership, StoredDelivery, Watch,
};
use wattle_runtime::shell::chain;

use super::access;
use crate::live::Event;

/// Opens the bucket and decodes its values.
pub(super) async fn open<T: DeserializeOwned>(
    bus: &Bus,
    which: Bucket,
    lease: &Leadership,
) -> Result<(ExclusiveBucket, Vec<T>), ExclusiveError> {
    let (bucket, changes) = ExclusiveBucket::open(bus, which, lease).await?;
    Ok((bucket, changes.iter().filter_map(|change| change.decode(which)).collect()))
}

/// The value of `key` in the bucket of the budget.
pub(super) fn stored<T: DeserializeOwned>(values: &[Change], key: &str) -> Option<T> {
    values.iter().find(|change| change.key == key)?.decode(Bucket::Budget)
}

/// The report of a change.
pub(super) fn reported(change: &Change) -> Option<Event> {
    // Keys of another form are not reports.
    let (reporter, node) = Reporter::parse(&change.key)?;
    match reporter {
        Reporter::Power => change
            .decode::<PowerReport>(Bucket::Actual)
            .filter(|report| report.node == node)
            .map(Event::PowerReported),
        Reporter::Launcher => change
            .decode::<LaunchReport>(Bucket::Actual)
            .filter(|report| report.node == node)
            .map(Event::LaunchReported),
    }
}

/// The initial reports of a watch.
pub(super) async fn reports(actual: &mut Watch) -> (Vec<PowerReport>, Vec<LaunchReport>) {
    let (mut power, mut launch) = (Vec::new(), Vec::new());
    for change in actual.initial().await {
        match reported(&change) {
            Some(Event::PowerReported(report)) => power.push(report),
            Some(Event::LaunchReported(report)) => launch.push(report),
            _ => {}
        }
    }
    (power, launch)
}

/// The progress in a message.
pub(super) fn progressed(subject: &str, payload: &[u8]) -> Option<Event> {
    match codec::decode_json::<JobProgressed>(payload) {
        Ok(message) if !access::is_about(subject, Some(&message.node), Some(&message.job)) => {
            tracing::warn!(subject, "message ignored: it is about another node or job");
            None
        }
        Ok(message) => Some(Event::Progressed(message)),
        Err(error) => {
            tracing::warn!(subject, %error, "message ignored: it cannot be decoded");
            None
        }
    }
}

/// The readings in a message.
pub(super) fn summarized(subject: &str, payload: &[u8]) -> Option<Event> {
    match codec::decode_json::<NodeSummary>(payload) {
        Ok(summary) if !access::is_about(subject, Some(&summary.node), None) => {
            tracing::warn!(subject, "message ignored: it is about another node");
            None
        }
        Ok(summary) => Some(Event::NodeSummarized(Box::new(summary))),
        Err(error) => {
            tracing::warn!(subject, %error, "message ignored: it cannot be decoded");
            None
        }
    }
}

/// The entry of a delivery. One that cannot be decoded, or of another node than its subject's, raises an
/// alarm; it is acknowledged and not delivered again.
pub(super) fn metered(delivery: &StoredDelivery) -> Option<Event> {
    let (subject, sequence) = (&delivery.subject, delivery.sequence);
    let entry = match codec::decode_json::<LedgerEntry>(&delivery.payload) {
        Ok(entry) => entry,
        Err(error) => {
            let error = chain(&error);
            tracing::error!(subject, sequence, error, "energy ledger entry ignored: undecodable");
            return None;
        }
    };
    let parsed = subject.parse::<Subject>();
    if parsed.ok().and_then(|parsed| parsed.node().cloned()).as_ref() != Some(&entry.node) {
        let node = entry.node.as_str();
        tracing::error!(subject, sequence, node, "energy ledger entry ignored: of another node");
        return None;
    }
    Some(Event::EnergyMetered(Box::new(entry)))
}
