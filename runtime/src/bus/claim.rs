//! The claim on a node's name by a launcher's report: of two launchers with one name, the second stands aside.
//!
//! The launcher's report in the bucket `actual` is the claim. It names the launcher's process and, as a
//! hash, its machine and state folder. A launcher with the same state folder continues at once: the
//! folder's lock shows that the earlier one has ended. Another one waits until the reports have
//! stopped and the last one lists no running job, because it would start these jobs a second time.

use std::path::Path;
use std::time::Duration;

use tokio::sync::watch;
use wattle_common::hash::fnv1a;
use wattle_common::id::NodeId;
use wattle_common::messages::{LaunchReport, LaunchState, LaunchedJob};
use wattle_common::subject::{Bucket, Reporter};
use wattle_common::{Timestamp, codec};

use super::{Bus, BusError, KvBucket};
use crate::{clock, instance};

/// Heartbeats without a report after which the other launcher has ended.
const SILENT_HEARTBEATS: u32 = 3;
/// Pause between two looks at the claim: wall time.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// This process and the hash of its state folder, for reports.
#[must_use]
pub fn claimant(state: u64) -> String {
    format!("{}, state {state:016x}", instance::name())
}

/// [`claimant`] of a process whose state folder is on this machine.
#[must_use]
pub fn claimant_of(state_dir: &Path) -> String {
    let machine = instance::machine();
    let folder = std::fs::canonicalize(state_dir).unwrap_or_else(|_| state_dir.to_owned());
    claimant(fnv1a(format!("{machine} {}", folder.display()).as_bytes()))
}

/// The hash of the state folder in an instance's name.
fn state_of(instance: &str) -> Option<&str> {
    instance.rsplit_once(", state ").map(|(_, hash)| hash)
}

/// Whether a stored report is that of a launcher with another state folder.
fn is_other(stored: &str, own: &str) -> bool {
    !stored.is_empty() && state_of(stored) != state_of(own)
}

/// Whether a stored report is that of another launcher than the one whose first report, with all stored
/// runs, is `first`. Earlier versions did not name the state folder; their running jobs are those of this
/// folder, or another launcher's.
fn is_of_other(stored: &LaunchReport, first: &LaunchReport) -> bool {
    if state_of(&stored.instance).is_some() {
        return is_other(&stored.instance, &first.instance);
    }
    let is_ours = |job: &LaunchedJob| {
        first.jobs.iter().any(|own| own.job == job.job && own.attempt == job.attempt)
    };
    !stored.instance.is_empty() && !stored.jobs.iter().filter(|job| is_live(job)).all(is_ours)
}

fn is_live(job: &LaunchedJob) -> bool {
    matches!(job.state, LaunchState::Running | LaunchState::Stopping)
}

/// How long another launcher has not reported.
struct Silence {
    /// The revision of its newest report.
    seen: u64,
    /// When this revision was seen first.
    since: Timestamp,
}

impl Silence {
    /// Whether the other launcher, whose newest report has this revision and lists this many running jobs, has
    /// ended: its reports have stopped, and no job of it would start a second time.
    fn has_ended(
        &mut self,
        now: Timestamp,
        revision: u64,
        live: usize,
        heartbeat: Duration,
    ) -> bool {
        if revision != self.seen {
            *self = Self { seen: revision, since: now };
        }
        live == 0 && now.since(self.since) >= heartbeat * SILENT_HEARTBEATS
    }
}

/// A launcher that competes for the name of its node.
pub(crate) struct Claim {
    actual: KvBucket,
    key: String,
    /// Interval of the reports.
    heartbeat: Duration,
    newest: watch::Receiver<Option<LaunchReport>>,
}

/// A claim that holds until another launcher replaces it.
pub(crate) struct Claimed<'a> {
    claim: &'a Claim,
    /// This process.
    instance: String,
}

impl Claim {
    /// A launcher of `node` with its `newest` report. Waits for the server.
    pub(crate) async fn new(
        bus: &Bus,
        node: &NodeId,
        heartbeat: Duration,
        newest: watch::Receiver<Option<LaunchReport>>,
    ) -> Result<Self, BusError> {
        let actual = bus.bucket(Bucket::Actual).await?;
        Ok(Self { actual, key: Reporter::Launcher.key(node), heartbeat, newest })
    }

    /// Waits until the node's name is free for this launcher, and claims it with its first report. Logs the
    /// other launcher with `on_standby` once.
    pub(crate) async fn acquire(&self, on_standby: &str) -> Result<Claimed<'_>, BusError> {
        let mut newest = self.newest.clone();
        let first = match newest.wait_for(Option::is_some).await {
            Ok(first) => first.clone(),
            Err(_) => None,
        };
        // Without a report the launcher has ended.
        let Some(first) = first else { return std::future::pending().await };
        let claimed = || Ok(Claimed { claim: self, instance: first.instance.clone() });
        let (mut silence, mut logged) = (Silence { seen: 0, since: clock::now() }, false);
        loop {
            let stored = self.actual.get_own(&self.key).await?;
            let report = stored.as_ref().and_then(|(value, revision)| {
                let report = codec::decode_json::<LaunchReport>(value).ok()?;
                is_of_other(&report, &first).then_some((report, *revision))
            });
            let Some((report, revision)) = report else {
                if self.try_claim(&first, stored.map(|(_, revision)| revision)).await? {
                    return claimed();
                }
                continue;
            };
            let live = report.jobs.iter().filter(|job| is_live(job)).count();
            if silence.has_ended(clock::now(), revision, live, self.heartbeat) {
                if self.try_claim(&first, Some(revision)).await? {
                    return claimed();
                }
                continue;
            }
            if !std::mem::replace(&mut logged, true) {
                tracing::error!(
                    other = report.instance,
                    running_jobs = live,
                    "{on_standby}. If the other one no longer exists and its jobs have ended, delete the key \
                     `{}` of the bucket `actual`",
                    self.key
                );
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Writes the first report unless another launcher has written meanwhile.
    async fn try_claim(
        &self,
        first: &LaunchReport,
        revision: Option<u64>,
    ) -> Result<bool, BusError> {
        let written = match revision {
            Some(revision) => self.actual.update(&self.key, first, revision).await,
            None => self.actual.create(&self.key, first).await,
        };
        match written {
            Ok(_) => Ok(true),
            Err(BusError::Conflict { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Claimed<'_> {
    /// Returns when another launcher has claimed the name, because this one was silent.
    pub(crate) async fn lost(&self) {
        let Claim { actual, key, heartbeat, .. } = self.claim;
        loop {
            clock::sleep(*heartbeat).await;
            // An unreachable bus is not a lost claim.
            let Ok(Some((value, _))) = actual.get_own(key).await else { continue };
            let Ok(report) = codec::decode_json::<LaunchReport>(&value) else { continue };
            if is_other(&report.instance, &self.instance) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wattle_common::NodeId;

    fn report(instance: &str, jobs: &[&str]) -> LaunchReport {
        let run = |job: &&str| LaunchedJob {
            job: job.parse().unwrap(),
            admission: None,
            attempt: 1,
            gpus: vec![0],
            state: LaunchState::Running,
            processes: None,
            since_us: Timestamp::EPOCH,
            log_path: String::new(),
        };
        LaunchReport {
            node: NodeId::new("n0").unwrap(),
            instance: instance.to_owned(),
            at_us: Timestamp::EPOCH,
            observed_generation: 1,
            jobs: jobs.iter().map(run).collect(),
            has_ended: false,
            fault: None,
            site: None,
        }
    }

    #[test]
    fn a_name_is_free_three_heartbeats_after_the_last_report_without_a_running_job() {
        let heartbeat = Duration::from_secs(10);
        let at = Timestamp::from_s;
        let mut silence = Silence { seen: 0, since: at(0) };
        let mut looks = |until: u64, revision: u64, live: usize| {
            let first = silence.since.as_us() / 1_000_000;
            (first..until).find(|s| silence.has_ended(at(*s), revision, live, heartbeat))
        };
        assert_eq!(looks(100, 0, 1), None, "as long as the last report lists a job");
        assert_eq!(looks(100, 0, 0), Some(30));
        // It reports again.
        assert!(!silence.has_ended(at(100), 1, 0, heartbeat));
        assert!(!silence.has_ended(at(129), 1, 0, heartbeat));
        assert!(silence.has_ended(at(130), 1, 0, heartbeat));
        assert!(!silence.has_ended(at(140), 2, 0, heartbeat), "it has returned");
    }

    #[test]
    fn a_launcher_of_an_earlier_version_is_recognised_by_its_jobs() {
        let own = report("host, process 2, state a", &["x", "y"]);
        for (stored, other) in [
            (report("", &["z"]), false),
            (report("host, process 1, state a", &["z"]), false),
            (report("host, process 1, state b", &[]), true),
            (report("host, process 1", &["x"]), false),
            (report("host, process 1", &["x", "z"]), true),
        ] {
            assert_eq!(is_of_other(&stored, &own), other, "{stored:?}");
        }
    }
}
