//! The grid's carbon intensity: past, present and forecast.
//!
//! A forecast may be wrong. There are three: *persistence* repeats the last day (until a day has passed, the mean so
//! far), *day-ahead* is a published series, and *perfect* is available only to comparisons and shows the cost of
//! forecast errors. Past values never come from a forecast.

use std::time::Duration;

use wattle_common::Timestamp;

use crate::power::budget::series::Series;

/// The period that persistence repeats.
const DAY: Duration = Duration::from_secs(86_400);

/// Where the forecast comes from.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ForecastSource {
    /// The last day repeated.
    #[default]
    Persistence,
    /// A published series.
    DayAhead(Series),
    /// The actual future.
    Perfect,
}

/// The grid's intensity and its forecast.
#[derive(Clone, Debug, PartialEq)]
pub struct Grid {
    actual: Series,
    forecast: ForecastSource,
    /// The start of the known past.
    seen_from: Timestamp,
}

impl Grid {
    /// A grid with a known past since `seen_from`.
    #[must_use]
    pub const fn new(actual: Series, forecast: ForecastSource, seen_from: Timestamp) -> Self {
        Self { actual, forecast, seen_from }
    }

    /// The intensity at an instant that is not in the future, g/kWh.
    #[must_use]
    pub fn at(&self, now: Timestamp) -> f64 {
        self.actual.at(now)
    }

    /// The mean intensity of a past span, g/kWh.
    #[must_use]
    pub fn mean(&self, from: Timestamp, until: Timestamp) -> f64 {
        self.actual.mean(from, until)
    }

    /// When the intensity may next change.
    #[must_use]
    pub fn changes_after(&self, now: Timestamp) -> Timestamp {
        self.actual.changes_after(now)
    }

    /// The forecast made at `now` of the intensity at `at`, g/kWh.
    #[must_use]
    pub fn expected(&self, now: Timestamp, at: Timestamp) -> f64 {
        if at <= now {
            return self.actual.at(at);
        }
        match &self.forecast {
            ForecastSource::Perfect => self.actual.at(at),
            ForecastSource::DayAhead(series) => series.at(at),
            ForecastSource::Persistence => {
                let back = DAY * days_back(now, at);
                let seen = at.since(self.seen_from) >= back;
                if seen { self.actual.at(at - back) } else { self.past_mean(now) }
            }
        }
    }

    /// The forecast made at `now` of the mean intensity until `until`, g/kWh.
    #[must_use]
    pub fn mean_expected(&self, now: Timestamp, until: Timestamp) -> f64 {
        if until <= now {
            return self.actual.at(now);
        }
        match &self.forecast {
            ForecastSource::Perfect => self.actual.mean(now, until),
            ForecastSource::DayAhead(series) => series.mean(now, until),
            ForecastSource::Persistence => self.mean_persisting(now, until),
        }
    }

    /// Full days repeat the last one; the rest repeats its beginning.
    fn mean_persisting(&self, now: Timestamp, until: Timestamp) -> f64 {
        let (span, day) = (until.since(now).as_micros(), DAY.as_micros());
        let rest = Duration::from_micros((span % day) as u64);
        let full = if span >= day { (span / day) as f64 * self.last_day(now, DAY) } else { 0.0 };
        (full + self.last_day(now, rest)) / span as f64
    }

    /// Intensity times time over the first `part` of the last day; before the known past, the mean of the known
    /// past.
    fn last_day(&self, now: Timestamp, part: Duration) -> f64 {
        let unseen = DAY.saturating_sub(now.since(self.seen_from));
        let guessed = self.past_mean(now) * part.min(unseen).as_micros() as f64;
        let known = part.saturating_sub(unseen);
        if known.is_zero() {
            return guessed;
        }
        let from = if unseen.is_zero() { now - DAY } else { self.seen_from };
        guessed + self.actual.integral(from, from + known)
    }

    /// The mean of the known past.
    fn past_mean(&self, now: Timestamp) -> f64 {
        self.actual.mean(self.seen_from.min(now), now)
    }
}

/// The number of days from `at` back to the known past.
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
        // Past values never come from a forecast.
        assert_eq!(grid.expected(hours(30), hours(25)), 200.0);
        // Half a day seen: the last half of the day before it is as usual.
        let late = Grid::new(two_days(), ForecastSource::Persistence, hours(12));
        assert_eq!(late.mean_expected(hours(24), hours(36)), 300.0);
    }

    #[test]
    fn day_ahead_and_perfect_forecasts_return_their_series() {
        let day_ahead = ForecastSource::DayAhead(Series::constant(50.0).unwrap());
        let grid = Grid::new(two_days(), day_ahead, Timestamp::EPOCH);
        assert_eq!((grid.at(hours(1)), grid.expected(hours(1), hours(30))), (100.0, 50.0));
        assert_eq!(grid.mean_expected(hours(1), hours(30)), 50.0);
        let grid = Grid::new(two_days(), ForecastSource::Perfect, Timestamp::EPOCH);
        assert_eq!(grid.mean_expected(hours(24), hours(48)), 400.0);
        assert_eq!(grid.expected(hours(1), hours(30)), 200.0);
    }

    proptest! {
        /// The forecast of a mean is the mean of the forecasts, for every source.
        #[test]
        fn the_mean_forecast_is_the_mean_of_forecasts(
            now in 0u64..100, span in 1u64..80, seen in 0u64..50, which in 0usize..3,
        ) {
            let forecast = match which {
                0 => ForecastSource::Persistence,
                1 => ForecastSource::DayAhead(two_days()),
                _ => ForecastSource::Perfect,
            };
            let seen = seen.min(now);
            let grid = Grid::new(two_days(), forecast, hours(seen));
            let until = hours(now + span);
            // An instant inside each hour stands for it.
            let at = |i: u64| Timestamp::from_us((now + i) * HOUR + HOUR / 2);
            let mean = (0..span).map(|i| grid.expected(hours(now), at(i))).sum::<f64>() / span as f64;
            prop_assert!((grid.mean_expected(hours(now), until) - mean).abs() < 1e-6 * mean.max(1.0));
        }

        /// At constant intensity every forecast is that intensity.
        #[test]
        fn a_constant_intensity_is_predicted_exactly(now in 0u64..1_000, span in 1u64..1_000, seen in 0u64..1_000) {
            let series = Series::constant(321.0).unwrap();
            let grid = Grid::new(series, ForecastSource::Persistence, hours(seen.min(now)));
            prop_assert!((grid.mean_expected(hours(now), hours(now + span)) - 321.0).abs() < 1e-9);
            prop_assert_eq!(grid.expected(hours(now), hours(now + span)), 321.0);
        }
    }
}
