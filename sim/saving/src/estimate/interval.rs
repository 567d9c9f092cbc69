//! The 90 % interval of a saving.
//!
//! Two independent sources are combined as a sum of variances:
//!
//! * The spread of the saving over seeds. Each seed draws the workloads that the trace does not name
//!   and the noise of the predictor's measurements again. With n seeds the half-width is that of a
//!   prediction interval, `t * s * sqrt(1 + 1/n)`, with Student's t.
//! * The error of the catalog's power and speed at other caps, clocks and sizes than the default. It
//!   is assumed to be as large as the predictor's error in the same run, independent between
//!   workloads, and to apply to the energy of all jobs whose energy differs between the schedules.

use std::collections::BTreeMap;

use wattle_simulator::{Prediction, Scenario};

use crate::schedule::Schedule;

/// The 95 % quantile of Student's t distribution for 1 to 10 degrees of freedom (NIST/SEMATECH
/// e-Handbook of Statistical Methods, table 1.3.6.7.2), then that of the normal distribution.
const T_95: [f64; 10] = [6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812];
const NORMAL_95: f64 = 1.645;

/// Least relative difference of a job's energy that counts as a difference.
const DIFFERS: f64 = 1e-3;

/// Half-width of the interval of one further value, given values of which `values` is a sample; 0
/// for fewer than two.
#[must_use]
pub(super) fn spread(values: &[f64]) -> f64 {
    let n = values.len();
    if n < 2 {
        return 0.0;
    }
    let count = n as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let deviation = (squares / (count - 1.0)).sqrt();
    let t = T_95.get(n - 2).copied().unwrap_or(NORMAL_95);
    t * deviation * (1.0 + 1.0 / count).sqrt()
}

/// Mean absolute relative errors of predicted power and speed in a run, combined; `None` if no prediction of the
/// run was compared with a measurement.
#[must_use]
pub(super) fn prediction_error(prediction: Option<&Prediction>) -> Option<f64> {
    let prediction = prediction?;
    let known = [prediction.power.mape, prediction.speed.mape].into_iter().flatten();
    known.map(|percent| percent / 100.0).reduce(f64::hypot)
}

/// Half-width from errors of power and speed, kWh; `None` if they are not known. `scenario` holds the jobs of both
/// schedules.
#[must_use]
pub(super) fn model_error(
    scenario: &Scenario,
    baseline: &Schedule,
    wattle: &Schedule,
) -> Option<f64> {
    let mut by_workload: BTreeMap<&str, f64> = BTreeMap::new();
    let jobs = scenario.jobs.iter().zip(&baseline.detail.jobs).zip(&wattle.detail.jobs);
    for ((job, before), after) in jobs {
        if (after.energy_kwh - before.energy_kwh).abs() > DIFFERS * before.energy_kwh {
            *by_workload.entry(job.workload.as_str()).or_default() += after.energy_kwh;
        }
    }
    // The standard deviation of a normal error whose mean absolute value is 1.
    let per_absolute = (std::f64::consts::PI / 2.0).sqrt();
    let squares: f64 = by_workload.values().map(|kwh| kwh * kwh).sum();
    Some(NORMAL_95 * per_absolute * prediction_error(wattle.prediction.as_ref())? * squares.sqrt())
}

#[cfg(test)]
mod tests {
    use wattle_simulator::PredictionError;

    use super::*;

    #[test]
    fn an_error_that_was_not_measured_is_not_zero() {
        let of = |power: Option<f64>, speed: Option<f64>| {
            let error = |mape| PredictionError { mape, ..PredictionError::default() };
            let prediction =
                Prediction { power: error(power), speed: error(speed), ..Prediction::default() };
            prediction_error(Some(&prediction))
        };
        assert_eq!(of(None, None), None);
        assert_eq!(of(None, Some(4.0)), Some(0.04));
        assert!(of(Some(3.0), Some(4.0)).is_some_and(|error| (error - 0.05).abs() < 1e-12));
        assert_eq!(prediction_error(None), None);
    }

    #[test]
    fn spread_is_the_prediction_interval_of_a_normal_sample() {
        // Mean 2, deviation 1, three values: 2.920 * sqrt(4/3).
        assert!((spread(&[1.0, 2.0, 3.0]) - 2.920 * (4.0_f64 / 3.0).sqrt()).abs() < 1e-9);
        assert_eq!((spread(&[5.0]), spread(&[4.0, 4.0])), (0.0, 0.0));
        assert!(spread(&[0.0; 40]).abs() < 1e-12);
    }
}
