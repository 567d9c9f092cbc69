//! Metrics of the expected starts and ends of jobs: how many, and their errors.

use wattle_runtime::metrics::{Gauges, Metrics};

use crate::live::measures::ExpectedMeasures;

/// The gauges of expected times.
#[derive(Clone)]
pub(super) struct ExpectedGauges {
    error: Gauges<1>,
    coverage: Gauges<1>,
    forecasts: Gauges<1>,
    queued: Gauges<1>,
}

impl ExpectedGauges {
    pub(super) fn new(metrics: &Metrics) -> Self {
        Self {
            error: metrics.gauges(
                "wattle_expected_error_seconds_median",
                "Median absolute error of the expected starts or ends of jobs",
                ["event"],
            ),
            coverage: metrics.gauges(
                "wattle_expected_coverage_ratio",
                "Share of the expected starts or ends whose 90 % interval held the actual instant",
                ["event"],
            ),
            forecasts: metrics.gauges(
                "wattle_expected_forecasts",
                "Number of expected starts or ends whose actual instant is known",
                ["event"],
            ),
            queued: metrics.gauges(
                "wattle_expected_queued_jobs",
                "Number of queued jobs whose start is expected at a time, or not known",
                ["start"],
            ),
        }
    }

    pub(super) fn set(&self, expected: Option<ExpectedMeasures>) {
        let Some(expected) = expected else { return };
        for (event, errors) in [("start", expected.start), ("end", expected.end)] {
            self.error.set([event], errors.error_s);
            self.coverage.set([event], errors.coverage);
            self.forecasts.set([event], Some(errors.forecasts as f64));
        }
        self.queued.set(["expected"], Some(expected.with_start as f64));
        self.queued.set(["unknown"], Some(expected.without_start as f64));
    }
}
