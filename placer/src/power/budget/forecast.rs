//! The grid's carbon intensity: measured and forecast.
//!
//! There are three forecasts: *persistence* (the next day repeats the last one; before a full day has
//! been measured, the mean of the measured values), a *day-ahead* series from a provider, and a
//! *perfect* forecast for comparisons, which shows the cost of forecast errors. Past values are always
//! measured values.

use std::time::Duration;

use wattle_common::Timestamp;

use crate::power::budget::series::Series;

/// The period that persistence repeats.
const DAY: Duration = Duration::from_secs(86_400);

/// Source of the carbon intensity forecast.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ForecastSource {
    /// The last day repeated.
    #[default]
    Persistence,
    /// A series published in advance.
    DayAhead(Series),
    /// The actual series.
    Perfect,
}

/// The grid's carbon intensity, actual and forecast.
#[derive(Clone, Debug, PartialEq)]
pub struct Grid {
    actual: Series,
    forecast: ForecastSource,
    /// Start of the measured values.
    measured_from: Timestamp,
}

impl Grid {
    /// A grid with measured values since `measured_from`.
    #[must_use]
    pub const fn new(actual: Series, forecast: ForecastSource, measured_from: Timestamp) -> Self {
        Self { actual, forecast, measured_from }
    }

    /// Intensity at an instant that is not in the future, g/kWh.
    #[must_use]
    pub fn at(&self, now: Timestamp) -> f64 {
        self.actual.at(now)
    }

    /// Mean intensity of a past interval, g/kWh.
    #[must_use]
    pub fn mean(&self, from: Timestamp, until: Timestamp) -> f64 {
        self.actual.mean(from, until)
    }

    /// Time of the next change of the actual intensity.
    #[must_use]
    pub fn changes_after(&self, now: Timestamp) -> Timestamp {
        self.actual.changes_after(now)
    }

    /// Forecast made at `now` of the intensity at `at`, g/kWh; for a past `at` the actual intensity.
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
                let measured = at.since(self.measured_from) >= back;
                if measured { self.actual.at(at - back) } else { self.measured_mean(now) }
            }
        }
    }

    /// Forecast made at `now` of the mean intensity from `now` until `until`, g/kWh.
    #[must_use]
    pub fn mean_expected(&self, now: Timestamp, until: Timestamp) -> f64 {
        if until <= now {
            return self.actual.at(now);
        }
        match &self.forecast {
            ForecastSource::Perfect => self.actual.mean(now, until),
            ForecastSource::DayAhead(series) => series.mean(now, until),
            ForecastSource::Persistence => self.persistence_mean(now, until),
        }
    }

    /// Full days repeat the last day; the remainder repeats its beginning.
    fn persistence_mean(&self, now: Timestamp, until: Timestamp) -> f64 {
        let (span, day) = (until.since(now).as_micros(), DAY.as_micros());
        let rest = Duration::from_micros((span % day) as u64);
        let whole = if span >= day { (span / day) as f64 * self.last_day(now, DAY) } else { 0.0 };
        (whole + self.last_day(now, rest)) / span as f64
    }

    /// Integral of the intensity over the first `part` of the last day, g/kWh x microseconds. The
    /// measured mean replaces values before the first measurement.
    fn last_day(&self, now: Timestamp, part: Duration) -> f64 {
        let unmeasured = DAY.saturating_sub(now.since(self.measured_from));
        let assumed = self.measured_mean(now) * part.min(unmeasured).as_micros() as f64;
        let measured = part.saturating_sub(unmeasured);
        if measured.is_zero() {
            return assumed;
        }
        let from = if unmeasured.is_zero() { now - DAY } else { self.measured_from };
        assumed + self.actual.integral(from, from + measured)
    }

    /// Mean of all measured values.
    fn measured_mean(&self, now: Timestamp) -> f64 {
        self.actual.mean(self.measured_from.min(now), now)
    }
}

/// Number of days from the latest measured value at the same time of day until `at`.
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

    /// A day with twelve hours at 100 and twelve at 300 g/kWh, then a day with twice these values.
    fn two_days() -> Series {
        let day = |i: u64| if i % 24 < 12 { 100.0 } else { 300.0 };
        let steps = (0..48).map(|i| (i * HOUR, day(i) * if i < 24 { 1.0 } else { 2.0 }));
        Series::new(Timestamp::EPOCH, steps.collect(), 48 * HOUR).unwrap()
    }

    #[test]
    fn persistence_repeats_the_last_measured_day() {
        let grid = Grid::new(two_days(), ForecastSource::Persistence, Timestamp::EPOCH);
        // After six hours only 100 has been measured.
        assert_eq!(grid.expected(hours(6), hours(18)), 100.0);
        assert_eq!(grid.mean_expected(hours(6), hours(24)), 100.0);
        // After a day, the forecast repeats it, although the actual values double.
        assert_eq!(grid.expected(hours(24), hours(40)), 300.0);
        assert_eq!(grid.mean_expected(hours(24), hours(48)), 200.0);
        assert_eq!(grid.mean_expected(hours(24), hours(60)), (24.0 * 200.0 + 12.0 * 100.0) / 36.0);
        // Past values are measured values.
        assert_eq!(grid.expected(hours(30), hours(25)), 200.0);
        // Half a day measured: the measured mean replaces the half day before it.
        let late = Grid::new(two_days(), ForecastSource::Persistence, hours(12));
        assert_eq!(late.mean_expected(hours(24), hours(36)), 300.0);
    }

    #[test]
    fn day_ahead_forecast_is_its_series_and_perfect_forecast_is_the_actual_one() {
        let day_ahead = ForecastSource::DayAhead(Series::constant(50.0).unwrap());
        let grid = Grid::new(two_days(), day_ahead, Timestamp::EPOCH);
        assert_eq!((grid.at(hours(1)), grid.expected(hours(1), hours(30))), (100.0, 50.0));
        assert_eq!(grid.mean_expected(hours(1), hours(30)), 50.0);
        let grid = Grid::new(two_days(), ForecastSource::Perfect, Timestamp::EPOCH);
        assert_eq!(grid.mean_expected(hours(24), hours(48)), 400.0);
        assert_eq!(grid.expected(hours(1), hours(30)), 200.0);
    }

    proptest! {
        /// The mean forecast equals the mean of the forecasts at each instant.
        #[test]
        fn mean_forecast_is_the_mean_of_forecasts(
            now in 0u64..100, span in 1u64..80, measured in 0u64..50, which in 0usize..3,
        ) {
            let forecast = match which {
                0 => ForecastSource::Persistence,
                1 => ForecastSource::DayAhead(two_days()),
                _ => ForecastSource::Perfect,
            };
            let grid = Grid::new(two_days(), forecast, hours(measured.min(now)));
            let until = hours(now + span);
            // One instant within each hour.
            let at = |i: u64| Timestamp::from_us((now + i) * HOUR + HOUR / 2);
            let mean = (0..span).map(|i| grid.expected(hours(now), at(i))).sum::<f64>() / span as f64;
            prop_assert!((grid.mean_expected(hours(now), until) - mean).abs() < 1e-6 * mean.max(1.0));
        }

        /// Persistence is exact for a constant intensity.
        #[test]
        fn persistence_is_exact_for_a_constant(
            now in 0u64..1_000, span in 1u64..1_000, measured in 0u64..1_000,
        ) {
            let series = Series::constant(321.0).unwrap();
            let grid = Grid::new(series, ForecastSource::Persistence, hours(measured.min(now)));
            prop_assert!((grid.mean_expected(hours(now), hours(now + span)) - 321.0).abs() < 1e-9);
            prop_assert_eq!(grid.expected(hours(now), hours(now + span)), 321.0);
        }
    }
}
