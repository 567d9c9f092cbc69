//! placement: a model's step time over placements and batches from twelve readings.
//!
//! Placements 1, 2, 4, 11, 22 and 111 at two local batches (places n/4 and 3n/4 of the sorted ones)
//! are known, all else is asked. Beside it the predictor knows the whole tables of the other models
//! on the same GPU.

use super::super::metrics::Measure;
use super::super::reader::{Reading, Readings};
use super::scaling::{ask, others};
use super::{Of, Outcome};

const KNOWN: [&str; 6] = ["1", "2", "4", "11", "22", "111"];

fn local(reading: &Reading) -> u32 {
    reading.batch / reading.gpus
}

pub(in super::super) fn run(models: &[Readings], out: &mut Outcome) {
    for (me, model) in models.iter().enumerate() {
        let mut batches: Vec<u32> = model.readings.iter().map(local).collect();
        batches.sort_unstable();
        batches.dedup();
        let two = [batches.len() / 4, 3 * batches.len() / 4].map(|i| batches.get(i).copied());
        let known =
            |r: &Reading| KNOWN.contains(&r.shape.as_str()) && two.contains(&Some(local(r)));
        let samples = ask(&others(models, me), model, &known, &|_| true);
        let why = "it needs readings at the placements 1, 2, 4, 11, 22 or 111 and at others";
        let (card, name) = (&model.card, Some(model.model.as_str()));
        let of = Of { card, model: name, protocol: "placement", quantity: "time" };
        out.add(of, Measure::Relative, &samples, why);
    }
}
