//! What estimates on the jobs of a trace assume, in sentences.

use std::fmt::Write as _;
use std::time::Duration;

use wattle_common::duration::span;
use wattle_common::job::Sharing;
use wattle_simulator::text::pluralize;
use wattle_simulator::trace::{Trace, TraceJob};
use wattle_simulator::{Restartable, Scenario};

use super::Sample;
use super::screen::grouped;
use crate::baseline::BaselineKind;

/// The baseline.
pub(super) fn baseline(kind: BaselineKind) -> String {
    let policy = match kind {
        BaselineKind::Recorded => {
            return "Baseline: starts, ends and nodes as recorded (nodes by first fit where the trace has none), \
                    at default caps and clocks, all nodes awake."
                .to_owned();
        }
        BaselineKind::Backfill => "EASY backfilling",
        BaselineKind::Fifo => "FIFO",
    };
    format!(
        "Baseline: {policy} with exclusive GPUs, default caps and clocks, all nodes awake; the trace \
         has no recorded starts and ends."
    )
}

/// The backfilled schedule. `time_limits` states where the limits of the jobs are from; `beside` whether it is
/// shown beside the baseline, and is not the baseline itself.
pub(super) fn backfill(time_limits: &str, beside: bool) -> String {
    if !beside {
        return format!("Backfill: {time_limits}.");
    }
    format!(
        "Backfill: EASY backfilling of the same jobs, at default caps and clocks, all nodes awake; \
         {time_limits}. Change: Wattle against the baseline."
    )
}

/// How suspended jobs of a recorded schedule count; `None` without any.
pub(super) fn suspended(trace: &Trace) -> Option<String> {
    let times = trace.jobs.iter().map(TraceJob::suspended).filter(|time| !time.is_zero());
    let (jobs, time) =
        times.fold((0_usize, Duration::ZERO), |(jobs, sum), one| (jobs + 1, sum + one));
    (jobs > 0).then(|| {
        format!(
            "Suspended: {} for {}, which count as waiting in the baseline; Wattle's schedule suspends \
             no job.",
            pluralize(jobs, "job"),
            span(time.as_secs_f64())
        )
    })
}

/// The load to which arrival times are scaled.
pub(super) fn load(load: f64) -> String {
    format!(
        "Arrival times are scaled to a load of {load}: requested GPU time relative to that of all GPUs from the \
         first to the last arrival."
    )
}

/// Number of jobs whose workload is drawn; `None` without any. `jobs` is the number of all jobs.
pub(super) fn drawn(scenario: &Scenario, jobs: usize) -> Option<String> {
    let drawn = scenario.workloads.iter().filter(|share| share.drawn);
    let drawn: usize = drawn.map(|share| share.jobs).sum();
    (drawn > 0).then(|| {
        format!(
            "Workloads of {} of {} jobs are not in the trace and drawn from the catalog.",
            grouped(drawn as f64),
            grouped(jobs as f64)
        )
    })
}

/// Which jobs restart and which share a GPU.
pub(super) fn restarts(restartable: &Restartable, share: Sharing) -> String {
    let declared = match restartable {
        Restartable::None => "no job".to_owned(),
        other => other.to_string().replace(" is restartable", "").replace(" are restartable", ""),
    };
    format!(
        "Stopped, moved or resized where the trace does not state it: {declared}. Sharing a GPU: {share}."
    )
}

/// When nodes sleep.
pub(super) fn sleep() -> String {
    "Unused nodes sleep 5 minutes after their last job and wake for queued jobs; Slurm \
     can suspend nodes too. Without: --no-sleep."
        .to_owned()
}

/// The jobs and nodes of a sample, without a full stop.
pub(super) fn simulated_on(sample: &Sample) -> String {
    let mut text = format!("Simulated on {} jobs", grouped(sample.trace.jobs.len() as f64));
    if sample.thinned > 1 {
        let _ = write!(text, ", 1 of {} by GPU time, on {}", sample.thinned, sample.cluster);
    }
    if sample.is_window {
        text.push_str(", consecutive from the middle");
    }
    text
}

/// Work and power of jobs.
pub(super) fn work() -> String {
    "Killed and failed jobs do the same work; GPU power as in published measurements.".to_owned()
}
