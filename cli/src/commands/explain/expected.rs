//! When a job is expected to start and to end, for `wattle explain`.

use wattle_common::Timestamp;
use wattle_common::messages::{ExpectedInstant, JobRecord};
use wattle_view::expected;

use crate::date;

/// The expected start and end, each with its 90 % interval and the basis of that, or why one is not known.
pub(super) fn lines(record: &JobRecord, now: Timestamp) -> Vec<String> {
    let time = |at| date::near(at, now);
    let of = |event: &str, instant: Option<ExpectedInstant>| {
        let between = instant.map(|instant| expected::between(&instant, time));
        between.map(|between| format!("expected {event} (UTC): {between}"))
    };
    let (start, end) = (expected::start(record), expected::end(record));
    let mut lines: Vec<String> = of("start", start).into_iter().chain(of("end", end)).collect();
    lines.extend(
        start.or(end).map(|instant| format!("interval of 90 %, {}", expected::basis(&instant))),
    );
    let event = if record.phase.has_gpus() { "end" } else { "start" };
    let unknown = expected::unknown(record);
    lines.extend(unknown.map(|why| format!("expected {event}: not known ({why})")));
    lines
}

#[cfg(test)]
mod tests {
    use wattle_common::job::JobPhase;
    use wattle_common::messages::{ExpectedTimes, NotExpected};
    use wattle_testkit::{job_record, job_spec};

    use super::*;

    fn at(s: u64) -> Timestamp {
        Timestamp::from_s(s)
    }

    fn stated(start: Option<ExpectedInstant>, unknown: Option<NotExpected>) -> Vec<String> {
        let end = unknown.is_none().then(|| instant(9_000, 0));
        let times = ExpectedTimes { at_us: at(600), start, end, unknown };
        let record = job_record(job_spec("a", 1), JobPhase::Queued);
        lines(&JobRecord { expected: Some(Box::new(times)), ..record }, at(600))
    }

    fn instant(s: u64, forecasts: u64) -> ExpectedInstant {
        ExpectedInstant { at_us: at(s), from_us: at(s - 300), until_us: at(s + 86_400), forecasts }
    }

    #[test]
    fn expected_times_have_their_intervals_and_basis() {
        let text = stated(Some(instant(3_600, 132)), None);
        let expected = [
            "expected start (UTC): 01:00, between 00:55 and 01-02 01:00",
            "expected end (UTC): 02:30, between 02:25 and 01-02 02:30",
            "interval of 90 %, from 132 earlier forecasts of this cluster",
        ];
        assert_eq!(text, expected);
        assert!(text.iter().all(|line| line.len() <= 80), "{text:?}");
    }

    #[test]
    fn an_unknown_start_has_its_cause() {
        let text = stated(None, Some(NotExpected::Budget));
        assert_eq!(text, ["expected start: not known (waits for the budget)"]);
    }
}
