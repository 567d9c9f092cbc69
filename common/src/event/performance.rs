//! What each job loses over a grid event, beside its promise.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::id::{EventId, JobId};
use crate::job::Flexibility;
use crate::time::Timestamp;

/// Most jobs of all events whose performance is kept.
pub const PERFORMANCES_MAX: usize = 4_000;

/// A loss above the promised one by at most this is an error of prediction, and the promise counts as kept; a share of
/// the throughput.
pub const LOSS_ERROR: f64 = 0.002;
/// The loss of a job is stored each minute; one that was not counted for this long has left.
const COUNTED_WITHIN: Duration = Duration::from_secs(180);

/// What becomes of the promise of a job over an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PromiseOutcome {
    /// It has none.
    None,
    /// It lost no more than promised, or will not by its present speed.
    Kept,
    /// It loses more than promised by its present speed, and the default setting from now on would keep the promise.
    AtRisk,
    /// A mandatory event took more than the promise.
    BrokenForTarget,
    /// It lost more than promised.
    Exceeded,
}

impl PromiseOutcome {
    /// In words.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Kept => "kept",
            Self::AtRisk => "at risk",
            Self::BrokenForTarget => "broken for the target",
            Self::Exceeded => "exceeded",
        }
    }
}

/// The performance of a job over an event with its ramps: its steps per second over those predicted at the default
/// setting on the GPUs that it had when the event began for it. While it is paused its performance is 0.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobPerformance {
    /// Its promise; absent: it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promise: Option<Flexibility>,
    /// The number of its GPUs when the event began for it.
    pub gpus: u32,
    /// When the event began for it: its start, or the job's first run within it.
    pub from_us: Timestamp,
    /// Until when its performance is counted.
    pub until_us: Timestamp,
    /// What it has lost, seconds of its speed at the default setting.
    pub lost_s: f64,
    /// What it is expected to lose on average until the end of the event, or of the job; a share.
    pub expected: f64,
    /// The target of a mandatory event has taken more than its promise.
    #[serde(default, skip_serializing_if = "is_false")]
    pub broken: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_false(value: &bool) -> bool {
    !*value
}

impl JobPerformance {
    /// The mean loss so far, a share; negative where it was faster than at the default setting.
    #[must_use]
    pub fn loss(&self) -> f64 {
        let counted_s = self.until_us.since(self.from_us).as_secs_f64();
        if counted_s > 0.0 { self.lost_s / counted_s } else { 0.0 }
    }

    /// What becomes of its promise in an event that ends then.
    #[must_use]
    pub fn outcome(&self, now: Timestamp, end: Timestamp) -> PromiseOutcome {
        let Some(promise) = self.promise else { return PromiseOutcome::None };
        let is_within = |loss: f64| loss <= promise.loss() + LOSS_ERROR;
        let is_over = now >= end || now.since(self.until_us) > COUNTED_WITHIN;
        // Without any further loss.
        let least = self.lost_s / end.since(self.from_us).as_secs_f64().max(1.0);
        match if is_over { self.loss() } else { self.expected } {
            loss if is_within(loss) => PromiseOutcome::Kept,
            _ if self.broken => PromiseOutcome::BrokenForTarget,
            _ if is_over || !is_within(least) => PromiseOutcome::Exceeded,
            _ => PromiseOutcome::AtRisk,
        }
    }

    /// Counts the time until an instant at a speed relative to that at the default setting.
    pub fn count(&mut self, until: Timestamp, speed: f64) {
        self.lost_s += (1.0 - speed) * until.since(self.until_us).as_secs_f64();
        self.until_us = self.until_us.max(until);
    }
}

/// The performance of jobs over the known events.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EventPerformances {
    /// By event and job.
    pub events: BTreeMap<EventId, BTreeMap<JobId, JobPerformance>>,
}

impl EventPerformances {
    /// Keeps those of these events, at most [`PERFORMANCES_MAX`] jobs: of `in_order`, the last ones.
    pub fn retain<'a>(&mut self, in_order: impl DoubleEndedIterator<Item = &'a EventId>) {
        let (mut jobs, mut kept) = (0, BTreeSet::new());
        for event in in_order.rev() {
            let Some(of) = self.events.get(event) else { continue };
            jobs += of.len();
            if jobs > PERFORMANCES_MAX {
                break;
            }
            kept.insert(event.clone());
        }
        self.events.retain(|event, _| kept.contains(event));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_the_mean_over_the_counted_time() {
        let at = Timestamp::from_s;
        let mut job = JobPerformance {
            promise: None,
            gpus: 8,
            from_us: at(100),
            until_us: at(100),
            lost_s: 0.0,
            expected: 0.0,
            broken: false,
        };
        assert!(job.loss().abs() < 1e-12);
        job.count(at(200), 1.0);
        job.count(at(300), 0.5);
        job.count(at(300), 0.0);
        job.count(at(400), 0.0);
        assert!((job.loss() - 0.5).abs() < 1e-12, "{job:?}");
    }

    #[test]
    fn the_last_events_are_kept() {
        let ids = ["a", "b", "c"].map(|name| EventId::new(name).unwrap());
        let mut all = EventPerformances::default();
        let one: JobPerformance = serde_json::from_str(
            r#"{"gpus": 1, "from_us": 0, "until_us": 0, "lost_s": 0, "expected": 0}"#,
        )
        .unwrap();
        for (event, jobs) in ids.iter().zip([1, PERFORMANCES_MAX - 1, 1]) {
            let jobs = (0..jobs).map(|n| (JobId::new(&format!("j{n}")).unwrap(), one));
            all.events.insert(event.clone(), jobs.collect());
        }
        all.retain(ids.iter());
        assert_eq!(all.events.keys().collect::<Vec<_>>(), [&ids[1], &ids[2]]);
        all.retain(ids[..2].iter());
        assert_eq!(all.events.keys().collect::<Vec<_>>(), [&ids[1]]);
    }
}
