//! Tiresias: jobs with the least attained GPU time first, in discrete queues.
//!
//! The rule is two-dimensional least attained service, discretised (Gu et al., Tiresias, NSDI 2019;
//! `dlas-gpu` of its simulator, github.com/SymbioticLab/Tiresias). A job's attained service is the product of
//! its GPUs and the time it has had them. Thresholds divide jobs into queues. Queues are served in order,
//! each first come first served, and smaller jobs fill the GPUs that a larger one cannot use. A job that
//! crosses a threshold may lose its GPUs. Durations are neither known nor used. The simulator has three
//! queues with thresholds at 3,250 and 7,200 GPU seconds (`queue_limit` in its `jobs.py`, of which
//! `num_queue` = 3 uses the first two) and by default promotes no job for its waiting time; neither does
//! this policy.
//!
//! Our own choices: a running job comes before the queued jobs of its queue, also at the instant at which it
//! enters that queue, where the simulator serves the queued jobs first. GPUs are allocated in blocks; the
//! simulator only counts them. The time of a restart counts as attained, since the GPUs are held.

use std::time::Duration;

use wattle_common::Timestamp;

use crate::preemptive::serve;
use wattle_placer::plan::Plan;
use wattle_placer::plan::input::PlanningInput;
use wattle_placer::policies::{Build, Policy, PolicyEntry};
use wattle_placer::state::job::Job;

/// The simulator's own thresholds, in GPU seconds.
pub const THRESHOLDS_S: [u64; 2] = [3_250, 7_200];

/// Least attained service first, in queues.
#[derive(Clone, Debug)]
pub struct Tiresias {
    /// Attained GPU time from which a job belongs to the next queue, ascending.
    pub thresholds: Vec<Duration>,
}

impl Default for Tiresias {
    fn default() -> Self {
        Self { thresholds: THRESHOLDS_S.map(Duration::from_secs).to_vec() }
    }
}

impl Tiresias {
    /// Two queues, separated at this many GPU seconds.
    #[must_use]
    pub fn two_queues(gpu_s: f64) -> Self {
        Self { thresholds: vec![Duration::try_from_secs_f64(gpu_s).unwrap_or(Duration::MAX)] }
    }

    fn queue(&self, attained: Duration) -> usize {
        self.thresholds.iter().take_while(|threshold| attained >= **threshold).count()
    }

    /// When a job with `gpus` from `now` on crosses its next threshold.
    fn crosses(&self, now: Timestamp, job: &Job, gpus: u32) -> Option<Timestamp> {
        let attained = job.gpu_time(now);
        let next = self.thresholds.get(self.queue(attained))?;
        let missing_us = u64::try_from((*next - attained).as_micros()).ok()?;
        Some(now + Duration::from_micros(missing_us.div_ceil(u64::from(gpus.max(1))).max(1)))
    }
}

impl Tiresias {
    /// Its line in the table of policies.
    pub const ENTRY: PolicyEntry = PolicyEntry {
        name: "tiresias",
        rule: "preemptive queues by attained GPU time, the least first",
        source: "Gu et al., Tiresias, NSDI 2019 (its `dlas-gpu`)",
        build: Build::Tuned {
            number: "attained GPU seconds that separate two queues; without it three queues",
            build: |gpu_s| Box::new(gpu_s.map_or_else(Tiresias::default, Tiresias::two_queues)),
        },
    };
}

impl Policy for Tiresias {
    fn name(&self) -> &str {
        Self::ENTRY.name
    }

    fn solve(&self, input: PlanningInput<'_>) -> Plan {
        let now = input.now();
        let round =
            serve(input, |job| (self.queue(job.gpu_time(now)), job.intended_gpus().is_none()));
        let mut plan = round.plan;
        // If every job is served, queues are irrelevant.
        if round.is_short {
            let crossing = |&(key, gpus): &_| self.crosses(now, input.state.job(key)?, gpus);
            plan.again_at = round.served.iter().filter_map(crossing).min();
        }
        plan
    }
}
