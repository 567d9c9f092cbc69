//! The expected times of the live cluster's jobs: what the records have of them, and what is stored of their errors. What
//! the jobs would use at other settings.
//!
//! The record of a job has its last expected times. A record is stored for them only where they differ significantly
//! from the stored ones, and for at most [`STORED_MAX`] jobs after one forecast, those that were stored the longest ago.
//! Replies of the placer have the last ones of every job.

use std::time::Duration;

use wattle_common::Timestamp;
use wattle_common::messages::{ExpectedInstant, ExpectedTimes, WhatIf};

use crate::expected::{Errors, ForecastErrors};
use crate::live::job_records::JobRecords;
use crate::live::{Action, LiveController};
use crate::pipeline::StageReports;

/// Time between two stored values of the errors, and of what the jobs would use at other settings.
const STORED_EVERY: Duration = Duration::from_mins(5);
/// Time after which jobs without predictions are looked at again.
const WHAT_IF_SOON: Duration = Duration::from_secs(30);
/// Most records that are stored after one forecast: with one each ten seconds twenty a second.
pub(super) const STORED_MAX: usize = 200;
/// A change of an instant by this share of its time ahead is significant, but not below [`CHANGE_LEAST`].
const CHANGE_SHARE: u32 = 10;
const CHANGE_LEAST: Duration = Duration::from_mins(1);

/// Whether new times differ significantly from stored ones.
pub(super) fn differ(stored: Option<&ExpectedTimes>, new: &ExpectedTimes) -> bool {
    let Some(stored) = stored else { return true };
    let moved = |a: Option<ExpectedInstant>, b: Option<ExpectedInstant>| match (a, b) {
        (Some(a), Some(b)) => {
            let ahead = b.at_us.since(new.at_us);
            let most = CHANGE_LEAST.max(ahead / CHANGE_SHARE);
            b.at_us.since(a.at_us).max(a.at_us.since(b.at_us)) > most
        }
        (a, b) => a.is_some() != b.is_some(),
    };
    stored.unknown != new.unknown || moved(stored.start, new.start) || moved(stored.end, new.end)
}

/// The errors of forecasts in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ExpectedMeasures {
    /// Of starts.
    pub start: ErrorMeasures,
    /// Of ends.
    pub end: ErrorMeasures,
    /// Number of queued jobs with an expected start.
    pub with_start: usize,
    /// Number of queued jobs without one.
    pub without_start: usize,
}

/// The errors of the forecasts of starts or ends.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ErrorMeasures {
    /// Number of forecasts whose instant is known.
    pub forecasts: u64,
    /// Median absolute error, s.
    pub error_s: Option<f64>,
    /// The share of forecasts whose 90 % interval held the instant.
    pub coverage: Option<f64>,
}

impl ErrorMeasures {
    fn of(errors: &ForecastErrors, of_end: bool) -> Self {
        let all: Errors = errors.of_all(of_end);
        Self { forecasts: all.forecasts(), error_s: all.error_s(0.5), coverage: all.coverage() }
    }
}

impl ExpectedMeasures {
    pub(super) fn of(controller: &LiveController) -> Option<Self> {
        let expected = controller.expected()?;
        let (without_start, with_start) = expected.queued(controller.state());
        Some(Self {
            start: ErrorMeasures::of(expected.errors(), false),
            end: ErrorMeasures::of(expected.errors(), true),
            with_start,
            without_start,
        })
    }
}

/// When the errors are stored, and what the jobs would use at other settings.
pub(super) struct ExpectedStore {
    stored_at: Timestamp,
    /// When the latter is computed again.
    what_if_at: Timestamp,
    what_if: Option<Box<WhatIf>>,
}

impl ExpectedStore {
    pub(super) const fn new(now: Timestamp) -> Self {
        Self { stored_at: now, what_if_at: now, what_if: None }
    }

    /// A round with these reports has been applied. Jobs that have just arrived have no predictions yet, so the first
    /// value of a cluster follows soon.
    pub(super) fn compute_what_if(
        &mut self,
        now: Timestamp,
        controller: &LiveController,
        reports: &StageReports,
    ) {
        if now < self.what_if_at {
            return;
        }
        self.what_if = controller.what_if(reports).map(Box::new);
        let is_known = self.what_if.is_some();
        self.what_if_at = now + if is_known { STORED_EVERY } else { WHAT_IF_SOON };
    }

    /// Stores the errors, where it is due.
    pub(super) fn store(
        &mut self,
        now: Timestamp,
        controller: &LiveController,
        out: &mut Vec<Action>,
    ) {
        out.extend(self.what_if.take().map(Action::StoreWhatIf));
        let expected = controller.expected().filter(|expected| expected.made() > 0);
        let is_due = now.since(self.stored_at) >= STORED_EVERY;
        let Some(expected) = expected.filter(|_| is_due) else { return };
        self.stored_at = now;
        out.push(Action::StoreExpected(Box::new(expected.status(now))));
    }
}

/// The records follow a new forecast.
pub(super) fn note(controller: &LiveController, jobs: &mut JobRecords) {
    let Some(expected) = controller.expected() else { return };
    jobs.expected(|key| expected.times(key));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(start_s: u64) -> ExpectedTimes {
        let at_us = Timestamp::from_s(start_s);
        let start = ExpectedInstant { at_us, from_us: at_us, until_us: at_us, forecasts: 0 };
        ExpectedTimes { at_us: Timestamp::EPOCH, start: Some(start), end: None, unknown: None }
    }

    #[test]
    fn a_tenth_of_the_time_ahead_is_significant() {
        assert!(differ(None, &times(100)));
        assert!(!differ(Some(&times(100)), &times(160)) && differ(Some(&times(100)), &times(161)));
        assert!(!differ(Some(&times(9_000)), &times(10_000)));
        assert!(differ(Some(&times(8_900)), &times(10_000)));
        let unknown = ExpectedTimes { start: None, ..times(0) };
        assert!(differ(Some(&times(100)), &unknown) && !differ(Some(&unknown), &unknown));
    }
}
