//! clocks-4: time and energy of a pipeline stage under clocks that it was not seen under.
//!
//! Four clocks of each direction of each stage are known, spread evenly over the ascending ones (the
//! indices nearest to 0, 1/3, 2/3 and 1 of the range). The predictor also knows the same four clocks of
//! the file's other stages, and nothing else. Intervals are calibrated on the errors of the other stages.
//! Energy is power times time, with an interval calibrated on energies.

use wattle_predictor::configurations::Configuration;
use wattle_predictor::method::Method;
use wattle_predictor::statistics::interval::time_of;

use super::known::{KnownJob, split, trials};
use super::{Of, Outcome};
use crate::baselines::simple;
use crate::metrics::{Measure, Sample};
use crate::trial::{Shown, alone, clock};
use wattle_measurements::reader::stages::{ClockReading, StageJob, Stages};

/// Number of known clocks.
const KNOWN: usize = 4;

fn at(reading: &ClockReading) -> Configuration {
    Configuration { clock_max: clock(reading.mhz), ..alone() }
}

fn shown<'a>(job: &'a StageJob, reading: &ClockReading) -> Shown<'a> {
    Shown {
        class: &job.class,
        at: at(reading),
        rate: Some(1.0 / reading.time_s),
        gpu_power_w: Some(reading.energy_j / reading.time_s),
    }
}

/// Indices of the known clocks among `n`.
fn four(n: usize) -> [usize; KNOWN] {
    std::array::from_fn(|i| ((i * (n - 1)) as f64 / (KNOWN - 1) as f64).round() as usize)
}

pub(crate) fn run(stages: &Stages, method: Method, out: &mut Outcome) {
    let jobs: Vec<&StageJob> = stages.jobs.iter().filter(|j| j.readings.len() > KNOWN).collect();
    let parts = |job: &StageJob| split(&job.readings, four(job.readings.len()));
    let known_jobs: Vec<KnownJob<'_>> = jobs
        .iter()
        .map(|job| {
            let (known, unknown) = parts(job);
            KnownJob {
                class: &job.class,
                known: known.iter().map(|r| shown(job, r)).collect(),
                unknown: unknown.iter().map(|r| shown(job, r)).collect(),
            }
        })
        .collect();
    let (mut times, mut energies) = (Vec::new(), Vec::new());
    for (job, trial) in jobs.iter().zip(trials(&stages.file_gpu, method, &known_jobs)) {
        let (known, unknown) = parts(job);
        let by = |of: &dyn Fn(&ClockReading) -> f64| -> Vec<(f64, f64)> {
            known.iter().map(|r| (f64::from(r.mhz), of(r))).collect()
        };
        let (time, energy) = (by(&|r| r.time_s), by(&|r| r.energy_j));
        for reading in &unknown {
            let Some(point) = trial.predict(&job.class, &at(reading)) else { continue };
            let Some(rate) = &point.steps_per_s else { continue };
            let mhz = f64::from(reading.mhz);
            let predicted = time_of(rate);
            let Some(joules) = trial.energy(&job.class, &at(reading)) else { continue };
            times.push(Sample { seen: reading.time_s, predicted, simple: simple(&time, mhz) });
            energies.push(Sample {
                seen: reading.energy_j,
                predicted: joules,
                simple: simple(&energy, mhz),
            });
        }
    }
    for (quantity, samples) in [("time", times), ("energy", energies)] {
        let why = "no stage has five clocks or more";
        let of = Of { file_gpu: &stages.file_gpu, model: None, protocol: "clocks-4", quantity };
        out.add(of, Measure::Relative, &samples, why);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn known_clocks_are_spread_evenly() {
        assert_eq!(super::four(38), [0, 12, 25, 37]);
        assert_eq!(super::four(5), [0, 1, 3, 4]);
    }
}
