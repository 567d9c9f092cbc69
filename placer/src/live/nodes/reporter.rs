//! One reporter of a node: the order of its reports, a second one of the same name, and its clock.
//!
//! Reports are compared only with earlier ones of the same instance, whose time increases. So a
//! restart after a clock was set is recognised as a new instance, and its reports count at once.

use std::collections::VecDeque;
use std::time::Duration;

use wattle_common::Timestamp;
use wattle_common::bounds::CLOCK_TOLERANCE;

/// Reports that the clock difference is estimated from: 40 s of a launcher's default heartbeats.
const REPORTS: usize = 8;
/// Fewest reports for an estimate.
const REPORTS_MIN: usize = 3;

/// The launcher or the power agent of a node, as its reports show it.
#[derive(Debug, Default)]
pub(super) struct Reporter {
    /// The instance and the time of its last report.
    current: Option<(String, Timestamp)>,
    /// The instance before it.
    replaced: Option<(String, Timestamp)>,
    /// Reports of the instance before, received since and not made after the last one of the current
    /// instance.
    delayed: u32,
    /// The reports' time minus the time of receipt, microseconds.
    differences_us: VecDeque<i128>,
}

/// Reports of a replaced instance that may arrive late: those that a paused or slow server had not stored when
/// the instance ended. More show that it still runs.
const DELAYED_MAX: u32 = 2;

/// Whether a report follows the last one of its instance. After a last one dated further ahead than
/// synchronised clocks differ, the order of arrival counts.
fn is_newer(at: Timestamp, last: Timestamp, now: Timestamp) -> bool {
    last < at || (last > now + CLOCK_TOLERANCE && at != last)
}

/// How a report relates to those that arrived before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// The newest of its reporter.
    New,
    /// One that was received before, or an older one.
    Old,
    /// One of an instance that another has replaced: both run.
    Second {
        /// The other instance.
        other: String,
    },
}

impl Reporter {
    /// A report of `instance`, made at `at` by its clock and received at `now`.
    pub(super) fn reported(&mut self, instance: &str, at: Timestamp, now: Timestamp) -> Arrival {
        let arrival = self.arrival(instance, at, now);
        if arrival == Arrival::New {
            if self.differences_us.len() == REPORTS {
                self.differences_us.pop_front();
            }
            self.differences_us.push_back(i128::from(at.as_us()) - i128::from(now.as_us()));
        }
        arrival
    }

    /// A stored report, received by an earlier placer at an unknown time.
    pub(super) fn restored(&mut self, instance: &str, at: Timestamp, now: Timestamp) -> Arrival {
        self.arrival(instance, at, now)
    }

    fn arrival(&mut self, instance: &str, at: Timestamp, now: Timestamp) -> Arrival {
        match &mut self.current {
            Some((current, last)) if current == instance => {
                if !is_newer(at, *last, now) {
                    return Arrival::Old;
                }
                *last = at;
            }
            current => {
                if let Some((replaced, last)) = &mut self.replaced
                    && replaced == instance
                {
                    if !is_newer(at, *last, now) {
                        return Arrival::Old;
                    }
                    *last = at;
                    let (other, other_at) =
                        current.clone().unwrap_or((String::new(), Timestamp::EPOCH));
                    if at <= other_at && self.delayed < DELAYED_MAX {
                        self.delayed += 1;
                        return Arrival::Old;
                    }
                    return Arrival::Second { other };
                }
                self.replaced = current.replace((instance.to_owned(), at));
                self.delayed = 0;
                self.differences_us.clear();
            }
        }
        Arrival::New
    }

    /// By how much the reporter's clock is ahead of the placer's, microseconds; negative: behind.
    ///
    /// A report's delay makes the clock seem to be behind, so the report with the least delay counts.
    /// `None` before the third report.
    pub(super) fn ahead_us(&self) -> Option<i128> {
        let differences =
            (self.differences_us.len() >= REPORTS_MIN).then_some(&self.differences_us)?;
        differences.iter().copied().max()
    }

    /// Whether the clocks differ by more than `limit`.
    pub(super) fn differs_by(&self, limit: Duration) -> bool {
        self.ahead_us().is_some_and(|us| us.unsigned_abs() > limit.as_micros())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Timestamp {
        Timestamp::from_s(seconds)
    }

    #[test]
    fn only_newer_reports_of_an_instance_count() {
        let mut reporter = Reporter::default();
        assert_eq!(reporter.reported("a", s(100), s(100)), Arrival::New);
        assert_eq!(reporter.reported("a", s(100), s(101)), Arrival::Old, "delivered again");
        assert_eq!(reporter.reported("a", s(99), s(101)), Arrival::Old, "delayed");
        assert_eq!(reporter.reported("a", s(101), s(101)), Arrival::New);
        // Its clock was set back by a minute while it restarted.
        assert_eq!(reporter.reported("b", s(45), s(105)), Arrival::New);
        assert_eq!(reporter.reported("b", s(50), s(110)), Arrival::New);
    }

    #[test]
    fn a_second_reporter_is_detected_when_the_first_reports_again() {
        let mut reporter = Reporter::default();
        assert_eq!(reporter.reported("a", s(100), s(100)), Arrival::New);
        assert_eq!(reporter.reported("b", s(102), s(102)), Arrival::New, "a restart");
        assert_eq!(reporter.reported("a", s(100), s(103)), Arrival::Old, "delivered again");
        let second = Arrival::Second { other: "b".to_owned() };
        assert_eq!(reporter.reported("a", s(105), s(105)), second);
        assert_eq!(reporter.reported("b", s(107), s(107)), Arrival::New);
    }

    #[test]
    fn late_reports_of_an_ended_reporter_are_no_second_one() {
        let mut reporter = Reporter::default();
        let arrival =
            |reporter: &mut Reporter, instance, at, now| reporter.reported(instance, s(at), s(now));
        assert_eq!(arrival(&mut reporter, "a", 100, 100), Arrival::New);
        assert_eq!(arrival(&mut reporter, "b", 110, 110), Arrival::New, "a restart");
        // Two that a paused server stores when it continues.
        assert_eq!(arrival(&mut reporter, "a", 105, 120), Arrival::Old);
        assert_eq!(arrival(&mut reporter, "a", 107, 120), Arrival::Old);
        assert_eq!(arrival(&mut reporter, "b", 122, 122), Arrival::New);
        // A clock that is behind hides a second one only until its third report.
        let second = Arrival::Second { other: "b".to_owned() };
        assert_eq!(arrival(&mut reporter, "a", 112, 127), second);
    }

    #[test]
    fn the_clock_difference_is_that_of_the_least_delayed_report() {
        let mut reporter = Reporter::default();
        for (at, received) in [(160, 104), (165, 105), (170, 130)] {
            assert_eq!(reporter.ahead_us(), None);
            reporter.reported("a", s(at), s(received));
        }
        assert_eq!(reporter.ahead_us(), Some(60_000_000));
        assert!(reporter.differs_by(Duration::from_secs(59)));
        assert!(!reporter.differs_by(Duration::from_secs(60)));
        for at in 200..210 {
            reporter.reported("a", s(at), s(at + 50));
        }
        assert_eq!(reporter.ahead_us(), Some(-50_000_000), "the last reports count");
        reporter.reported("b", s(300), s(300));
        assert_eq!(reporter.ahead_us(), None, "a restart may have another clock");
    }
}
