//! The errors of the expected starts and ends of a run, as a live placer computes them.

use serde::Serialize;
use wattle_common::messages::ExpectedKind;
use wattle_placer::expected::{Errors, Expected, KINDS};

use super::seconds;

/// The errors of a run's forecasts. Those of a job's start count if it waited.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExpectedOutcome {
    /// Of starts, at the submission of each job.
    pub start_at_submission: ExpectedErrors,
    /// Of starts, later.
    pub start_later: ExpectedErrors,
    /// Of ends, at the submission of each job.
    pub end_at_submission: ExpectedErrors,
    /// Of ends, later.
    pub end_later: ExpectedErrors,
    /// Of starts at the submission of each job, by time limits: of backfilling with the limits as lengths.
    pub start_at_submission_by_limits: ExpectedErrors,
    /// Of starts, later, by time limits.
    pub start_later_by_limits: ExpectedErrors,
    /// Ratios of actual to expected times ahead by kind of forecast.
    pub ratios: Vec<ExpectedRatios>,
}

/// Ratios of actual to expected times ahead, each plus a minute, before the correction by their median.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExpectedRatios {
    /// The kind of forecast.
    pub kind: ExpectedKind,
    /// Number of forecasts.
    pub forecasts: u32,
    /// 5th percentile, median and 95th percentile, in bins of an eighth of a doubling.
    pub percentiles: [f64; 3],
}

/// The errors of forecasts of one kind.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExpectedErrors {
    /// Number of forecasts whose instant is known.
    pub forecasts: u64,
    /// Median absolute error, in bins of a quarter of a doubling.
    pub error_s_median: Option<f64>,
    /// The absolute error that nine of ten do not exceed.
    pub error_s_p90: Option<f64>,
    /// The share of forecasts whose 90 % interval holds the instant; by time limits, that were not too early.
    pub coverage: Option<f64>,
}

impl ExpectedErrors {
    fn of(errors: &Errors) -> Self {
        let error = |share| errors.error_s(share).map(|error_s| seconds(error_s * 1e6));
        Self {
            forecasts: errors.forecasts(),
            error_s_median: error(0.5),
            error_s_p90: error(0.9),
            coverage: errors.coverage(),
        }
    }
}

impl ExpectedOutcome {
    pub(crate) fn of(expected: &Expected) -> Self {
        let ratios = |kind| {
            let (forecasts, percentiles) = expected.errors().ratios_of_kind(kind);
            let percentiles = percentiles.map(|ratio| (ratio * 1e3).round() / 1e3);
            (forecasts > 0).then_some(ExpectedRatios { kind, forecasts, percentiles })
        };
        let of = |of_end, first| ExpectedErrors::of(&expected.errors().of(of_end, first));
        let by_limits = |first| {
            let starts = expected.by_limits().map(|limits| limits.errors().of(false, first));
            ExpectedErrors::of(&starts.unwrap_or_default())
        };
        Self {
            start_at_submission: of(false, true),
            start_later: of(false, false),
            end_at_submission: of(true, true),
            end_later: of(true, false),
            start_at_submission_by_limits: by_limits(true),
            start_later_by_limits: by_limits(false),
            ratios: KINDS.into_iter().filter_map(ratios).collect(),
        }
    }

    /// The errors with their names.
    pub(super) fn rows(&self) -> [(&'static str, &ExpectedErrors); 6] {
        [
            ("start, at submission", &self.start_at_submission),
            ("by time limits", &self.start_at_submission_by_limits),
            ("start, later", &self.start_later),
            ("by time limits", &self.start_later_by_limits),
            ("end, at submission", &self.end_at_submission),
            ("end, later", &self.end_later),
        ]
    }
}
