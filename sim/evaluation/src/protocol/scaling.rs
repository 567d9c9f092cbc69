//! scaling: iteration time of a model over GPUs and batches, from a few small runs.
//!
//! 1, 2 and 4 GPUs at the smallest and the largest global batch are known; all other readings up to 64
//! GPUs are predicted. With `scaling+16`, 16 GPUs at the smallest batch are known too. The predictor also
//! knows the complete tables of the other models on the same GPU; files without a GPU name form one group.

use wattle_predictor::calibration::Calibration;
use wattle_predictor::configurations::Configuration;
use wattle_predictor::method::Method;
use wattle_predictor::statistics::interval::time_of;

use super::few::{Constant, Few};
use super::{Of, Outcome};
use crate::baselines::{Plane, constant};
use crate::metrics::{Measure, Sample};
use crate::trial::{Shown, Trial, alone};
use wattle_measurements::reader::{Reading, Readings};

/// Known numbers of GPUs.
const SMALL: [u32; 3] = [1, 2, 4];
/// Number of GPUs of the additional reading.
const FURTHER: u32 = 16;
/// Largest predicted number of GPUs.
pub(crate) const GPUS_MAX: u32 = 64;

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
fn others(models: &[Readings], method: Method, left_out: &[&Readings]) -> Trial {
    let gpu_type = &left_out[0].file_gpu.gpu_type;
    let mut trial = Trial::new(&left_out[0].file_gpu, method);
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

/// Selects the known readings of a model.
pub(crate) type Splitter<'s> = dyn for<'a> Fn(&'a Readings) -> Split<'a> + 's;

fn rows<'a>(model: &'a Readings, readings: &[&Reading]) -> Vec<Shown<'a>> {
    readings.iter().map(|r| shown(model, r)).collect()
}

/// Predicts readings of `models[me]` after each of `splits`. The other models are split and predicted too,
/// without them and without this one, and their scores calibrate the intervals.
pub(crate) fn ask(
    models: &[Readings],
    method: Method,
    me: usize,
    splits: &[&Splitter<'_>],
) -> Vec<Vec<Sample>> {
    let model = &models[me];
    let usable = |split: &&&Splitter<'_>| {
        let Split { known, unknown } = split(model);
        !known.is_empty() && !unknown.is_empty()
    };
    if !splits.iter().any(|split| usable(&split)) {
        return vec![Vec::new(); splits.len()];
    }
    let base = others(models, method, &[model]);
    let mut scores: Vec<Vec<Calibration>> = vec![Vec::new(); splits.len()];
    let mut names = vec![model.model.to_ascii_lowercase()];
    for other in models.iter().filter(|m| m.file_gpu.gpu_type == model.file_gpu.gpu_type) {
        let name = other.model.to_ascii_lowercase();
        if names.contains(&name) {
            continue;
        }
        names.push(name);
        let base = others(models, method, &[model, other]);
        for (split, scores) in splits.iter().zip(&mut scores) {
            let Split { known, unknown } = split(other);
            let mut trial = base.clone();
            trial.learn(&rows(other, &known), false);
            scores.push(trial.scores(&rows(other, &unknown)));
        }
    }
    let one = |(split, scores): (&&Splitter<'_>, &Vec<Calibration>)| {
        if !usable(&split) {
            return Vec::new();
        }
        let mut trial = base.clone();
        trial.calibrate(scores.iter());
        samples(trial, model, split(model))
    };
    splits.iter().zip(&scores).map(one).collect()
}

/// Predictions of a model's unknown readings by `trial`, which learns the known ones.
fn samples(mut trial: Trial, model: &Readings, Split { known, unknown }: Split<'_>) -> Vec<Sample> {
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

pub(crate) fn run(models: &[Readings], method: Method, out: &mut Outcome) {
    let mut strata = Few::new(Constant::Global);
    for (me, model) in models.iter().enumerate() {
        let of = |protocol| Of {
            file_gpu: &model.file_gpu,
            model: Some(model.model.as_str()),
            protocol,
            quantity: "time",
        };
        let why = "it needs readings at 1, 2 or 4 GPUs and at others";
        let splits: [&Splitter<'_>; 5] = [
            &|m| split(m, false),
            &|m| split(m, true),
            &|m| Constant::Global.split(m, 1),
            &|m| Constant::Global.split(m, 2),
            &|m| Constant::Global.split(m, 3),
        ];
        let mut samples = ask(models, method, me, &splits).into_iter();
        out.add(of("scaling"), Measure::Relative, &samples.next().unwrap_or_default(), why);
        let further = samples.next().unwrap_or_default();
        if model.readings.iter().any(|r| r.gpus == FURTHER) {
            out.add(of("scaling+16"), Measure::Relative, &further, why);
        }
        strata.add(model, samples, out);
    }
    strata.finish(out);
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
