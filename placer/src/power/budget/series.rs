//! Carbon intensity over time: a periodic step function.

use std::time::Duration;

use wattle_common::Timestamp;

/// Joules in a kilowatt-hour.
pub(super) const KWH_J: f64 = 3.6e6;

/// Carbon intensity over time.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    starts_at: Timestamp,
    /// Steps: microseconds from the start, intensity from then on in g/kWh.
    steps: Vec<(u64, f64)>,
    /// Integral of the intensity from the start to each step, g/kWh x microseconds.
    before: Vec<f64>,
    period_us: u64,
}

/// Why steps are not a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SeriesError {
    /// No step.
    #[error("a carbon series needs at least one intensity")]
    Empty,
    /// The first step is not at the start, steps do not ascend, or the end is not after the last.
    #[error("the steps of a carbon series must begin at 0 and ascend to before its end")]
    Order,
    /// An intensity out of range.
    #[error("a carbon intensity must be a number from 0 to 100,000 g/kWh")]
    Intensity,
}

impl Series {
    /// A series whose first value holds from `starts_at` on; `steps` are microseconds from there
    /// and grams per kilowatt-hour, repeated after `period_us`.
    ///
    /// # Errors
    /// If the steps are not a series.
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
            return Err(SeriesError::Order);
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
    /// If it is out of range.
    pub fn constant(g_per_kwh: f64) -> Result<Self, SeriesError> {
        Self::new(Timestamp::EPOCH, vec![(0, g_per_kwh)], 3_600_000_000)
    }

    /// When its first step begins.
    #[must_use]
    pub const fn starts_at(&self) -> Timestamp {
        self.starts_at
    }

    /// The intensity at an instant, g/kWh; before the start, the first value.
    #[must_use]
    pub fn at(&self, at: Timestamp) -> f64 {
        self.steps[self.step(self.offset(at) % self.period_us)].1
    }

    /// When the intensity may next differ from that at `at`.
    #[must_use]
    pub fn changes_after(&self, at: Timestamp) -> Timestamp {
        let offset = self.offset(at);
        let inside = offset % self.period_us;
        let next = self.steps.get(self.step(inside) + 1).map_or(self.period_us, |step| step.0);
        self.starts_at + Duration::from_micros(offset - inside + next)
    }

    /// The mean intensity from `from` until `until`, g/kWh; for an empty span, that at `from`.
    #[must_use]
    pub fn mean(&self, from: Timestamp, until: Timestamp) -> f64 {
        if until <= from {
            return self.at(from);
        }
        let span = until.since(from).as_micros() as f64;
        self.integral(from, until) / span
    }

    /// Intensity times time, g/kWh x microseconds.
    #[must_use]
    pub(super) fn integral(&self, from: Timestamp, until: Timestamp) -> f64 {
        // Before the start the first value counts.
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

/// Emissions of an energy at an intensity, grams.
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
    fn a_series_is_a_periodic_step_function() {
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
    fn invalid_steps_are_refused() {
        let new = |steps, period| Series::new(Timestamp::EPOCH, steps, period);
        assert_eq!(new(vec![], 1).unwrap_err(), SeriesError::Empty);
        assert_eq!(new(vec![(1, 1.0)], 2).unwrap_err(), SeriesError::Order);
        assert_eq!(new(vec![(0, 1.0), (0, 2.0)], 2).unwrap_err(), SeriesError::Order);
        assert_eq!(new(vec![(0, 1.0), (2, 2.0)], 2).unwrap_err(), SeriesError::Order);
        assert_eq!(new(vec![(0, f64::NAN)], 2).unwrap_err(), SeriesError::Intensity);
        assert_eq!(Series::constant(-1.0).unwrap_err(), SeriesError::Intensity);
    }
}
