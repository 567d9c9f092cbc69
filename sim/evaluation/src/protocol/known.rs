//! Jobs of which some readings are known and the rest is asked.
//!
//! Beside a job the predictor knows what is known of the file's other jobs, and nothing more; its
//! intervals are calibrated on how far it is off with those.

use wattle_common::id::WorkloadId;

use wattle_predictor::calibration::Calibration;

use crate::reader::FileGpu;
use crate::trial::{Shown, Trial};
use super::all_but;

/// A job.
pub(crate) struct KnownJob<'a> {
    pub(crate) class: &'a WorkloadId,
    pub(crate) known: Vec<Shown<'a>>,
    pub(crate) asked: Vec<Shown<'a>>,
}

/// What answers for each of `jobs`, in their order.
pub(crate) fn trials<'a>(
    card: &FileGpu,
    jobs: &'a [KnownJob<'a>],
) -> impl Iterator<Item = Trial> + use<'a> {
    let mut base = Trial::new(card);
    let all: Vec<Shown<'_>> = jobs.iter().flat_map(|j| j.known.iter().cloned()).collect();
    base.learn(&all, true);
    let trial = move |job: &KnownJob<'_>| {
        let mut trial = base.clone();
        // Once more, because what is pooled is known by now.
        trial.again(job.class, &job.known);
        trial
    };
    let scores: Vec<Calibration> = jobs.iter().map(|job| trial(job).scores(&job.asked)).collect();
    jobs.iter().enumerate().map(move |(me, job)| {
        let mut trial = trial(job);
        trial.calibrate(all_but(&scores, me));
        trial
    })
}
