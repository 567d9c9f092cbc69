//! When a provider is read again: the interval after a success, growing pauses after failures.

use std::time::Duration;

use wattle_common::rng::Stream;
use wattle_common::time::scaled;

/// Pause after the first failure; it doubles with each further one.
const PAUSE_FIRST: Duration = Duration::from_secs(15);
/// Longest pause that a provider may request with `Retry-After`.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3_600);
/// Share by which a pause varies, so that clusters do not read at the same instant.
const JITTER: f64 = 0.2;

/// The schedule of one provider.
#[derive(Debug)]
pub struct Schedule {
    interval: Duration,
    failures: u32,
    random: Stream,
}

impl Schedule {
    /// A schedule with this interval between reads. `seed` selects the jitter.
    #[must_use]
    pub fn new(interval: Duration, seed: u64) -> Self {
        Self { interval, failures: 0, random: Stream::new(seed, "grid reads") }
    }

    fn jittered(&mut self, pause: Duration) -> Duration {
        let share = 1.0 + JITTER * (2.0 * self.random.unit() - 1.0);
        scaled(pause, share)
    }

    /// The pause after a success.
    pub fn succeeded(&mut self) -> Duration {
        self.failures = 0;
        self.jittered(self.interval)
    }

    /// The pause after a failure; `retry_after` is the provider's request, and a lower bound.
    pub fn failed(&mut self, retry_after: Option<Duration>) -> Duration {
        let doubled = PAUSE_FIRST.saturating_mul(1 << self.failures.min(12));
        self.failures = self.failures.saturating_add(1);
        let pause = self.jittered(doubled.min(self.interval));
        pause.max(retry_after.unwrap_or_default().min(RETRY_AFTER_MAX))
    }
}

/// The value of a `Retry-After` header in seconds; a date is not read.
#[must_use]
pub fn retry_after(header: &str) -> Option<Duration> {
    header.trim().parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn pauses_double_up_to_the_interval() {
        let mut schedule = Schedule::new(s(900), 1);
        let within = |pause: Duration, expected: u64| {
            assert!(
                pause >= s(expected) * 4 / 5 && pause <= s(expected) * 6 / 5,
                "{pause:?} {expected}"
            );
        };
        for expected in [15, 30, 60, 120, 240, 480, 900, 900, 900] {
            within(schedule.failed(None), expected);
        }
        within(schedule.succeeded(), 900);
        within(schedule.failed(None), 15);
    }

    #[test]
    fn retry_after_is_a_bounded_lower_bound() {
        let mut schedule = Schedule::new(s(900), 1);
        assert_eq!(schedule.failed(retry_after(" 120 ")), s(120));
        assert!(schedule.failed(Some(s(1))) > s(20));
        assert_eq!(schedule.failed(Some(s(1 << 40))), s(3_600));
        assert_eq!(retry_after("Wed, 21 Oct 2026 07:28:00 GMT"), None);
    }

    #[test]
    fn many_failures_do_not_overflow() {
        let mut schedule = Schedule::new(s(86_400), 1);
        for _ in 0..100 {
            assert!(schedule.failed(None) <= s(86_400) * 6 / 5);
        }
    }
}
