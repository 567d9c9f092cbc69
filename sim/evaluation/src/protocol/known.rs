//! Jobs with some known readings, of which the others are predicted.
//!
//! The predictor also knows the known readings of the file's other jobs, and nothing else. Intervals are
//! calibrated on the errors of those jobs.

use wattle_common::id::WorkloadId;

use wattle_predictor::calibration::Calibration;
use wattle_predictor::method::Method;

use super::all_but;
use crate::trial::{Shown, Trial};
use wattle_measurements::reader::FileGpu;

/// A job with its known and its predicted readings.
pub(crate) struct KnownJob<'a> {
    pub(crate) class: &'a WorkloadId,
    pub(crate) known: Vec<Shown<'a>>,
    pub(crate) unknown: Vec<Shown<'a>>,
}

/// Splits readings into those at the `known` indices, in this order, and the others.
pub(crate) fn split<R: Copy, const N: usize>(
    readings: &[R],
    known: [usize; N],
) -> ([R; N], Vec<R>) {
    let others = readings.iter().enumerate().filter(|(i, _)| !known.contains(i));
    (known.map(|i| readings[i]), others.map(|(_, reading)| *reading).collect())
}

/// Predictors for each of `jobs`, in order.
pub(crate) fn trials<'a>(
    file_gpu: &FileGpu,
    method: Method,
    jobs: &'a [KnownJob<'a>],
) -> impl Iterator<Item = Trial> + use<'a> {
    let mut base = Trial::new(file_gpu, method);
    let all: Vec<Shown<'_>> = jobs.iter().flat_map(|j| j.known.iter().cloned()).collect();
    base.learn(&all, true);
    let trial = move |job: &KnownJob<'_>| {
        let mut trial = base.clone();
        // Learned again with the pooled models, which are complete by now.
        trial.again(job.class, &job.known);
        trial
    };
    let scores: Vec<Calibration> = jobs.iter().map(|job| trial(job).scores(&job.unknown)).collect();
    jobs.iter().enumerate().map(move |(me, job)| {
        let mut trial = trial(job);
        trial.calibrate(all_but(&scores, me));
        trial
    })
}
