//! Errors of predictions, aggregated into rows.

use std::collections::BTreeMap;

use serde::Serialize;
use wattle_common::messages::Estimate;
use wattle_common::numerics::statistics::quantile_linear;

/// One row of the report. Shares (`mape`, `coverage90`) are fractions of 1.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// File, relative to the named folder.
    pub file: String,
    /// GPU as written in the file, if named.
    pub gpu: Option<String>,
    /// Model, for protocols by model.
    pub model: Option<String>,
    /// Protocol.
    pub protocol: String,
    /// Predicted quantity.
    pub quantity: String,
    /// Number of predictions.
    pub n: usize,
    /// Mean of |predicted / measured - 1|; `None` for a decision.
    pub mape: Option<f64>,
    /// Mean of |predicted - measured| in the quantity's unit (s, W, J, or a share of the exclusive
    /// speed); for a decision, the share of wrong ones.
    pub mae: f64,
    /// 90 % quantile of the error, which is the one that `baselines` uses.
    pub p90: Option<f64>,
    /// Share of measurements inside their 90 % interval.
    pub coverage90: Option<f64>,
    /// Error of the simple predictors: MAPE, or MAE for relative speeds and decisions.
    pub baselines: BTreeMap<String, f64>,
}

/// Identity of a row.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Label {
    pub(crate) file: String,
    pub(crate) gpu: Option<String>,
    pub(crate) model: Option<String>,
    pub(crate) protocol: &'static str,
    pub(crate) quantity: &'static str,
}

/// Error measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Measure {
    /// Relative: times, power, energy.
    Relative,
    /// Absolute: relative speeds.
    Absolute,
    /// Right or wrong: 0 or 1.
    Decision,
}

/// One prediction with the measurement.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sample {
    pub(crate) seen: f64,
    pub(crate) predicted: Estimate,
    /// Predictions of the simple predictors by name; the same names in all samples of a row.
    pub(crate) simple: Vec<(&'static str, f64)>,
}

impl Row {
    /// One row of `samples`; `None` for none.
    pub(crate) fn of(label: Label, measure: Measure, samples: &[Sample]) -> Option<Self> {
        if samples.is_empty() {
            return None;
        }
        let mean = |error: &dyn Fn(&Sample) -> f64| {
            samples.iter().map(error).sum::<f64>() / samples.len() as f64
        };
        let error = |seen: f64, predicted: f64| match measure {
            Measure::Relative => (predicted / seen - 1.0).abs(),
            Measure::Absolute | Measure::Decision => (predicted - seen).abs(),
        };
        let decision = measure == Measure::Decision;
        let inside = |s: &Sample| {
            f64::from(u8::from(s.predicted.low <= s.seen && s.seen <= s.predicted.high))
        };
        let simple = |i: usize| {
            let name = samples[0].simple[i].0;
            (name.to_owned(), mean(&|s| error(s.seen, s.simple[i].1)))
        };
        let mut errors: Vec<f64> =
            samples.iter().map(|s| error(s.seen, s.predicted.mean)).collect();
        Some(Self {
            file: label.file,
            gpu: label.gpu,
            model: label.model,
            protocol: label.protocol.to_owned(),
            quantity: label.quantity.to_owned(),
            n: samples.len(),
            mape: (!decision).then(|| mean(&|s| (s.predicted.mean / s.seen - 1.0).abs())),
            mae: mean(&|s| (s.predicted.mean - s.seen).abs()),
            p90: if decision { None } else { quantile_linear(&mut errors, 0.9) },
            coverage90: (!decision).then(|| mean(&inside)),
            baselines: (0..samples[0].simple.len()).map(simple).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(seen: f64, mean: f64, half: f64, simple: f64) -> Sample {
        let predicted = Estimate { mean, low: mean - half, high: mean + half };
        Sample { seen, predicted, simple: vec![("constant", simple)] }
    }

    fn row(measure: Measure, samples: &[Sample]) -> Option<Row> {
        let label = Label {
            file: "f".into(),
            gpu: None,
            model: None,
            protocol: "caps-3",
            quantity: "time",
        };
        Row::of(label, measure, samples)
    }

    #[test]
    fn errors_follow_their_measure() {
        let samples = [sample(2.0, 3.0, 0.5, 2.0), sample(4.0, 4.0, 0.1, 8.0)];
        let relative = row(Measure::Relative, &samples).unwrap();
        assert_eq!((relative.n, relative.mape, relative.mae), (2, Some(0.25), 0.5));
        assert_eq!(relative.coverage90, Some(0.5));
        assert!((relative.p90.unwrap() - 0.45).abs() < 1e-12);
        assert!((relative.baselines["constant"] - 0.5).abs() < 1e-12);
        let absolute = row(Measure::Absolute, &samples).unwrap();
        assert!((absolute.baselines["constant"] - 2.0).abs() < 1e-12);
        assert!((absolute.p90.unwrap() - 0.9).abs() < 1e-12);
        assert_eq!(row(Measure::Decision, &samples).unwrap().mape, None);
        assert_eq!(row(Measure::Relative, &[]), None);
    }
}
