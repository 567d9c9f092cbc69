//! readings-1, readings-2 and readings-3: step time over GPUs and nodes from the first readings of a job.
//!
//! The fewest GPUs, then twice and four times as many on one node are known, all at the model's middle
//! batch; all other readings at that batch up to 64 GPUs are predicted. The batch is the global one in
//! tables over GPUs, and the one on each GPU in tables over placements. The predictor also knows the
//! complete tables of the other models on the same GPU.
//!
//! The rows by communication contain the readings whose share of communication is below or above one
//! half: one minus the parallel efficiency, against the fewest GPUs at that batch.

use std::collections::BTreeMap;

use super::scaling::{GPUS_MAX, Split};
use super::{Of, Outcome};
use crate::metrics::{Measure, Sample};
use wattle_measurements::reader::{FileGpu, Reading, Readings};

const PROTOCOLS: [(&str, &str); 3] = [
    ("readings-1", "readings-1-by-communication"),
    ("readings-2", "readings-2-by-communication"),
    ("readings-3", "readings-3-by-communication"),
];
/// Parallel efficiency below which communication takes most of the time.
const EFFICIENCY: f64 = 0.5;

/// Batch that is constant as a job scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Constant {
    Global,
    Local,
}

impl Constant {
    fn batch(self, reading: &Reading) -> u32 {
        match self {
            Self::Global => reading.batch,
            Self::Local => reading.batch / reading.gpus,
        }
    }

    /// Throughput of a GPU relative to `fewest`.
    fn efficiency(self, fewest: &Reading, reading: &Reading) -> f64 {
        let per_gpu = |r: &Reading| f64::from(r.batch) / (f64::from(r.gpus) * r.time_s);
        per_gpu(reading) / per_gpu(fewest)
    }

    /// The model's readings at its middle batch, in ascending order of GPUs and nodes.
    fn middle(self, model: &Readings) -> Vec<&Reading> {
        let mut batches: Vec<u32> = model.readings.iter().map(|r| self.batch(r)).collect();
        batches.sort_unstable();
        batches.dedup();
        let Some(middle) = batches.get(batches.len() / 2) else { return Vec::new() };
        let at = |r: &&Reading| self.batch(r) == *middle && r.gpus <= GPUS_MAX;
        let mut readings: Vec<&Reading> = model.readings.iter().filter(at).collect();
        readings.sort_by(|a, b| (a.gpus, a.nodes, &a.shape).cmp(&(b.gpus, b.nodes, &b.shape)));
        readings
    }

    pub(crate) fn split(self, model: &Readings, count: usize) -> Split<'_> {
        let readings = self.middle(model);
        let fewest = readings.first().map_or(1, |r| r.gpus);
        let wanted: Vec<u32> =
            [1, 2, 4].map(|times| times * fewest).into_iter().take(count).collect();
        let mut left = wanted;
        let (known, unknown) = readings.into_iter().partition(|r| {
            let place = left.iter().position(|gpus| r.nodes == 1 && *gpus == r.gpus);
            place.map(|i| left.remove(i)).is_some()
        });
        Split { known, unknown }
    }
}

/// Samples of all models, by number of known readings and by communication.
pub(crate) struct Few {
    constant: Constant,
    /// By GPU: its first file, then its samples.
    strata: BTreeMap<String, (FileGpu, Strata)>,
}

/// Samples by number of readings and by communication.
type Strata = [[Vec<Sample>; 2]; 3];

impl Few {
    pub(crate) fn new(constant: Constant) -> Self {
        Self { constant, strata: BTreeMap::new() }
    }

    /// Adds the rows of a model; `samples` are those of one, two and three known readings.
    pub(crate) fn add(
        &mut self,
        model: &Readings,
        samples: impl Iterator<Item = Vec<Sample>>,
        out: &mut Outcome,
    ) {
        let readings = self.constant.middle(model);
        let gpu = model.file_gpu.gpu_type.clone();
        let fresh = || (model.file_gpu.clone(), Strata::default());
        let (_, strata) = self.strata.entry(gpu).or_insert_with(fresh);
        for (i, samples) in samples.enumerate().take(PROTOCOLS.len()) {
            for sample in &samples {
                let at = |r: &&&Reading| r.time_s.to_bits() == sample.seen.to_bits();
                if let Some((fewest, reading)) = readings.first().zip(readings.iter().find(at)) {
                    let bound = self.constant.efficiency(fewest, reading) < EFFICIENCY;
                    strata[i][usize::from(bound)].push(sample.clone());
                }
            }
            if !samples.is_empty() {
                let name = Some(model.model.as_str());
                let protocol = PROTOCOLS[i].0;
                let of = Of { file_gpu: &model.file_gpu, model: name, protocol, quantity: "time" };
                out.add(of, Measure::Relative, &samples, "");
            }
        }
    }

    /// Adds the rows by communication.
    pub(crate) fn finish(self, out: &mut Outcome) {
        for (file_gpu, strata) in self.strata.values() {
            for ((_, protocol), strata) in PROTOCOLS.iter().zip(strata) {
                for (name, samples) in ["below half", "above half"].into_iter().zip(strata) {
                    let of = Of { file_gpu, model: Some(name), protocol, quantity: "time" };
                    if !samples.is_empty() {
                        out.add(of, Measure::Relative, samples, "");
                    }
                }
            }
        }
    }
}
