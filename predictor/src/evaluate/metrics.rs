//! Errors of predictions against what was measured, gathered into rows.

use std::collections::BTreeMap;

use serde::Serialize;
use wattle_common::messages::Estimate;
use wattle_common::numerics::statistics::quantile_linear;

/// One line of the result. Shares (`mape`, `coverage90`) are fractions of 1.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The file, below the folder that was named.
    pub file: String,
    /// The GPU, as the file writes it; `None` where it names none.
    pub gpu: Option<String>,
    /// The model, where the protocol is per model.
    pub model: Option<String>,
    /// The protocol.
    pub protocol: String,
    /// What was predicted.
    pub quantity: String,
    /// Predictions.
    pub n: usize,
    /// Mean of |predicted / seen - 1|; `None` for a decision.
    pub mape: Option<f64>,
    /// Mean of |predicted - seen|, in the quantity's unit (s, W, J, or a share of the speed alone);
    /// of a decision, the share that was wrong.
    pub mae: f64,
    /// The error that 90 % stay below: of the kind `baselines` has.
    pub p90: Option<f64>,
    /// The share of what was seen that lies inside its 90 % interval.
    pub coverage90: Option<f64>,
    /// The same predictions by simple means: their MAPE, of relative speeds and decisions their MAE.
    pub baselines: BTreeMap<String, f64>,
}

/// What is said of a row beside its figures.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Label {
    pub(super) file: String,
    pub(super) gpu: Option<String>,
    pub(super) model: Option<String>,
    pub(super) protocol: &'static str,
    pub(super) quantity: &'static str,
}

/// How errors count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measure {
    /// In shares of what was seen: times, watts, joules.
    Relative,
    /// As they are: shares of a speed.
    Absolute,
    /// Right or wrong: 1 or 0.
    Decision,
}

/// One prediction and what was seen.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sample {
    pub(super) seen: f64,
    pub(super) predicted: Estimate,
    /// By name, the simple means' predictions; each sample of a row has the same names.
    pub(super) simple: Vec<(&'static str, f64)>,
}

impl Row {
    /// `samples` in one row; `None` for none.
    pub(super) fn of(label: Label, measure: Measure, samples: &[Sample]) -> Option<Self> {
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
    fn errors_are_counted_as_they_say() {
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
