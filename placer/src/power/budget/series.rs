//! Carbon intensity over time: a periodic step function.

use std::time::Duration;

use wattle_common::Timestamp;

/// Joules in a kilowatt-hour.
pub(super) const KWH_J: f64 = 3.6e6;

/// Periodic carbon intensity: each value holds until the next.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    starts_at: Timestamp,
    /// Start of each step, microseconds from `starts_at`, and its intensity, g/kWh.
    steps: Vec<(u64, f64)>,
    /// Integral of the intensity until the start of each step, g/kWh x microseconds.
    before: Vec<f64>,
    period_us: u64,
}

/// Reason why steps do not form a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SeriesError {
    /// No steps.
    #[error("invalid carbon series: expected at least one intensity")]
    Empty,
    /// The first step does not start at 0, the steps do not ascend, or the period ends before the last.
    #[error(
        "invalid carbon series: expected ascending steps from 0 to before the end of its period"
    )]
    NotAscending,
    /// An intensity out of range.
    #[error("invalid carbon intensity: expected a number from 0 to 100,000 g/kWh")]
    Intensity,
}

impl Series {
    /// A series that starts at `starts_at` and repeats after `period_us`. Each step is its start in
    /// microseconds from `starts_at` and its intensity in g/kWh.
    ///
    /// # Errors
    /// If the steps do not form a series.
    pub fn new(
        starts_at: Timestamp,
        steps: Vec<(u64, f64)>,
        period_us: u64,
    ) -> Result<Self, SeriesError> {
        let (Some(first), Some(last)) = (steps.first(), steps.last()) else {
            return Err(SeriesError::Empty);
        };
        let ascending = steps.windows(2).all(|pair| pair[0].0 < pair[1].0);
        if first.0 != 0 || last.0 >= period_us || !ascending {
            return Err(SeriesError::NotAscending);
        }
        if steps.iter().any(|(_, g)| !(0.0..=1e5).contains(g)) {
            return Err(SeriesError::Intensity);
        }
        let mut before = Vec::with_capacity(steps.len());
        let mut sum = 0.0;
        for (i, &(at, g)) in steps.iter().enumerate() {
            before.push(sum);
            let end = steps.get(i + 1).map_or(period_us, |next| next.0);
            sum += g * (end - at) as f64;
        }
        Ok(Self { starts_at, steps, before, period_us })
    }

    /// A constant intensity, g/kWh.
    ///
    /// # Errors
    /// If the intensity is out of range.
    pub fn constant(g_per_kwh: f64) -> Result<Self, SeriesError> {
        Self::new(Timestamp::EPOCH, vec![(0, g_per_kwh)], 3_600_000_000)
    }

    /// Start of the series.
    #[must_use]
    pub const fn starts_at(&self) -> Timestamp {
        self.starts_at
    }

    /// Intensity at an instant, g/kWh; before the start, the first value.
    #[must_use]
    pub fn at(&self, at: Timestamp) -> f64 {
        self.steps[self.step(self.offset(at) % self.period_us)].1
    }

    /// Start of the first step after `at`.
    #[must_use]
    pub fn changes_after(&self, at: Timestamp) -> Timestamp {
        let offset = self.offset(at);
        let inside = offset % self.period_us;
        let next = self.steps.get(self.step(inside) + 1).map_or(self.period_us, |step| step.0);
        self.starts_at + Duration::from_micros(offset - inside + next)
    }

    /// Mean intensity from `from` until `until`, g/kWh; for an empty interval, the intensity at `from`.
    #[must_use]
    pub fn mean(&self, from: Timestamp, until: Timestamp) -> f64 {
        if until <= from {
            return self.at(from);
        }
        let span = until.since(from).as_micros() as f64;
        self.integral(from, until) / span
    }

    /// Integral of the intensity from `from` until `until`, g/kWh x microseconds.
    #[must_use]
    pub(super) fn integral(&self, from: Timestamp, until: Timestamp) -> f64 {
        // The first value also holds before the start.
        let early = self.starts_at.since(from).saturating_sub(self.starts_at.since(until));
        let early = self.steps[0].1 * early.as_micros() as f64;
        early + (self.until(self.offset(until)) - self.until(self.offset(from)))
    }

    fn until(&self, offset: u64) -> f64 {
        let (periods, inside) = (offset / self.period_us, offset % self.period_us);
        let last = self.steps.len() - 1;
        let period =
            self.before[last] + self.steps[last].1 * (self.period_us - self.steps[last].0) as f64;
        let step = self.step(inside);
        let (at, g) = self.steps[step];
        periods as f64 * period + self.before[step] + g * (inside - at) as f64
    }

    fn offset(&self, at: Timestamp) -> u64 {
        u64::try_from(at.since(self.starts_at).as_micros()).unwrap_or(u64::MAX)
    }

    fn step(&self, inside: u64) -> usize {
        self.steps.partition_point(|(from, _)| *from <= inside).saturating_sub(1)
    }
}

/// Emissions of an energy at a carbon intensity, grams.
#[must_use]
pub fn grams(joules: f64, g_per_kwh: f64) -> f64 {
    joules * g_per_kwh / KWH_J
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "exact figures are meant")]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000_000;

    fn hours(n: u64) -> Timestamp {
        Timestamp::from_us(n * HOUR)
    }

    #[test]
    fn values_hold_until_the_next_step_and_repeat_after_the_period() {
        let series =
            Series::new(hours(10), vec![(0, 100.0), (HOUR, 300.0), (2 * HOUR, 200.0)], 3 * HOUR)
                .unwrap();
        assert_eq!(
            [9, 10, 11, 12, 13, 14].map(|n| series.at(hours(n))),
            [100.0, 100.0, 300.0, 200.0, 100.0, 300.0]
        );
        assert_eq!(series.mean(hours(10), hours(13)), 200.0);
        assert_eq!(series.mean(hours(8), hours(11)), 100.0);
        assert_eq!(series.mean(hours(11), hours(14)), 200.0);
        assert_eq!(series.mean(hours(11), hours(11)), 300.0);
        assert_eq!(series.mean(hours(10), hours(10 + 3_000_000)), 200.0);
        assert_eq!(series.changes_after(hours(10)), hours(11));
        assert_eq!(series.changes_after(hours(12)), hours(13));
        assert_eq!(grams(3.6e6, 250.0), 250.0);
    }

    #[test]
    fn invalid_series_are_refused() {
        let new = |steps, period| Series::new(Timestamp::EPOCH, steps, period);
        assert_eq!(new(vec![], 1).unwrap_err(), SeriesError::Empty);
        assert_eq!(new(vec![(1, 1.0)], 2).unwrap_err(), SeriesError::NotAscending);
        assert_eq!(new(vec![(0, 1.0), (0, 2.0)], 2).unwrap_err(), SeriesError::NotAscending);
        assert_eq!(new(vec![(0, 1.0), (2, 2.0)], 2).unwrap_err(), SeriesError::NotAscending);
        assert_eq!(new(vec![(0, f64::NAN)], 2).unwrap_err(), SeriesError::Intensity);
        assert_eq!(Series::constant(-1.0).unwrap_err(), SeriesError::Intensity);
    }
}
