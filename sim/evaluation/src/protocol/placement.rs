//! placement: step time of a model over placements and batches, from twelve readings.
//!
//! Placements 1, 2, 4, 11, 22 and 111 at two local batches (indices n/4 and 3n/4 in ascending order) are
//! known; all other readings are predicted. The predictor also knows the complete tables of the other
//! models on the same GPU.

use wattle_common::rng::Stream;

use super::few::{Constant, Few};
use super::scaling::{Split, Splitter, ask};
use super::{Of, Outcome};
use crate::metrics::Measure;
use wattle_measurements::reader::{Reading, Readings};
use wattle_predictor::method::Method;

/// Seed of the order of scores.
const SEED: u64 = 7;
const KNOWN: [&str; 6] = ["1", "2", "4", "11", "22", "111"];

fn local(reading: &Reading) -> u32 {
    reading.batch / reading.gpus
}

pub(crate) fn run(models: &[Readings], method: Method, out: &mut Outcome) {
    let mut strata = Few::new(Constant::Local);
    for (me, model) in models.iter().enumerate() {
        let splits: [&Splitter<'_>; 4] =
            [&split, &|m| Constant::Local.split(m, 1), &|m| Constant::Local.split(m, 2), &|m| {
                Constant::Local.split(m, 3)
            }];
        let mut samples = ask(models, method, me, &splits).into_iter();
        let why = "it needs readings at the placements 1, 2, 4, 11, 22 or 111 and at others";
        let (file_gpu, name) = (&model.file_gpu, Some(model.model.as_str()));
        let of = Of { file_gpu, model: name, protocol: "placement", quantity: "time" };
        out.add(of, Measure::Relative, &samples.next().unwrap_or_default(), why);
        strata.add(model, samples, out);
    }
    strata.finish(out);
}

fn split(model: &Readings) -> Split<'_> {
    let mut batches: Vec<u32> = model.readings.iter().map(local).collect();
    batches.sort_unstable();
    batches.dedup();
    let two = [batches.len() / 4, 3 * batches.len() / 4].map(|i| batches.get(i).copied());
    let is_known =
        |r: &&Reading| KNOWN.contains(&r.shape.as_str()) && two.contains(&Some(local(r)));
    let (known, mut unknown): (Vec<&Reading>, Vec<&Reading>) =
        model.readings.iter().partition(is_known);
    // Shuffled, because only the newest scores are kept.
    let mut rng = Stream::new(SEED, &model.model);
    for i in (1..unknown.len()).rev() {
        unknown.swap(i, rng.below(i as u64 + 1) as usize);
    }
    Split { known, unknown }
}
