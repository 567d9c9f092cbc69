//! scaling: iteration time of a model over GPUs and batches, from a few small runs.
//!
//! 1, 2 and 4 GPUs at the smallest and the largest global batch are known; all other readings up to 64
//! GPUs are predicted. With `scaling+16`, 16 GPUs at the smallest batch are known too. The predictor also
//! knows the complete tables of the other models on the same GPU; files without a GPU name form one group.

use wattle_predictor::statistics::interval::time_of;
use wattle_predictor::surface::Configuration;

use super::{Of, Outcome};
use crate::baselines::{Plane, constant};
use crate::metrics::{Measure, Sample};
use crate::reader::{Reading, Readings};
use crate::trial::{Shown, Trial, alone};

/// Known numbers of GPUs.
const SMALL: [u32; 3] = [1, 2, 4];
/// Number of GPUs of the additional reading.
const FURTHER: u32 = 16;
/// Largest predicted number of GPUs.
const GPUS_MAX: u32 = 64;

pub(crate) fn at(reading: &Reading) -> Configuration {
    Configuration {
        gpus: reading.gpus,
        nodes: reading.nodes,
        global_batch: Some(reading.batch),
        ..alone()
    }
}

pub(crate) fn shown<'a>(model: &'a Readings, reading: &Reading) -> Shown<'a> {
    Shown {
        class: &model.class,
        at: at(reading),
        rate: Some(1.0 / reading.time_s),
        gpu_power_w: None,
    }
}

/// A predictor that knows the complete tables of the models on the same GPU, except for those with the
/// names of `left_out`.
fn others(models: &[Readings], left_out: &[&Readings]) -> Trial {
    let gpu_type = &left_out[0].file_gpu.gpu_type;
    let mut trial = Trial::new(&left_out[0].file_gpu);
    let is_out = |m: &Readings| left_out.iter().any(|l| l.model.eq_ignore_ascii_case(&m.model));
    // A second file of the same model would repeat the first.
    let mut names: Vec<String> = Vec::new();
    let mut all = Vec::new();
    for model in models.iter().filter(|m| m.file_gpu.gpu_type == *gpu_type && !is_out(m)) {
        let name = model.model.to_ascii_lowercase();
        if !names.contains(&name) {
            names.push(name);
            all.extend(model.readings.iter().map(|r| shown(model, r)));
        }
    }
    trial.learn(&all, true);
    trial
}

/// Known and predicted readings of a model.
pub(crate) struct Split<'a> {
    pub(crate) known: Vec<&'a Reading>,
    pub(crate) unknown: Vec<&'a Reading>,
}

/// Predicts readings of `models[me]` after `split`. The other models are split and predicted too, without
/// them and without this one, and their scores calibrate the intervals.
pub(crate) fn ask(
    models: &[Readings],
    me: usize,
    split: &dyn Fn(&Readings) -> Split<'_>,
) -> Vec<Sample> {
    let model = &models[me];
    let Split { known, unknown } = split(model);
    if known.is_empty() || unknown.is_empty() {
        return Vec::new();
    }
    fn rows<'a>(model: &'a Readings, readings: &[&Reading]) -> Vec<Shown<'a>> {
        readings.iter().map(|r| shown(model, r)).collect()
    }
    let mut trial = others(models, &[model]);
    let mut scores = Vec::new();
    let mut names = vec![model.model.to_ascii_lowercase()];
    for other in models.iter().filter(|m| m.file_gpu.gpu_type == model.file_gpu.gpu_type) {
        let name = other.model.to_ascii_lowercase();
        if names.contains(&name) {
            continue;
        }
        names.push(name);
        let Split { known, unknown } = split(other);
        let mut trial = others(models, &[model, other]);
        trial.learn(&rows(other, &known), false);
        scores.push(trial.scores(&rows(other, &unknown)));
    }
    trial.calibrate(scores.iter());
    trial.learn(&rows(model, &known), false);
    let x = |r: &Reading| {
        vec![f64::from(r.gpus).ln(), f64::from(r.nodes).ln(), f64::from(r.batch).ln()]
    };
    let plane: Vec<_> = known.iter().map(|r| (x(r), r.time_s.ln())).collect();
    let plane = Plane::fit(&plane);
    let far = |a: &Reading, b: &Reading| -> f64 {
        x(a).iter().zip(x(b)).map(|(a, b)| (a - b).powi(2)).sum()
    };
    let mut samples = Vec::new();
    for reading in unknown {
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

pub(crate) fn run(models: &[Readings], out: &mut Outcome) {
    for (me, model) in models.iter().enumerate() {
        let of = |protocol| Of {
            file_gpu: &model.file_gpu,
            model: Some(model.model.as_str()),
            protocol,
            quantity: "time",
        };
        let why = "it needs readings at 1, 2 or 4 GPUs and at others";
        let samples = ask(models, me, &|m| split(m, false));
        out.add(of("scaling"), Measure::Relative, &samples, why);
        if model.readings.iter().any(|r| r.gpus == FURTHER) {
            let samples = ask(models, me, &|m| split(m, true));
            out.add(of("scaling+16"), Measure::Relative, &samples, why);
        }
    }
}

fn split(model: &Readings, further: bool) -> Split<'_> {
    let smallest = model.readings.iter().map(|r| r.batch).min();
    let largest = model.readings.iter().map(|r| r.batch).max();
    let least = |r: &Reading| Some(r.batch) == smallest;
    let is_known = |r: &&Reading| {
        (SMALL.contains(&r.gpus) && (least(r) || Some(r.batch) == largest))
            || (further && r.gpus == FURTHER && least(r))
    };
    let (known, rest): (Vec<&Reading>, Vec<&Reading>) = model.readings.iter().partition(is_known);
    Split { known, unknown: rest.into_iter().filter(|r| r.gpus <= GPUS_MAX).collect() }
}
