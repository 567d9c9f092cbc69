//! When a job is expected to start and to end, in words.

use wattle_common::Timestamp;
use wattle_common::messages::{ExpectedInstant, ExpectedTimes, JobRecord, NotExpected};

/// The expected times of a job that has not ended.
fn times(record: &JobRecord) -> Option<&ExpectedTimes> {
    record.expected.as_deref().filter(|_| !record.phase.is_final())
}

/// The expected start of a job that waits; `None`: it holds GPUs or has ended, or the start is not known.
#[must_use]
pub fn start(record: &JobRecord) -> Option<ExpectedInstant> {
    times(record)?.start.filter(|_| !record.phase.has_gpus())
}

/// The expected end of a job that has not ended; `None`: not known.
#[must_use]
pub fn end(record: &JobRecord) -> Option<ExpectedInstant> {
    times(record)?.end
}

/// Why the start of a job that waits, or the end of one with GPUs, is not known.
#[must_use]
pub fn unknown(record: &JobRecord) -> Option<NotExpected> {
    let times = times(record)?;
    let next = if record.phase.has_gpus() { times.end } else { times.start };
    times.unknown.filter(|_| next.is_none())
}

/// The next of the two instants in a table cell: `start 14:32`, `end 16:10`; or why it is not known. `time` formats an
/// instant.
pub fn next(record: &JobRecord, time: impl Fn(Timestamp) -> String) -> Option<String> {
    if let Some(start) = start(record) {
        return Some(format!("start {}", time(start.at_us)));
    }
    if let Some(unknown) = unknown(record) {
        return Some(unknown.to_string());
    }
    let end = end(record).filter(|_| record.phase.has_gpus())?;
    Some(format!("end {}", time(end.at_us)))
}

/// An instant with its 90 % interval: `14:32, between 14:10 and 15:40`. `time` formats an instant.
pub fn between(expected: &ExpectedInstant, time: impl Fn(Timestamp) -> String) -> String {
    let ExpectedInstant { at_us, from_us, until_us, .. } = expected;
    format!("{}, between {} and {}", time(*at_us), time(*from_us), time(*until_us))
}

/// What the interval follows from.
#[must_use]
pub fn basis(expected: &ExpectedInstant) -> String {
    match expected.forecasts {
        0 => "from simulations: too few jobs have started and ended here yet".to_owned(),
        forecasts => format!("from {forecasts} earlier forecasts of this cluster"),
    }
}

#[cfg(test)]
mod tests {
    use wattle_common::job::JobPhase;
    use wattle_testkit::{job_record, job_spec};

    use super::*;

    fn instant(s: u64) -> ExpectedInstant {
        let at = |s: u64| Timestamp::from_s(s);
        ExpectedInstant { at_us: at(s), from_us: at(s - 10), until_us: at(s + 50), forecasts: 132 }
    }

    fn record(phase: JobPhase, start: bool, end: bool, unknown: Option<NotExpected>) -> JobRecord {
        let times = ExpectedTimes {
            at_us: Timestamp::from_s(1),
            start: start.then(|| instant(100)),
            end: end.then(|| instant(200)),
            unknown,
        };
        JobRecord { expected: Some(Box::new(times)), ..job_record(job_spec("a", 1), phase) }
    }

    fn cell(record: &JobRecord) -> Option<String> {
        next(record, |at| format!("{:.0}", at.as_s()))
    }

    #[test]
    fn a_queued_job_shows_its_start_and_a_running_one_its_end() {
        let of = |phase| cell(&record(phase, true, true, None));
        assert_eq!(of(JobPhase::Queued).as_deref(), Some("start 100"));
        assert_eq!(of(JobPhase::Running).as_deref(), Some("end 200"), "it has just started");
        assert_eq!(of(JobPhase::Finished), None);
        assert_eq!(cell(&job_record(job_spec("a", 1), JobPhase::Queued)), None, "not known yet");
    }

    #[test]
    fn a_job_without_a_forecast_shows_why() {
        let why = Some(NotExpected::TooFewGpus);
        let waits = record(JobPhase::Queued, false, false, why);
        assert_eq!(cell(&waits).as_deref(), Some("more GPUs than are healthy"));
        let why = Some(NotExpected::RunTime);
        let runs = record(JobPhase::Running, false, false, why);
        assert_eq!(cell(&runs).as_deref(), Some("run time not predicted"));
        let starts = record(JobPhase::Queued, true, false, why);
        assert_eq!(cell(&starts).as_deref(), Some("start 100"));
        assert_eq!(unknown(&starts), None, "its start is known");
    }

    #[test]
    fn the_interval_states_its_basis() {
        let text = between(&instant(100), |at| format!("{:.0}", at.as_s()));
        assert_eq!(text, "100, between 90 and 150");
        assert_eq!(basis(&instant(100)), "from 132 earlier forecasts of this cluster");
        let prior = ExpectedInstant { forecasts: 0, ..instant(100) };
        assert!(basis(&prior).starts_with("from simulations"));
    }
}
