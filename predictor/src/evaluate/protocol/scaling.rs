//! scaling: a model's iteration time over GPUs and batches from a few small runs.
//!
//! 1, 2 and 4 GPUs at the smallest and the largest global batch are known; all else up to 64 GPUs
//! is asked. `scaling+16` knows one reading more: 16 GPUs at the smallest batch. Beside it the
//! predictor knows the whole tables of the other models on the same GPU.

use crate::surface::Configuration;

use super::super::baselines::{Plane, constant};
use super::super::metrics::{Measure, Sample, time_of};
use super::super::reader::{Reading, Readings};
use super::super::trial::{Shown, Trial, alone};
use super::{Of, Outcome};

/// GPUs known.
const SMALL: [u32; 3] = [1, 2, 4];
/// GPUs of the further reading.
const FURTHER: u32 = 16;
/// Most GPUs asked for.
const GPUS_MAX: u32 = 64;

pub(super) fn at(reading: &Reading) -> Configuration {
    Configuration {
        gpus: reading.gpus,
        nodes: reading.nodes,
        global_batch: Some(reading.batch),
        ..alone()
    }
}

pub(super) fn shown<'a>(model: &'a Readings, reading: &Reading) -> Shown<'a> {
    Shown {
        class: &model.class,
        at: at(reading),
        rate: Some(1.0 / reading.time_s),
        card_power_w: None,
    }
}

/// A predictor that has seen the whole tables of the other models on the same GPU as `models[me]`.
pub(super) fn others(models: &[Readings], me: usize) -> Trial {
    let own = &models[me];
    let mut trial = Trial::new(&own.card.kind);
    let like =
        |m: &&Readings| m.card.kind == own.card.kind && !m.model.eq_ignore_ascii_case(&own.model);
    // Another file of a model that is known already says the same again.
    let mut names: Vec<String> = Vec::new();
    let mut all = Vec::new();
    for model in models.iter().filter(like) {
        let name = model.model.to_ascii_lowercase();
        if !names.contains(&name) {
            names.push(name);
            all.extend(model.readings.iter().map(|r| shown(model, r)));
        }
    }
    trial.learn(&all, true);
    trial
}

/// Predicts every asked reading, the known ones given.
pub(super) fn ask(
    base: &Trial,
    model: &Readings,
    is_known: &dyn Fn(&Reading) -> bool,
    is_asked: &dyn Fn(&Reading) -> bool,
) -> Vec<Sample> {
    let known: Vec<&Reading> = model.readings.iter().filter(|r| is_known(r)).collect();
    if known.is_empty() {
        return Vec::new();
    }
    let mut trial = base.clone();
    let rows: Vec<Shown<'_>> = known.iter().map(|r| shown(model, r)).collect();
    trial.learn(&rows, false);
    let x = |r: &Reading| {
        vec![f64::from(r.gpus).ln(), f64::from(r.nodes).ln(), f64::from(r.batch).ln()]
    };
    let plane: Vec<_> = known.iter().map(|r| (x(r), r.time_s.ln())).collect();
    let plane = Plane::fit(&plane);
    let far = |a: &Reading, b: &Reading| -> f64 {
        x(a).iter().zip(x(b)).map(|(a, b)| (a - b).powi(2)).sum()
    };
    let mut samples = Vec::new();
    for reading in model.readings.iter().filter(|r| is_asked(r) && !is_known(r)) {
        let Some(point) = trial.predict(&model.class, &at(reading)) else { continue };
        let Some(rate) = &point.steps_per_s else { continue };
        let near = known.iter().min_by(|a, b| far(a, reading).total_cmp(&far(b, reading)));
        let simple = [
            ("constant", constant(known.iter().map(|r| r.time_s))),
            ("nearest", near.map(|r| r.time_s)),
            ("linear", plane.as_ref().map(|p| p.at(&x(reading)).exp())),
        ];
        let simple = simple.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        samples.push(Sample { seen: reading.time_s, predicted: time_of(rate), simple });
    }
    samples
}

pub(in super::super) fn run(models: &[Readings], out: &mut Outcome) {
    for (me, model) in models.iter().enumerate() {
        let smallest = model.readings.iter().map(|r| r.batch).min();
        let largest = model.readings.iter().map(|r| r.batch).max();
        let small = |r: &Reading| {
            SMALL.contains(&r.gpus) && (Some(r.batch) == smallest || Some(r.batch) == largest)
        };
        let further = |r: &Reading| r.gpus == FURTHER && Some(r.batch) == smallest;
        let asked = |r: &Reading| r.gpus <= GPUS_MAX;
        let base = others(models, me);
        let why = "it needs readings at 1, 2 or 4 GPUs and at others";
        let of = |protocol| Of {
            card: &model.card,
            model: Some(model.model.as_str()),
            protocol,
            quantity: "time",
        };
        let samples = ask(&base, model, &small, &asked);
        out.add(of("scaling"), Measure::Relative, &samples, why);
        if model.readings.iter().any(further) {
            let samples = ask(&base, model, &|r| small(r) || further(r), &asked);
            out.add(of("scaling+16"), Measure::Relative, &samples, why);
        }
    }
}
