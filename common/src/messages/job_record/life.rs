//! The life of a job at an instant, derived from its record: its run time and waits, its progress, and whether it
//! meets its deadline. Every view of a job has these quantities from here.

use std::time::Duration;

use crate::job::JobPhase;
use crate::messages::JobRecord;
use crate::time::{Timestamp, scaled};

/// Share of the time from submission to deadline by which a predicted end may exceed the deadline: predictions
/// vary.
const PREDICTED_TOLERANCE: f64 = 0.01;

/// How late a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Late {
    /// By prediction it ends this long after its deadline.
    Predicted(Duration),
    /// Its deadline passed this long ago, or this long before its end.
    Passed(Duration),
}

impl JobRecord {
    /// Enters a phase. The time in the phase before is run time if the job held GPUs in it.
    pub fn enter(&mut self, phase: JobPhase, now: Timestamp) {
        if self.phase.has_gpus() {
            let here = u64::try_from(now.since(self.phase_since_us).as_millis());
            let before = self.run_time_ms.unwrap_or(0);
            self.run_time_ms = Some(before.saturating_add(here.unwrap_or(u64::MAX)));
        }
        (self.phase, self.phase_since_us) = (phase, now);
    }

    /// Time with GPUs, summed over its starts; `None`: it has not held any.
    #[must_use]
    pub fn ran(&self, now: Timestamp) -> Option<Duration> {
        let before = self.run_time_ms.map(Duration::from_millis);
        if !self.phase.has_gpus() {
            return before;
        }
        Some(before.unwrap_or_default() + now.since(self.phase_since_us))
    }

    /// Time without GPUs from its submission to its end, summed over its waits; `None`: not known, because its
    /// record has no run time.
    #[must_use]
    pub fn waited(&self, now: Timestamp) -> Option<Duration> {
        let life = self.ended_at_us.unwrap_or(now).since(self.spec.submitted_at_us);
        match self.ran(now) {
            Some(ran) => Some(life.saturating_sub(ran)),
            None => (self.attempt == 0).then_some(life),
        }
    }

    /// Completed steps, continued from the last report at its rate while the job runs.
    #[must_use]
    pub fn steps(&self, now: Timestamp) -> Option<f64> {
        let step = self.step? as f64;
        let (Some(at), Some(rate)) = (self.step_at_us, self.steps_per_s) else { return Some(step) };
        let since = if self.phase == JobPhase::Running { now.since(at).as_secs_f64() } else { 0.0 };
        let steps = step + since * rate;
        Some(self.steps_total.map_or(steps, |total| steps.min(total as f64)))
    }

    /// The completed share of its work, 0 to 1.
    #[must_use]
    pub fn done(&self, now: Timestamp) -> Option<f64> {
        let total = self.steps_total.filter(|total| *total > 0)?;
        // The last progress report may arrive after the end of the job.
        if self.phase == JobPhase::Finished {
            return Some(1.0);
        }
        Some(self.steps(now)? / total as f64)
    }

    /// The remaining run time, without waiting: the remaining steps at the measured rate, else at the predicted
    /// rate of the placement; without steps, the owner's estimate less the run time.
    #[must_use]
    pub fn rest(&self, now: Timestamp) -> Option<Duration> {
        if self.phase.is_final() {
            return None;
        }
        if let Some(total) = self.steps_total {
            let predicted = self.prediction_placed.as_ref().and_then(|p| p.placed.as_ref());
            let predicted = predicted.and_then(|point| point.steps_per_s).map(|rate| rate.mean);
            let rate = self.steps_per_s.or(predicted).filter(|rate| *rate > 0.0)?;
            let left = total as f64 - self.steps(now).unwrap_or(0.0);
            return Duration::try_from_secs_f64((left / rate).max(0.0)).ok();
        }
        let estimate = Duration::from_millis(self.spec.duration_ms_estimate?);
        Some(estimate.saturating_sub(self.ran(now).unwrap_or_default()))
    }

    /// How late it is; `None`: it has no deadline, meets it by prediction, or nothing is known of its rest. A job
    /// that failed or was cancelled is not late.
    #[must_use]
    pub fn late(&self, now: Timestamp) -> Option<Late> {
        let deadline = self.spec.deadline_at_us?;
        let until = match self.phase {
            JobPhase::Failed | JobPhase::Cancelled => return None,
            JobPhase::Finished => self.ended_at_us?,
            _ => now,
        };
        if until > deadline {
            return Some(Late::Passed(until.since(deadline)));
        }
        let by = (now + self.rest(now)?).since(deadline);
        let allowed = deadline.since(self.spec.submitted_at_us);
        (by > scaled(allowed, PREDICTED_TOLERANCE)).then_some(Late::Predicted(by))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobOptions;
    use crate::job::options::tests::options;

    const HOUR: u64 = 3_600;

    fn at(s: u64) -> Timestamp {
        Timestamp::from_s(s)
    }

    /// Submitted at 0 with a deadline after ten minutes.
    fn record() -> JobRecord {
        let deadline = Some(Duration::from_secs(600));
        let options = JobOptions { deadline, ..options(&["a"]) };
        JobRecord::queued(options.spec(None, 1, at(0)).unwrap(), at(0))
    }

    #[test]
    fn run_time_is_the_time_in_phases_with_gpus() {
        let mut record = record();
        let mut enter = |phase, s, ran_s: Option<u64>, waited_s| {
            record.enter(phase, at(s));
            let ran = record.ran(at(s)).map(|ran| ran.as_secs());
            let waited = record.waited(at(s)).map(|waited| waited.as_secs());
            assert_eq!((ran, waited), (ran_s, Some(waited_s)), "{phase} at {s} s");
        };
        enter(JobPhase::Starting, 100, Some(0), 100);
        enter(JobPhase::Running, 110, Some(10), 100);
        enter(JobPhase::Stopping, 200, Some(100), 100);
        enter(JobPhase::Queued, 205, Some(105), 100);
        enter(JobPhase::Starting, 1_000, Some(105), 895);
        enter(JobPhase::Failed, 1_010, Some(115), 895);
    }

    #[test]
    fn a_job_that_never_started_has_no_run_time() {
        let mut record = record();
        assert_eq!((record.ran(at(50)), record.waited(at(50))), (None, Some(at(50).since(at(0)))));
        record.enter(JobPhase::Cancelled, at(60));
        record.ended_at_us = Some(at(60));
        assert_eq!((record.ran(at(90)), record.waited(at(90))), (None, Some(at(60).since(at(0)))));
        // A record of a version that kept no run time of ended jobs.
        record.attempt = 1;
        assert_eq!((record.ran(at(90)), record.waited(at(90))), (None, None));
    }

    #[test]
    fn lateness_is_passed_or_predicted() {
        let hours = |h: u64| Duration::from_secs(h * HOUR);
        let mut record = record();
        assert_eq!(record.late(at(0)), None, "nothing is known of its work");
        record.spec.duration_ms_estimate = Some(2 * HOUR * 1_000);
        let by = hours(2).saturating_sub(Duration::from_secs(600));
        assert_eq!(
            record.late(at(0)),
            Some(Late::Predicted(by)),
            "impossible when it is submitted"
        );
        record.spec.duration_ms_estimate = Some(300_000);
        assert_eq!(
            (record.late(at(0)), record.late(at(305))),
            (None, None),
            "within the tolerance"
        );
        assert_eq!(record.late(at(400)), Some(Late::Predicted(Duration::from_secs(100))));
        assert_eq!(record.late(at(600 + 6 * HOUR)), Some(Late::Passed(hours(6))));
        record.enter(JobPhase::Finished, at(600 + HOUR));
        record.ended_at_us = Some(at(600 + HOUR));
        assert_eq!(
            record.late(at(9 * HOUR)),
            Some(Late::Passed(hours(1))),
            "it ended an hour late"
        );
        record.ended_at_us = Some(at(600));
        assert_eq!(record.late(at(9 * HOUR)), None, "in time");
        record.phase = JobPhase::Cancelled;
        record.ended_at_us = Some(at(700));
        assert_eq!(record.late(at(9 * HOUR)), None);
    }
}
