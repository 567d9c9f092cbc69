//! The claim on a node's name: of two launchers with one name, the second stands aside.
//!
//! The launcher's report in the bucket `actual` is the claim. It names the launcher's process and, as a
//! hash, its machine and state folder. A launcher with the same state folder continues at once: the
//! folder's lock shows that the earlier one has ended. Another one waits until the reports have
//! stopped and the last one lists no running job, because it would start these jobs a second time.

use std::path::Path;
use std::time::Duration;

use wattle_common::codec;
use wattle_common::hash::fnv1a;
use wattle_common::messages::{LaunchReport, LaunchState};
use wattle_runtime::bus::{BusError, KvBucket};
use wattle_runtime::{clock, instance};

/// Heartbeats without a report after which the other launcher has ended.
const SILENT_HEARTBEATS: u32 = 3;
/// Pause between two looks at the claim: wall time.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// This process and its state folder, for reports.
pub(crate) fn name(state_dir: &Path) -> String {
    let machine = instance::machine();
    let folder = std::fs::canonicalize(state_dir).unwrap_or_else(|_| state_dir.to_owned());
    let hash = fnv1a(format!("{machine} {}", folder.display()).as_bytes());
    format!("{}, state {hash:016x}", instance::name())
}

/// The hash of the state folder in an instance's name.
fn state_of(instance: &str) -> Option<&str> {
    instance.rsplit_once(", state ").map(|(_, hash)| hash)
}

/// Whether a stored report is that of a launcher with another state folder.
fn is_other(stored: &str, own: &str) -> bool {
    !stored.is_empty() && state_of(stored) != state_of(own)
}

/// Waits until the node's name is free for this launcher, and claims it with its first report.
/// `heartbeat`: wall time.
pub(crate) async fn claim(
    actual: &KvBucket,
    key: &str,
    first: &LaunchReport,
    heartbeat: Duration,
) -> Result<(), BusError> {
    let (mut seen, mut since, mut logged) = (0, clock::now(), false);
    loop {
        let stored = actual.get_own(key).await?;
        let report = stored.as_ref().and_then(|(value, revision)| {
            let report = codec::decode_json::<LaunchReport>(value).ok()?;
            is_other(&report.instance, &first.instance).then_some((report, *revision))
        });
        let Some((report, revision)) = report else {
            if try_claim(actual, key, first, stored.map(|(_, revision)| revision)).await? {
                return Ok(());
            }
            continue;
        };
        if revision != seen {
            (seen, since) = (revision, clock::now());
        }
        let is_live =
            |state: &LaunchState| matches!(state, LaunchState::Running | LaunchState::Stopping);
        let live = report.jobs.iter().filter(|job| is_live(&job.state)).count();
        let silence = clock::scale().wall_span(clock::now().since(since));
        let is_silent = silence >= heartbeat * SILENT_HEARTBEATS;
        if is_silent && live == 0 {
            if try_claim(actual, key, first, Some(revision)).await? {
                return Ok(());
            }
            continue;
        }
        if !std::mem::replace(&mut logged, true) {
            tracing::error!(
                other = report.instance,
                running_jobs = live,
                "another launcher has this node's name: this one stands aside and starts no job. Stop \
                 one of the two, or configure another `node`. If the other one no longer exists and \
                 its jobs have ended, delete the key `{key}` of the bucket `actual`"
            );
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Writes the first report unless another launcher has written meanwhile.
async fn try_claim(
    actual: &KvBucket,
    key: &str,
    first: &LaunchReport,
    revision: Option<u64>,
) -> Result<bool, BusError> {
    let written = match revision {
        Some(revision) => actual.update(key, first, revision).await,
        None => actual.create(key, first).await,
    };
    match written {
        Ok(_) => Ok(true),
        Err(BusError::Conflict { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns when another launcher has claimed the name, because this one was silent.
pub(crate) async fn lost(actual: &KvBucket, key: &str, instance: &str, heartbeat: Duration) {
    loop {
        tokio::time::sleep(heartbeat).await;
        // An unreachable bus is not a lost claim.
        let Ok(Some((value, _))) = actual.get_own(key).await else { continue };
        let Ok(report) = codec::decode_json::<LaunchReport>(&value) else { continue };
        if is_other(&report.instance, instance) {
            return;
        }
    }
}
