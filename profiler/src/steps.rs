//! The step rate of a job, from its progress lines.
//!
//! The rate is (last step - first step) / (last arrival - first arrival). Its error follows from
//! the unevenness of the steps: with progress as a process with independent increments, the
//! variance per second is estimated from the intervals between reports (degrees of freedom:
//! intervals - 1). Half a step of uncertainty at each end is added, because a report contains a
//! whole number of steps. Sums suffice for that, so a meter has constant size.

use std::time::Duration;

use wattle_common::Timestamp;

/// Least time between two reports: closer arrival times carry no information about the rate.
const APART_MIN: Duration = Duration::from_micros(500);

/// Student's t for a two-sided 90 % interval, by degrees of freedom from 1; beyond, 1.65.
const T90: [f64; 12] = [6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86, 1.83, 1.81, 1.80, 1.78];

/// Measures the step rate between a first and a last report.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepMeter {
    first: Option<(Timestamp, u64)>,
    last: Option<(Timestamp, u64)>,
    intervals: u32,
    /// Sum over the intervals of steps^2 / seconds.
    squares: f64,
}

/// A measured rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepRate {
    /// Steps between the first and the last report.
    pub steps: u64,
    /// Steps a second.
    pub per_s: f64,
    /// Half the width of its 90 % interval, as a share of it.
    pub error: f64,
}

impl StepMeter {
    /// Adds a report of `step` steps in total, received at `at`. A report that goes back in time
    /// or steps is ignored: of several ranks that report, some are behind.
    pub fn report(&mut self, at: Timestamp, step: u64) {
        let Some((last_at, last_step)) = self.last else {
            self.first = Some((at, step));
            self.last = self.first;
            return;
        };
        if at <= last_at || at.since(last_at) < APART_MIN || step < last_step {
            return;
        }
        let steps = (step - last_step) as f64;
        self.squares += steps * steps / at.since(last_at).as_secs_f64();
        self.intervals += 1;
        self.last = Some((at, step));
    }

    /// A meter that continues from this one: its first report is this one's last.
    #[must_use]
    pub fn continued(&self) -> Self {
        Self { first: self.last, last: self.last, ..Self::default() }
    }

    /// Number of intervals between reports.
    #[must_use]
    pub const fn intervals(&self) -> u32 {
        self.intervals
    }

    /// The rate; `None` with fewer than two reports, or with no step between them.
    #[must_use]
    pub fn rate(&self) -> Option<StepRate> {
        let ((from, first), (until, last)) = (self.first?, self.last?);
        let seconds = until.since(from).as_secs_f64();
        let steps = last - first;
        if self.intervals == 0 || steps == 0 || seconds <= 0.0 {
            return None;
        }
        let counted = steps as f64;
        let per_s = counted / seconds;
        let whole_steps = 0.5_f64.hypot(0.5) / counted;
        let uneven = match self.intervals.checked_sub(1) {
            None | Some(0) => 0.0,
            Some(freedom) => {
                let spread = (self.squares - counted * counted / seconds).max(0.0);
                let variance = spread / f64::from(freedom) / seconds;
                let t = T90.get(freedom as usize - 1).copied().unwrap_or(1.65);
                t * variance.sqrt() / per_s
            }
        };
        Some(StepRate { steps, per_s, error: uneven.hypot(whole_steps) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_us(ms * 1_000)
    }

    #[test]
    fn an_even_rate_is_exact_to_a_step() {
        let mut meter = StepMeter::default();
        for i in 0..=10 {
            meter.report(at(i * 1_000), 500 + 20 * i);
        }
        let rate = meter.rate().unwrap();
        assert_eq!((rate.steps, rate.per_s), (200, 20.0));
        // Even intervals leave only the whole steps: 0.71 of 200.
        assert!((rate.error - 0.5_f64.hypot(0.5) / 200.0).abs() < 1e-9, "{rate:?}");
    }

    #[test]
    fn an_uneven_rate_has_a_larger_error() {
        let mut meter = StepMeter::default();
        // 10 and 30 steps per second alternately.
        for (i, step) in [0, 10, 40, 50, 80, 90, 120].into_iter().enumerate() {
            meter.report(at(i as u64 * 1_000), step);
        }
        let rate = meter.rate().unwrap();
        // Mean 20/s; six intervals deviate by 10 each: variance 600/5 = 120 per second, over 6 s
        // 20, standard error 4.47/s, t(5) = 2.02: 9.03/s of 20/s = 0.45.
        assert!((rate.per_s - 20.0).abs() < 1e-9);
        assert!((rate.error - 0.4516).abs() < 0.001, "{rate:?}");
    }

    #[test]
    fn too_few_reports_give_no_rate() {
        let mut meter = StepMeter::default();
        assert_eq!(meter.rate(), None);
        meter.report(at(0), 7);
        assert_eq!(meter.rate(), None);
        meter.report(at(0), 8); // another rank, at the same instant
        meter.report(at(10), 6); // a rank that is behind
        assert_eq!(meter.rate(), None);
        meter.report(at(1_000), 7); // no progress
        assert_eq!(meter.rate(), None);
    }

    proptest! {
        /// For any spacing of reports, rate x time equals the steps, and the error is finite.
        #[test]
        fn rate_is_steps_by_time(gaps in prop::collection::vec((1u64..60_000, 0u64..1_000), 1..200)) {
            let mut meter = StepMeter::default();
            let (mut ms, mut step) = (0, 0);
            meter.report(at(ms), step);
            for (gap, steps) in gaps {
                ms += gap;
                step += steps;
                meter.report(at(ms), step);
            }
            if let Some(rate) = meter.rate() {
                prop_assert_eq!(rate.steps, step);
                prop_assert!((rate.per_s * ms as f64 / 1_000.0 - step as f64).abs() < 1e-6 * step as f64);
                prop_assert!(rate.error.is_finite() && rate.error > 0.0);
            } else {
                prop_assert_eq!(step, 0);
            }
        }

        /// Splitting reports into meters that continue loses no step.
        #[test]
        fn continued_meters_lose_no_step(steps in prop::collection::vec(0u64..50, 2..100), cut in 1usize..99) {
            let (mut meter, mut total, mut step) = (StepMeter::default(), 0, 0);
            meter.report(at(0), 0);
            for (i, more) in steps.iter().enumerate() {
                if i == cut {
                    total += meter.rate().map_or(0, |r| r.steps);
                    meter = meter.continued();
                }
                step += more;
                meter.report(at(1 + i as u64), step);
            }
            prop_assert_eq!(total + meter.rate().map_or(0, |r| r.steps), step);
        }
    }
}
