//! Opens and closes the windows of jobs.
//!
//! A window opens once its conditions have been constant for the settling time (an averaged power
//! reading still contains the time before). It closes at its length, at an epoch's end while the
//! job is early, and at any change of conditions. The sample that shows the change and the job's
//! reports since the sample before it are not part of the window, so no window spans a change. A
//! window with too few samples is dropped.

use std::collections::BTreeMap;

use wattle_common::{GpuIndex, JobId, Timestamp};

use crate::config::Settings;
use crate::gpu_tracker::AttributedSample;
use crate::jobs::LocalJob;
use crate::steps::StepMeter;
use crate::window::{Conditions, JobGpuSample, OpenWindow};

/// Longest wait for a slow job's reports, in window lengths.
const LENGTH_FACTOR_MAX: u32 = 4;
/// Fewest intervals between reports that give a rate and an error.
const INTERVALS_MIN_FOR_RATE: u32 = 2;

/// A window to store, and whether it is early.
type Closed = Option<(OpenWindow, bool)>;

/// Adds a sampling instant of a job; returns the window that it closed.
pub(crate) fn sample(
    job: &mut LocalJob,
    id: &JobId,
    now: Timestamp,
    conditions: Option<Conditions>,
    gpus: &BTreeMap<GpuIndex, AttributedSample>,
    settings: &Settings,
) -> Closed {
    let epoch_ended = std::mem::take(&mut job.epoch_ended);
    if conditions != job.conditions {
        let closed = end(job, settings);
        job.conditions = conditions;
        job.opens_from = now + settings.settle;
        return closed;
    }
    let conditions = job.conditions.as_ref()?;
    let Some(mut window) = job.window.take() else {
        if now >= job.opens_from {
            job.meter = StepMeter::default();
            job.window = Some(OpenWindow::new(now, conditions.clone(), job.meter));
        }
        return None;
    };
    let parts: Vec<JobGpuSample> =
        conditions.declared.gpus.iter().map(|gpu| part(id, gpus.get(gpu))).collect();
    window.add(now, &parts, job.pace.step.is_some());
    window.meter = job.meter;
    (window.step, window.epoch) = (job.pace.step, job.pace.epoch);
    window.global_batch = job.pace.global_batch;
    if !is_full(&window, job, epoch_ended, settings) {
        job.window = Some(window);
        return None;
    }
    job.window = Some(window);
    let conditions = conditions.clone();
    let closed = end(job, settings);
    job.meter = job.meter.continued();
    job.window = Some(OpenWindow::new(now, conditions, job.meter));
    closed
}

/// Closes a job's open window.
pub(crate) fn end(job: &mut LocalJob, settings: &Settings) -> Closed {
    let window = job.window.take().filter(|window| window.samples >= settings.samples_min)?;
    let early = is_early(job, settings);
    job.windows += 1;
    Some((window, early))
}

/// Whether the job is early: during its first epochs and its first windows on this placement. For a job that reports no epochs the windows alone count.
fn is_early(job: &LocalJob, settings: &Settings) -> bool {
    job.windows < settings.early_windows
        || job.pace.epoch.is_some_and(|epoch| epoch < settings.early_epochs)
}

fn is_full(window: &OpenWindow, job: &LocalJob, epoch_ended: bool, settings: &Settings) -> bool {
    if window.samples < settings.samples_min {
        return false;
    }
    let early = is_early(job, settings);
    let length = if early { settings.window_early } else { settings.window };
    let rated = job.pace.step.is_none() || window.meter.intervals() >= INTERVALS_MIN_FOR_RATE;
    let long =
        window.length() >= length && (rated || window.length() >= length * LENGTH_FACTOR_MAX);
    long || (early && epoch_ended)
}

/// The job's part of a GPU's sample.
fn part(id: &JobId, tracker: Option<&AttributedSample>) -> JobGpuSample {
    let Some(tracker) = tracker else { return JobGpuSample::default() };
    let mine = tracker.tenants.iter().find(|tenant| tenant.job.as_ref() == Some(id));
    JobGpuSample {
        power: tracker.power,
        power_instant: tracker.power_instant,
        energy: tracker.energy,
        energy_job: mine.and_then(|tenant| tenant.energy),
        busy: tracker.busy,
        busy_job: mine.and_then(|tenant| tenant.busy),
        memory_busy: tracker.memory_busy,
        memory_mib_job: mine.and_then(|tenant| tenant.memory_mib),
        clock: tracker.clock,
    }
}
