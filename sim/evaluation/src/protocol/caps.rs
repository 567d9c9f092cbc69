//! caps-3, caps-3-new and caps-1: time and power of a job under caps that it was not seen under.
//!
//! caps-3: of every job with five caps or more, the highest, middle (index n/2 in ascending order) and
//! lowest are known. The predictor also knows the same three caps of the file's other jobs, and nothing
//! else. Intervals are calibrated on the errors of the other jobs.
//!
//! caps-3-new: the same three caps of a job are known, and all caps of all other networks. caps-1: only
//! the job's highest cap is known, and all caps of all other networks. For both, intervals are calibrated
//! on each of these networks in turn, predicted without it and without the evaluated one.

use std::collections::BTreeSet;

use wattle_predictor::calibration::Calibration;
use wattle_predictor::configurations::Configuration;
use wattle_predictor::method::Method;
use wattle_predictor::statistics::interval::time_of;

use super::known::{KnownJob, split, trials};
use super::{Of, Outcome};
use crate::baselines::{Plane, nearest, simple};
use crate::forms::Forms;
use crate::metrics::{Measure, Sample};
use crate::trial::{Shown, Trial, alone, cap};
use wattle_measurements::reader::caps::{CapJob, CapReading, Caps};

/// Smallest number of caps of an evaluated job.
const CAPS_MIN: usize = 5;
/// Steps in an epoch, so that step rates have a common magnitude.
const STEPS: f64 = 1_000.0;
/// Network with noisy readings; a row without it shows the error of the curves.
const NOISY: &str = "ncf";

fn at(job: &CapJob, reading: &CapReading) -> Configuration {
    Configuration { cap: cap(reading.cap_w), global_batch: job.batch, ..alone() }
}

fn shown<'a>(job: &'a CapJob, reading: &CapReading) -> Shown<'a> {
    Shown {
        class: &job.class,
        at: at(job, reading),
        rate: Some(STEPS / reading.time_s),
        gpu_power_w: Some(reading.power_w),
    }
}

/// Samples of time and of power, with their networks.
#[derive(Default)]
struct Samples {
    time: Vec<(String, Sample)>,
    power: Vec<(String, Sample)>,
}

impl Samples {
    /// Predicts `reading`; `simple` contains time and power of the simple predictors.
    fn ask(
        &mut self,
        trial: &Trial,
        job: &CapJob,
        reading: &CapReading,
        simple: Vec<(&'static str, f64, f64)>,
    ) {
        let Some(point) = trial.predict(&job.class, &at(job, reading)) else { return };
        if let Some(rate) = &point.steps_per_s {
            let mut time = time_of(rate);
            for value in [&mut time.mean, &mut time.low, &mut time.high] {
                *value *= STEPS;
            }
            let simple = simple.iter().map(|(name, t, _)| (*name, *t)).collect();
            let sample = Sample { seen: reading.time_s, predicted: time, simple };
            self.time.push((job.network.clone(), sample));
        }
        let simple = simple.iter().map(|(name, _, p)| (*name, *p)).collect();
        let sample = Sample { seen: reading.power_w, predicted: point.gpu_power_w, simple };
        self.power.push((job.network.clone(), sample));
    }

    fn rows(&self, out: &mut Outcome, caps: &Caps, names: [&'static str; 3], why: &str) {
        for (quantity, samples) in [("time", &self.time), ("power", &self.power)] {
            let of = |keep: &dyn Fn(&str) -> bool| -> Vec<Sample> {
                samples.iter().filter(|(n, _)| keep(n)).map(|(_, s)| s.clone()).collect()
            };
            let row = |protocol, model| Of { file_gpu: &caps.file_gpu, model, protocol, quantity };
            let relative = Measure::Relative;
            out.add(row(names[0], None), relative, &of(&|_| true), why);
            let networks: BTreeSet<&str> = samples.iter().map(|(n, _)| n.as_str()).collect();
            if networks.len() > 1 && networks.contains(NOISY) {
                let rest = of(&|n| n != NOISY);
                out.add(row(names[1], None), relative, &rest, why);
            }
            for network in networks {
                let own = of(&|n| n == network);
                out.add(row(names[2], Some(network)), relative, &own, why);
            }
        }
    }
}

/// Indices of the three known caps among `n` ascending ones.
fn three(n: usize) -> [usize; 3] {
    [n - 1, n / 2, 0]
}

pub(crate) fn three_caps(caps: &Caps, method: Method, out: &mut Outcome) {
    let jobs: Vec<&CapJob> = caps.jobs.iter().filter(|j| j.readings.len() >= CAPS_MIN).collect();
    let parts = |job: &CapJob| split(&job.readings, three(job.readings.len()));
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
    let mut samples = Samples::default();
    for (job, trial) in jobs.iter().zip(trials(&caps.file_gpu, method, &known_jobs)) {
        let (known, unknown) = parts(job);
        for reading in &unknown {
            samples.ask(&trial, job, reading, of_three(&known, reading.cap_w));
        }
    }
    let names = ["caps-3", "caps-3-without-ncf", "caps-3-by-network"];
    samples.rows(out, caps, names, "no job has five caps or more");
}

/// A predictor that knows all networks except `left_out`.
fn without(caps: &Caps, method: Method, left_out: &[&str]) -> Trial {
    let others = caps.jobs.iter().filter(|j| !left_out.contains(&j.network.as_str()));
    let all: Vec<Shown<'_>> = others.flat_map(|j| j.readings.iter().map(|r| shown(j, r))).collect();
    let mut trial = Trial::new(&caps.file_gpu, method);
    trial.learn(&all, true);
    trial
}

/// Known readings of a job of a new network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Given {
    /// Its highest cap.
    Highest,
    /// Its highest, middle and lowest cap.
    Three,
}

impl Given {
    /// Known and predicted readings of a job; `None` for a job with too few.
    fn split(self, job: &CapJob) -> Option<(Vec<CapReading>, Vec<CapReading>)> {
        let n = job.readings.len();
        match self {
            Self::Highest => {
                let (highest, lower) = job.readings.split_last()?;
                Some((vec![*highest], lower.to_vec()))
            }
            Self::Three => (n >= CAPS_MIN).then(|| {
                let (known, unknown) = split(&job.readings, three(n));
                (known.to_vec(), unknown)
            }),
        }
    }

    /// `base` with the known readings of `job`, and the readings to predict.
    fn trial(self, base: &Trial, job: &CapJob) -> Option<(Trial, Vec<CapReading>)> {
        let (known, unknown) = self.split(job)?;
        let mut trial = base.clone();
        trial.learn(&known.iter().map(|r| shown(job, r)).collect::<Vec<_>>(), false);
        Some((trial, unknown))
    }

    /// Scores of predictions of `network`; `base` does not know it.
    fn scores(self, base: &Trial, caps: &Caps, network: &str) -> Calibration {
        let mut all = Calibration::default();
        for job in caps.jobs.iter().filter(|j| j.network == network) {
            let Some((trial, unknown)) = self.trial(base, job) else { continue };
            all.absorb(&trial.scores(&unknown.iter().map(|r| shown(job, r)).collect::<Vec<_>>()));
        }
        all
    }

    /// Predictions of the simple predictors under `reading`'s cap: name, time, power.
    fn simple(
        self,
        job: &CapJob,
        others: &[&CapJob],
        reading: &CapReading,
    ) -> Vec<(&'static str, f64, f64)> {
        let Some((known, _)) = self.split(job) else { return Vec::new() };
        let cap = reading.cap_w;
        if self == Self::Three {
            return of_three(&known, cap);
        }
        let highest = known[0];
        let (t, p) = (highest.time_s, highest.power_w);
        let mut simple = vec![("constant", t, p)];
        if let Some((near, line)) = like(others, &highest, cap) {
            simple.push(("nearest", t * near.0, p * near.1));
            simple.push(("linear", t * line.0, p * line.1));
        }
        simple
    }
}

/// The simple predictors with three `known` readings in descending order of caps: linear in speed and
/// power.
fn of_three(known: &[CapReading], cap_w: f64) -> Vec<(&'static str, f64, f64)> {
    let by = |of: &dyn Fn(&CapReading) -> f64| -> Vec<(f64, f64)> {
        known.iter().rev().map(|r| (r.cap_w, of(r))).collect()
    };
    let speeds = simple(&by(&|r| 1.0 / r.time_s), cap_w).into_iter();
    let powers = simple(&by(&|r| r.power_w), cap_w);
    speeds.zip(powers).map(|((name, s), (_, p))| (name, 1.0 / s, p)).collect()
}

pub(crate) fn new_network(caps: &Caps, method: Method, out: &mut Outcome) {
    let networks: BTreeSet<&str> = caps.jobs.iter().map(|j| j.network.as_str()).collect();
    let givens = [Given::Highest, Given::Three];
    let mut samples = [Samples::default(), Samples::default()];
    for network in networks.iter().filter(|_| networks.len() > 1) {
        let (own, others): (Vec<&CapJob>, Vec<&CapJob>) =
            caps.jobs.iter().partition(|j| j.network == *network);
        let base = without(caps, method, &[network]);
        out.forms.extend(Forms::of(method, &caps.file_gpu, Some(network), &base));
        let mut scores = [Vec::new(), Vec::new()];
        for other in networks.iter().filter(|n| *n != network) {
            let base = without(caps, method, &[other, network]);
            for (given, scores) in givens.iter().zip(&mut scores) {
                scores.push(given.scores(&base, caps, other));
            }
        }
        for ((given, samples), scores) in givens.iter().zip(&mut samples).zip(&scores) {
            let mut base = base.clone();
            base.calibrate(scores.iter());
            for job in &own {
                let Some((trial, unknown)) = given.trial(&base, job) else { continue };
                for reading in &unknown {
                    samples.ask(&trial, job, reading, given.simple(job, &others, reading));
                }
            }
        }
    }
    if networks.len() > 1 {
        out.forms.extend(Forms::of(method, &caps.file_gpu, None, &without(caps, method, &[])));
    }
    let why = "two networks or more with two caps or more are needed";
    let names = ["caps-1", "caps-1-without-ncf", "caps-1-by-network"];
    samples[0].rows(out, caps, names, why);
    let why = "two networks or more with five caps or more are needed";
    let names = ["caps-3-new", "caps-3-new-without-ncf", "caps-3-new-by-network"];
    samples[1].rows(out, caps, names, why);
}

/// Ratios of time and of power to those at the highest cap.
type Ratios = (f64, f64);

/// Ratios of other jobs from their highest cap to the cap nearest to `cap_w`: those of the job with the
/// most similar power, and a linear regression over power.
fn like(others: &[&CapJob], highest: &CapReading, cap_w: f64) -> Option<(Ratios, Ratios)> {
    let load = |r: &CapReading| r.power_w / r.cap_w;
    let rows: Vec<(f64, Ratios)> = others
        .iter()
        .filter_map(|job| {
            let [lower @ .., top] = job.readings.as_slice() else { return None };
            let near = lower
                .iter()
                .min_by(|a, b| (a.cap_w - cap_w).abs().total_cmp(&(b.cap_w - cap_w).abs()))?;
            Some((load(top), (near.time_s / top.time_s, near.power_w / top.power_w)))
        })
        .collect();
    let of = |pick: fn(&Ratios) -> f64| -> Vec<(f64, f64)> {
        rows.iter().map(|(x, r)| (*x, pick(r).ln())).collect()
    };
    let (time, power) = (of(|r| r.0), of(|r| r.1));
    let line = |rows: &[(f64, f64)]| {
        let rows: Vec<(Vec<f64>, f64)> = rows.iter().map(|(x, y)| (vec![*x], *y)).collect();
        Some(Plane::fit(&rows)?.at(&[load(highest)]).exp())
    };
    let near = |rows: &[(f64, f64)]| Some(nearest(rows, load(highest))?.exp());
    Some(((near(&time)?, near(&power)?), (line(&time)?, line(&power)?)))
}
