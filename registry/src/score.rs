//! Prediction errors of one predictor: the newest of each quantity and horizon, and their means.
//!
//! One error is stored as one 32-bit number: the relative error in hundredths of a per cent,
//! doubled, plus one where the value lay within the interval. A predictor's record is a few
//! kilobytes of JSON.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use wattle_common::bounds::INTEGER_MAX;
use wattle_common::messages::{Estimate, Latency, Score, Scores};

/// Errors kept of each quantity and horizon.
const KEPT_MAX: usize = 256;
/// Errors are clipped to this relative error, so that one window does not dominate the mean.
const ERROR_MAX: f64 = 100.0;

/// What the registry had observed of a job when a predictor proposed its surface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Horizon {
    /// No window of the job.
    NewJob,
    /// Windows of the job, none in this configuration.
    NewConfig,
    /// Windows of the job in this configuration.
    SameConfig,
}

/// The newest errors of one quantity at one horizon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
struct Errors(VecDeque<u32>);

impl Errors {
    fn push(&mut self, predicted: Estimate, seen: f64) {
        let error = ((predicted.mean - seen) / seen).abs();
        if !error.is_finite() {
            return;
        }
        let inside = predicted.low <= seen && seen <= predicted.high;
        let code = (error.min(ERROR_MAX) * 1e4).round() as u32;
        while self.0.len() >= KEPT_MAX {
            self.0.pop_front();
        }
        self.0.push_back(2 * code + u32::from(inside));
    }

    fn score(&self) -> Option<Score> {
        if self.0.is_empty() {
            return None;
        }
        let n = self.0.len() as f64;
        let sum: f64 = self.0.iter().map(|code| f64::from(code / 2)).sum();
        let inside = self.0.iter().filter(|code| *code % 2 == 1).count() as f64;
        Some(Score {
            windows: self.0.len() as u64,
            mape_percent: sum / 100.0 / n,
            coverage90_percent: 100.0 * inside / n,
        })
    }

    /// Applies this version's limits to stored errors.
    fn trim(&mut self) {
        while self.0.len() > KEPT_MAX {
            self.0.pop_front();
        }
        for code in &mut self.0 {
            *code = (*code).min(2 * (ERROR_MAX * 1e4) as u32 + 1);
        }
    }
}

/// The errors of one quantity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quantity {
    prior: Errors,
    new_config: Errors,
    same_config: Errors,
}

impl Quantity {
    /// Adds the error of a prediction.
    pub fn push(&mut self, horizon: Horizon, predicted: Estimate, seen: f64) {
        match horizon {
            Horizon::NewJob => &mut self.prior,
            Horizon::NewConfig => &mut self.new_config,
            Horizon::SameConfig => &mut self.same_config,
        }
        .push(predicted, seen);
    }

    /// Means over the errors kept.
    #[must_use]
    pub fn scores(&self) -> Scores {
        Scores {
            prior: self.prior.score(),
            new_config: self.new_config.score(),
            same_config: self.same_config.score(),
        }
    }
}

/// A predictor's errors, latencies and counters; it is stored and outlives the registry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Errors of the step rate.
    pub speed: Quantity,
    /// Errors of a GPU's power.
    pub power: Quantity,
    /// Milliseconds from a window's end to the next proposal, newest last.
    latency_ms: VecDeque<u64>,
    /// Surfaces accepted.
    pub proposals: u64,
    /// Surfaces refused.
    pub refused: u64,
    /// Windows for which a proposal had no point.
    pub uncovered: u64,
}

impl Record {
    /// Adds the time from a window's end to the proposal that followed.
    pub fn add_latency(&mut self, milliseconds: u64) {
        while self.latency_ms.len() >= KEPT_MAX {
            self.latency_ms.pop_front();
        }
        self.latency_ms.push_back(milliseconds);
    }

    /// Median and 90th percentile of the latencies.
    #[must_use]
    pub fn latency(&self) -> Option<Latency> {
        let mut sorted: Vec<u64> = self.latency_ms.iter().copied().collect();
        sorted.sort_unstable();
        let last = sorted.len().checked_sub(1)?;
        Some(Latency {
            proposals: sorted.len() as u64,
            ms_p50: sorted[last / 2],
            ms_p90: sorted[last * 9 / 10],
        })
    }

    /// A stored record within this version's limits.
    #[must_use]
    pub fn restored(mut self) -> Self {
        for quantity in [&mut self.speed, &mut self.power] {
            quantity.prior.trim();
            quantity.new_config.trim();
            quantity.same_config.trim();
        }
        while self.latency_ms.len() > KEPT_MAX {
            self.latency_ms.pop_front();
        }
        for count in [&mut self.proposals, &mut self.refused, &mut self.uncovered] {
            *count = (*count).min(INTEGER_MAX);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn estimate(mean: f64) -> Estimate {
        Estimate { mean, low: 0.9 * mean, high: 1.1 * mean }
    }

    #[test]
    fn error_is_relative_and_coverage_counts_values_within_the_interval() {
        let mut speed = Quantity::default();
        speed.push(Horizon::SameConfig, estimate(10.0), 10.5);
        speed.push(Horizon::SameConfig, estimate(10.0), 20.0);
        let again = speed.scores().same_config.unwrap();
        assert_eq!(again.windows, 2);
        assert!((again.mape_percent - (4.76 + 50.0) / 2.0).abs() < 0.01, "{again:?}");
        assert!((again.coverage90_percent - 50.0).abs() < 1e-9);
        assert_eq!(speed.scores().prior, None);
    }

    #[test]
    fn latency_has_median_and_90th_percentile() {
        let mut record = Record::default();
        assert_eq!(record.latency(), None);
        (1..=11).for_each(|ms| record.add_latency(ms));
        let latency = record.latency().unwrap();
        assert_eq!((latency.proposals, latency.ms_p50, latency.ms_p90), (11, 6, 10));
    }

    proptest! {
        /// For any input a record stays bounded and finite, and is unchanged by storing it.
        #[test]
        fn record_is_bounded_finite_and_survives_storage(
            seen in prop::collection::vec((any::<f64>(), any::<f64>(), any::<u64>()), 0..600)
        ) {
            let mut record = Record::default();
            for (mean, was, ms) in seen {
                record.power.push(Horizon::NewJob, estimate(mean), was);
                record.add_latency(ms);
            }
            let score = record.power.scores().prior;
            if let Some(score) = score {
                prop_assert!(score.windows <= KEPT_MAX as u64);
                prop_assert!((0.0..=100.0 * ERROR_MAX).contains(&score.mape_percent));
                prop_assert!((0.0..=100.0).contains(&score.coverage90_percent));
            }
            let text = serde_json::to_string(&record).unwrap();
            let back: Record = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(back.restored(), record);
        }
    }
}
