//! SRTF: the shortest remaining time first. An oracle: it needs the exact duration of each job.
//!
//! At any instant the jobs with the least remaining time have the GPUs. Jobs with more remaining time are
//! stopped for them, and smaller jobs fill the GPUs that a larger one cannot use. On one machine no rule has
//! a shorter mean completion time (Schrage, Operations Research 16(3), 1968), so it shows the value of
//! knowing durations. The remaining time is the number of remaining steps over the predicted speed on the
//! requested GPUs; without a surface, that share of the owner's duration; without a step count, that duration
//! less the time on GPUs.
//!
//! Our own choices: a job of which none of this is known counts as the longest. Equal jobs are served in
//! arrival order. Time is compared and not time multiplied by GPUs, as in the usual baseline. The cost of a
//! restart is not considered, although it is paid. A job with a range of sizes gets its minimum.

use std::time::Duration;

use wattle_common::Timestamp;
use wattle_common::job::GpuSetting;

use crate::preemptive::serve;
use wattle_placer::plan::Plan;
use wattle_placer::plan::input::PlanningInput;
use wattle_placer::policies::{Build, Capabilities, Policy, PolicyEntry, Reads};
use wattle_placer::state::job::{Job, State};

/// The shortest remaining time first.
#[derive(Clone, Copy, Debug, Default)]
pub struct Srtf;

impl Srtf {
    /// Its line in the table of policies.
    pub const ENTRY: PolicyEntry = PolicyEntry {
        name: "srtf",
        rule: "preemptive shortest remaining time first, from exact durations",
        source: "Schrage, Operations Research 16(3), 1968",
        build: Build::Plain(|| Box::new(Srtf)),
    };
}

impl Policy for Srtf {
    fn name(&self) -> &str {
        Self::ENTRY.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { reads: Reads::Heads, needs_exact_durations: true, ..Capabilities::default() }
    }

    fn solve(&self, input: PlanningInput<'_>) -> Plan {
        let now = input.now();
        let rank = |job: &Job| {
            (remaining(now, job).unwrap_or(Duration::MAX), job.intended_gpus().is_none())
        };
        serve(input, rank).plan
    }
}

/// The remaining time of a job, exclusively on its GPUs.
fn remaining(now: Timestamp, job: &Job) -> Option<Duration> {
    let gpus = job.state.gpus().map_or(job.facts.request.min, wattle_placer::GpuSet::gpu_count);
    let duration = job.facts.duration_alone;
    let steps = job.progress.and_then(|progress| {
        let total = progress.steps_total.filter(|&total| total > 0)? as f64;
        // Extrapolated from the last report, also while the job writes its checkpoint.
        let since = match &job.state {
            State::Queued => 0.0,
            State::Running { .. } | State::Stopping { .. } => now.since(progress.at).as_secs_f64(),
        };
        let done = progress.step as f64 + since * progress.steps_per_s.unwrap_or(0.0);
        Some(((total - done).max(0.0), total))
    });
    let Some((left, total)) = steps else {
        return Some(duration?.saturating_sub(job.gpu_time(now) / gpus.max(1)));
    };
    let predicted = job
        .operating_points
        .as_ref()
        .and_then(|operating_points| operating_points.point(gpus, GpuSetting::DEFAULT));
    let by_owner = duration.map(|duration| total / duration.as_secs_f64().max(1e-6));
    let rate = predicted.map(|choice| choice.steps_per_s).or(by_owner)?;
    Some(Duration::try_from_secs_f64(left / rate).unwrap_or(Duration::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wattle_common::job::GpuRequest;
    use wattle_placer::state::job::{JobFacts, Progress};

    #[test]
    fn the_remaining_time_is_the_remaining_share_of_steps_of_the_duration() {
        let mut job = Job::new(JobFacts::new("j".parse().unwrap(), GpuRequest::exactly(2)), 0);
        let now = Timestamp::from_s(100);
        assert_eq!(remaining(now, &job), None);
        job.facts.duration_alone = Some(Duration::from_secs(400));
        job.attained = Duration::from_secs(60);
        assert_eq!(remaining(now, &job), Some(Duration::from_secs(370)));
        let at = Timestamp::from_s(40);
        job.progress =
            Some(Progress { at, step: 25, steps_total: Some(100), ..Progress::default() });
        assert_eq!(remaining(now, &job), Some(Duration::from_secs(300)));
    }
}
