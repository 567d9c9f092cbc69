//! Room in the bucket of jobs: submissions are refused before it is full.
//!
//! The jobs of one user that have not ended may occupy a share of it, so that no user keeps the others out.
//! A share of the bucket is kept free for changes of the stored records, which grow while jobs run.

use std::collections::BTreeMap;
use std::time::Duration;

use wattle_common::subject::Bucket;
use wattle_common::{JobId, Timestamp};
use wattle_runtime::bus::{BusError, Fill, KvBucket};
use wattle_runtime::clock;
use wattle_runtime::shell::chain;

/// Share of the bucket above which the oldest ended jobs are forgotten.
const FORGET_ABOVE: f64 = 0.8;
/// Share of the bucket above which submissions are refused.
const REFUSE_ABOVE: f64 = 0.9;
/// Largest share of the bucket that the specifications of one user's jobs may occupy before they have ended.
const USER_SHARE: f64 = 0.4;
/// Most submissions between two readings of the bucket's size: at 40 kB each they fill 2 % of a bucket
/// of 128 MiB.
const SUBMISSIONS: u32 = 64;
/// Longest time between two readings while jobs are submitted, wall time.
const INTERVAL: Duration = Duration::from_secs(1);
/// Pause between two alarms about a full bucket, wall time.
const ALARM_AGAIN: Duration = Duration::from_secs(60);

/// Whether a span since `at` is over; also after a step of the clock to before `at`.
fn is_over(at: Timestamp, span: Duration, now: Timestamp) -> bool {
    now < at || now.since(at) >= span
}

/// How full the bucket of jobs is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// Submissions are accepted.
    Free,
    /// Submissions are accepted, and the oldest ended jobs are forgotten.
    Scarce,
    /// Submissions are refused, and the oldest ended jobs are forgotten.
    Full,
}

/// The refusal of a submission of `new` bytes whose user has unfinished jobs of `unfinished` bytes, for a bucket of
/// `bytes_max`; `None` if it is within the user's share.
fn refusal_to_user(bytes_max: u64, unfinished: u64, new: u64) -> Option<String> {
    let granted = bytes_max as f64 * USER_SHARE;
    let mib = |bytes: f64| bytes / f64::from(1 << 20);
    ((unfinished + new) as f64 > granted).then(|| {
        format!(
            "your jobs that have not ended occupy {:.1} MiB of the {:.1} MiB that one user may have in the \
             cluster's storage of jobs: submit again after some have ended, or put long commands into scripts",
            mib(unfinished as f64),
            mib(granted)
        )
    })
}

/// Watches the size of the bucket of jobs.
pub(super) struct Storage {
    bucket: KvBucket,
    fill: Fill,
    submissions: u32,
    read_at: Option<Timestamp>,
    alarmed_at: BTreeMap<&'static str, Timestamp>,
}

impl Storage {
    pub(super) const fn new(bucket: KvBucket) -> Self {
        let fill = Fill { share: 0.0, bytes_max: None };
        Self { bucket, fill, submissions: 0, read_at: None, alarmed_at: BTreeMap::new() }
    }

    /// The room for another submission.
    pub(super) async fn room(&mut self) -> Room {
        self.submissions += 1;
        let now = clock::wall_now();
        let is_due = self.read_at.is_none_or(|at| is_over(at, INTERVAL, now));
        if is_due || self.submissions >= SUBMISSIONS {
            // While the bus is away the last reading counts.
            if let Ok(fill) = self.bucket.fill().await {
                self.fill = fill;
            }
            (self.read_at, self.submissions) = (Some(now), 0);
        }
        match self.fill.share {
            share if share >= REFUSE_ABOVE => Room::Full,
            share if share >= FORGET_ABOVE => Room::Scarce,
            _ => Room::Free,
        }
    }

    /// As [`refusal_to_user`], for the bucket's size.
    pub(super) fn refusal_to_user(&self, unfinished: u64, new: u64) -> Option<String> {
        refusal_to_user(self.fill.bytes_max?, unfinished, new)
    }

    /// The refusal of a submission for want of room.
    pub(super) fn refusal(&mut self) -> String {
        let percent = (100.0 * self.fill.share).round();
        let text = format!(
            "submissions are refused: bucket {} is {percent} % full; enlarge it with `nats stream \
             edit`, or lower ended_kept in the placer's configuration",
            Bucket::Jobs.token()
        );
        self.alarm("refused", &text);
        format!(
            "the cluster's storage of jobs is {percent} % full: submit again after jobs have ended, or \
             let the operator enlarge it"
        )
    }

    /// Reports that a job's record was not stored.
    pub(super) fn job_not_stored(&mut self, job: &JobId, error: &BusError) {
        self.not_stored(Bucket::Jobs.token(), &format!("the record of {job}"), error);
        if matches!(error, BusError::Full { .. }) {
            // Until the size is read again.
            (self.fill.share, self.read_at) = (1.0, Some(clock::wall_now()));
        }
    }

    /// Reports that a value was not stored.
    pub(super) fn not_stored(&mut self, bucket: &'static str, what: &str, error: &BusError) {
        self.alarm(bucket, &format!("{what} is not stored: {}", chain(error)));
    }

    /// Raises an alarm, at most one in [`ALARM_AGAIN`] of each kind.
    fn alarm(&mut self, kind: &'static str, text: &str) {
        let now = clock::wall_now();
        if self.alarmed_at.get(kind).is_none_or(|at| is_over(*at, ALARM_AGAIN, now)) {
            self.alarmed_at.insert(kind, now);
            tracing::error!("{text}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_may_fill_a_share_of_the_bucket() {
        let refused = |unfinished, new| refusal_to_user(100 << 20, unfinished, new);
        assert_eq!(refused(0, 30_000), None);
        assert_eq!(refused((40 << 20) - 30_000, 30_000), None);
        let error = refused((40 << 20) - 29_999, 30_000).unwrap();
        assert!(
            error.contains("occupy 40.0 MiB of the 40.0 MiB that one user may have"),
            "{error}"
        );
        const { assert!(USER_SHARE < FORGET_ABOVE, "others have room before ended jobs are forgotten") };
    }
}
