//! isolated: step time of a model over GPUs, batches and spread.
//!
//! At the smallest and the largest batch of one GPU, 1, 2 and 4 consolidated GPUs and 2 spread ones are
//! known; all other readings are predicted. The predictor also knows the complete tables of the other
//! models on the same GPU.

use super::few::{Constant, Few};
use super::scaling::{Split, Splitter, ask};
use super::{Of, Outcome};
use crate::metrics::Measure;
use wattle_measurements::reader::isolated::TOGETHER;
use wattle_measurements::reader::{Reading, Readings};
use wattle_predictor::method::Method;

fn local(reading: &Reading) -> u32 {
    reading.batch / reading.gpus
}

pub(crate) fn run(models: &[Readings], method: Method, out: &mut Outcome) {
    let mut strata = Few::new(Constant::Local);
    for (me, model) in models.iter().enumerate() {
        let (file_gpu, name) = (&model.file_gpu, Some(model.model.as_str()));
        let of = Of { file_gpu, model: name, protocol: "isolated", quantity: "time" };
        let splits: [&Splitter<'_>; 4] =
            [&split, &|m| Constant::Local.split(m, 1), &|m| Constant::Local.split(m, 2), &|m| {
                Constant::Local.split(m, 3)
            }];
        let mut samples = ask(models, method, me, &splits).into_iter();
        let gpu = file_gpu.gpu.as_deref().unwrap_or("an unnamed GPU");
        let why =
            format!("{name} on {gpu} has readings at one number of GPUs only", name = model.model);
        out.add(of, Measure::Relative, &samples.next().unwrap_or_default(), &why);
        strata.add(model, samples, out);
    }
    strata.finish(out);
}

fn split(model: &Readings) -> Split<'_> {
    let smallest = model.readings.iter().map(local).min();
    let largest = model.readings.iter().map(local).max();
    let is_known = |r: &&Reading| {
        let few = if r.shape == TOGETHER { [1, 2, 4].contains(&r.gpus) } else { r.gpus == 2 };
        few && (Some(local(r)) == smallest || Some(local(r)) == largest)
    };
    let (known, unknown): (Vec<&Reading>, Vec<&Reading>) =
        model.readings.iter().partition(is_known);
    // A model that only ran on one number of GPUs cannot be evaluated.
    let one = model.readings.iter().all(|r| r.gpus == 1);
    Split { known, unknown: if one { Vec::new() } else { unknown } }
}
