//! What is known of the grid's carbon intensity: what was and is, and what is expected.
//!
//! A forecast may be wrong. Three are here: *persistence* (tomorrow is as the last day was; until a
//! day has been seen, as what has been seen was in the mean), a *day-ahead* series from somebody who
//! says so beforehand, and a *perfect* one, which only a comparison can have: it shows what being
//! wrong costs. What has been is never taken from a forecast.

use std::time::Duration;

use wattle_common::Timestamp;

use crate::power::budget::series::Series;

/// A day: what persistence repeats.
const DAY: Duration = Duration::from_secs(86_400);

/// What is expected of the grid.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ForecastSource {
    /// The last day again.
    #[default]
    Persistence,
    /// What somebody said beforehand.
    DayAhead(Series),
    /// What will be.
    Perfect,
}

/// The grid's intensity as it is, and as it is expected.
#[derive(Clone, Debug, PartialEq)]
pub struct Grid {
    actual: Series,
    foreseen: ForecastSource,
    /// Nothing is known of what was before.
    seen_from: Timestamp,
}

impl Grid {
    /// The grid of which everything since `seen_from` is known.
    #[must_use]
    pub const fn new(actual: Series, foreseen: ForecastSource, seen_from: Timestamp) -> Self {
        Self { actual, foreseen, seen_from }
    }

    /// The intensity at an instant that is not in the future, g/kWh.
    #[must_use]
    pub fn at(&self, now: Timestamp) -> f64 {
        self.actual.at(now)
    }

    /// The mean intensity of a span that is over, g/kWh.
    #[must_use]
    pub fn mean(&self, from: Timestamp, until: Timestamp) -> f64 {
        self.actual.mean(from, until)
    }

    /// When the intensity is next looked at.
    #[must_use]
    pub fn changes_after(&self, now: Timestamp) -> Timestamp {
        self.actual.changes_after(now)
    }

    /// What is expected at `now` of the intensity at `at`, g/kWh.
    #[must_use]
    pub fn expected(&self, now: Timestamp, at: Timestamp) -> f64 {
        if at <= now {
            return self.actual.at(at);
        }
        match &self.foreseen {
            ForecastSource::Perfect => self.actual.at(at),
            ForecastSource::DayAhead(series) => series.at(at),
            ForecastSource::Persistence => {
                let back = DAY * days_back(now, at);
                let seen = at.since(self.seen_from) >= back;
                if seen { self.actual.at(at - back) } else { self.usual(now) }
            }
        }
    }

    /// What is expected at `now` of the mean from `now` until `until`, g/kWh.
    #[must_use]
    pub fn mean_expected(&self, now: Timestamp, until: Timestamp) -> f64 {
        if until <= now {
            return self.actual.at(now);
        }
        match &self.foreseen {
            ForecastSource::Perfect => self.actual.mean(now, until),
            ForecastSource::DayAhead(series) => series.mean(now, until),
            ForecastSource::Persistence => self.mean_persisting(now, until),
        }
    }

    /// Whole days repeat the last one; what is left repeats its beginning.
    fn mean_persisting(&self, now: Timestamp, until: Timestamp) -> f64 {
        let (span, day) = (until.since(now).as_micros(), DAY.as_micros());
        let rest = Duration::from_micros((span % day) as u64);
        let whole = if span >= day { (span / day) as f64 * self.last_day(now, DAY) } else { 0.0 };
        (whole + self.last_day(now, rest)) / span as f64
    }

    /// Intensity times time over the first `part` of the last day: as it was where it has been seen,
    /// as usual before.
    fn last_day(&self, now: Timestamp, part: Duration) -> f64 {
        let unseen = DAY.saturating_sub(now.since(self.seen_from));
        let guessed = self.usual(now) * part.min(unseen).as_micros() as f64;
        let known = part.saturating_sub(unseen);
        if known.is_zero() {
            return guessed;
        }
        let from = if unseen.is_zero() { now - DAY } else { self.seen_from };
        guessed + self.actual.integral(from, from + known)
    }

    /// The mean of what has been seen.
    fn usual(&self, now: Timestamp) -> f64 {
        self.actual.mean(self.seen_from.min(now), now)
    }
}

/// How many days before `at` lies what was seen last.
fn days_back(now: Timestamp, at: Timestamp) -> u32 {
    let ahead = at.since(now).as_micros();
    u32::try_from(ahead.div_ceil(DAY.as_micros()).max(1)).unwrap_or(u32::MAX)
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "exact figures are meant")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOUR: u64 = 3_600_000_000;

    fn hours(n: u64) -> Timestamp {
        Timestamp::from_us(n * HOUR)
    }

    /// Hours of a day at 100, but the last twelve at 300; the second day twice that.
    fn two_days() -> Series {
        let day = |i: u64| if i % 24 < 12 { 100.0 } else { 300.0 };
        let steps = (0..48).map(|i| (i * HOUR, day(i) * if i < 24 { 1.0 } else { 2.0 }));
        Series::new(Timestamp::EPOCH, steps.collect(), 48 * HOUR).unwrap()
    }

    #[test]
    fn persistence_repeats_the_last_day_once_there_was_one() {
        let grid = Grid::new(two_days(), ForecastSource::Persistence, Timestamp::EPOCH);
        // Six hours in, only 100 has been seen.
        assert_eq!(grid.expected(hours(6), hours(18)), 100.0);
        assert_eq!(grid.mean_expected(hours(6), hours(24)), 100.0);
        // After a day, that day again, though it will be twice as much.
        assert_eq!(grid.expected(hours(24), hours(40)), 300.0);
        assert_eq!(grid.mean_expected(hours(24), hours(48)), 200.0);
        assert_eq!(grid.mean_expected(hours(24), hours(60)), (24.0 * 200.0 + 12.0 * 100.0) / 36.0);
        // What has been is never foretold.
        assert_eq!(grid.expected(hours(30), hours(25)), 200.0);
        // Half a day seen: the last half of the day before it is as usual.
        let late = Grid::new(two_days(), ForecastSource::Persistence, hours(12));
        assert_eq!(late.mean_expected(hours(24), hours(36)), 300.0);
    }

    #[test]
    fn who_says_so_beforehand_is_believed_and_perfection_is_right() {
        let said = ForecastSource::DayAhead(Series::constant(50.0).unwrap());
        let grid = Grid::new(two_days(), said, Timestamp::EPOCH);
        assert_eq!((grid.at(hours(1)), grid.expected(hours(1), hours(30))), (100.0, 50.0));
        assert_eq!(grid.mean_expected(hours(1), hours(30)), 50.0);
        let grid = Grid::new(two_days(), ForecastSource::Perfect, Timestamp::EPOCH);
        assert_eq!(grid.mean_expected(hours(24), hours(48)), 400.0);
        assert_eq!(grid.expected(hours(1), hours(30)), 200.0);
    }

    proptest! {
        /// A mean is the mean of what is expected at each instant, whatever the forecast.
        #[test]
        fn means_are_of_what_is_expected(
            now in 0u64..100, span in 1u64..80, seen in 0u64..50, which in 0usize..3,
        ) {
            let foreseen = match which {
                0 => ForecastSource::Persistence,
                1 => ForecastSource::DayAhead(two_days()),
                _ => ForecastSource::Perfect,
            };
            let seen = seen.min(now);
            let grid = Grid::new(two_days(), foreseen, hours(seen));
            let until = hours(now + span);
            // An instant inside each hour stands for it.
            let at = |i: u64| Timestamp::from_us((now + i) * HOUR + HOUR / 2);
            let mean = (0..span).map(|i| grid.expected(hours(now), at(i))).sum::<f64>() / span as f64;
            prop_assert!((grid.mean_expected(hours(now), until) - mean).abs() < 1e-6 * mean.max(1.0));
        }

        /// With one intensity every forecast says that one.
        #[test]
        fn what_never_changes_is_foretold(now in 0u64..1_000, span in 1u64..1_000, seen in 0u64..1_000) {
            let series = Series::constant(321.0).unwrap();
            let grid = Grid::new(series, ForecastSource::Persistence, hours(seen.min(now)));
            prop_assert!((grid.mean_expected(hours(now), hours(now + span)) - 321.0).abs() < 1e-9);
            prop_assert_eq!(grid.expected(hours(now), hours(now + span)), 321.0);
        }
    }
}
