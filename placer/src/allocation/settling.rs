//! Settling: when a job may be moved or resized, and to which sizes. The same for every policy.
//!
//! * A running job is neither moved nor resized until it has run for [`RUNS_FOR`] times the predicted cost of
//!   its restart ([`crate::state::restarts`]), nor if it completes within [`KEEPS_FOR`] times that cost.
//!   Exempt are a job that would miss its deadline at its size, failed GPUs, and stops by limits on power,
//!   budgets and carbon deferral.
//! * The stops of a job within a day are bounded
//!   ([`RestartRules`](crate::allocation::restart_rules::RestartRules)), with the same exemptions.
//! * A setting that a job left is not chosen again within
//!   [`SETTING_LASTS`](crate::state::left_settings::SETTING_LASTS), except to meet a deadline, and
//!   except while a power limit binds: there it is part of an allocation that fills the limit. With the rule the
//!   mean completion time of ElasticFlow's fixed jobs at 35 kW is 3 % longer.
//! * A co-location trial is decided at the end of its epoch. The job may then be undone before it has settled,
//!   because it was started for the trial.
//! * Preemption by rank is not delayed, under `srtf` and `tiresias` by their ranks and under `afs`, `powerflow`
//!   and `greenflow` by arrival: a longer wait of the job that comes first costs more than a restart.
//!   `wattle` ranks no jobs; all its stops are reallocations, and none comes before the job has settled.
//! * A size that a job left is tried again only after a significant change of the knowledge about it
//!   ([`Knowledge::differs_from`](crate::state::restarts::Knowledge::differs_from)).
//! * A job grows only if that saves more time than the restart takes, within the rest of its run, or an hour
//!   where that is unknown. `wattle` compares costs and gains itself.

use std::collections::BTreeMap;
use std::time::Duration;

use wattle_common::Timestamp;

use crate::plan::check_power::is_within_bounds;
use crate::plan::input::PlanningInput;
use crate::plan::reason::Reason;
use crate::plan::{Blocked, Decision, Plan};
use crate::state::cluster::ClusterState;
use crate::state::gpu_set::JobKey;
use crate::state::job::{Job, State};
use crate::state::job_forecast::{end, remaining_alone};
use crate::state::operating_points::OperatingPoints;
use crate::state::restarts::cost_bound;

/// A job runs for this many times its restart cost before it is moved: our own choice, which bounds the
/// share of time lost in restarts to a tenth.
pub const RUNS_FOR: u32 = 10;
/// A job keeps its GPUs if it completes within this many times its restart cost: a restart would lengthen
/// the rest of its run by a third or more, and growth could save at most two restarts. At 1 and at 10 the
/// mean completion time of the demo is longer than at 3.
pub const KEEPS_FOR: u32 = 3;
/// A size is expected to last this long, if the rest of the run is unknown or longer, s.
pub(crate) const SIZE_LASTS_S: f64 = 3_600.0;

/// When a running job has run for [`RUNS_FOR`] times its restart cost; `None` for a job that does not run.
fn settles_at(state: &ClusterState, job: &Job) -> Option<Timestamp> {
    match &job.state {
        State::Running { on, since, .. } => {
            Some(*since + state.restart_cost(job, on.gpu_count()) * RUNS_FOR)
        }
        State::Queued | State::Stopping { .. } => None,
    }
}

/// Whether a running job completes within [`KEEPS_FOR`] times its restart cost.
fn completes_soon(state: &ClusterState, job: &Job) -> bool {
    let State::Running { on, .. } = &job.state else { return false };
    let left = remaining_alone(state.now(), job, on.gpu_count(), on.node_count());
    // A job that runs on after its predicted end has an unknown rest.
    left.is_some_and(|left| {
        !left.is_zero() && left < state.restart_cost(job, on.gpu_count()) * KEEPS_FOR
    })
}

/// Whether a stop now comes before a job has settled or shortly before its end.
pub(crate) fn is_early_stop(state: &ClusterState, job: &Job) -> bool {
    settles_at(state, job).is_some_and(|at| state.now() < at) || completes_soon(state, job)
}

/// Until when a running job keeps its GPUs at least; `None` if it may be moved now. A job that started at this
/// instant keeps them in any case: nothing has been learned since, and plans must come to an end.
pub(crate) fn held_until(input: PlanningInput<'_>, job: &Job) -> Option<Timestamp> {
    let State::Running { since, .. } = &job.state else { return None };
    let until = settles_at(input.state, job)?;
    if *since == input.now() {
        return Some(until);
    }
    if has_failed_gpus(input, job) || misses_deadline(input, job) {
        return None;
    }
    let settles = is_early_stop(input.state, job).then_some(until);
    settles.max(input.limits.restarts.keeps_until(input.now(), job))
}

/// [`held_until`] of a job that is held until a later instant than now. Most running jobs have settled, for which
/// neither the restart cost nor the rest of the run is computed.
fn held_beyond_now(input: PlanningInput<'_>, job: &Job) -> Option<Timestamp> {
    let State::Running { on, since, .. } = &job.state else { return None };
    let has_settled = *since + cost_bound(on.gpu_count()) * RUNS_FOR < input.now();
    if has_settled && input.limits.restarts.keeps_until(input.now(), job).is_none() {
        return None;
    }
    held_until(input, job).filter(|until| *until > input.now())
}

/// Whether a running job keeps its GPUs for now.
#[must_use]
pub fn is_held(input: PlanningInput<'_>, job: &Job) -> bool {
    held_until(input, job).is_some()
}

fn has_failed_gpus(input: PlanningInput<'_>, job: &Job) -> bool {
    let on = job.state.gpus().into_iter().flat_map(|on| &on.by_node);
    on.into_iter().any(|here| here.gpus & !input.state.node(here.node).facts.healthy != 0)
}

/// Whether a running job would miss its deadline on its GPUs.
fn misses_deadline(input: PlanningInput<'_>, job: &Job) -> bool {
    let (Some(deadline), Some(on)) = (job.facts.deadline, job.state.gpus()) else { return false };
    end(input.now(), job, on.gpu_count(), on.node_count(), 1.0).is_some_and(|end| end > deadline)
}

/// The sizes that a job left and that nothing new is known of.
pub(crate) fn tried_sizes(
    input: PlanningInput<'_>,
    job: &Job,
    points: &OperatingPoints,
) -> Vec<u32> {
    let Some(present) = job.intended_gpus().filter(|_| !job.restarts.left_sizes.is_empty()) else {
        return Vec::new();
    };
    let now = input.state.knowledge(Some(points), input.limits.price);
    let left = job.restarts.left_sizes.iter();
    left.filter(|left| *left.gpu_type == *points.gpu_type && left.gpus != present)
        .filter(|left| !now.differs_from(&left.known, left.gpus, present))
        .map(|left| left.gpus)
        .collect()
}

/// The least rate at which growth pays for a restart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Growth {
    /// The present size.
    present: u32,
    /// Its rate, steps per second.
    rate: f64,
    /// How long the next size lasts, s.
    lasts_s: f64,
    restart_factor: f64,
}

impl Growth {
    /// The rule for a running job; `None` for another one, and for one that has no larger size.
    pub(crate) fn of(
        input: PlanningInput<'_>,
        job: &Job,
        points: &OperatingPoints,
    ) -> Option<Self> {
        let State::Running { on, .. } = &job.state else { return None };
        let present = on.gpu_count();
        if points.points().last().is_none_or(|largest| largest.gpus <= present) {
            return None;
        }
        let rates = points.with_gpus(present).iter().map(|point| point.steps_per_s);
        let rate = rates.reduce(f64::max)?;
        let left = remaining_alone(input.now(), job, present, on.node_count());
        let lasts_s = left.map_or(SIZE_LASTS_S, |left| left.as_secs_f64().min(SIZE_LASTS_S));
        let restart_factor = input.state.restart_cost_factor(job);
        Some(Self { present, rate, lasts_s, restart_factor })
    }

    /// Whether this size saves more time than the restart takes, at a rate in steps per second.
    pub(crate) fn pays(&self, gpus: u32, rate: f64) -> bool {
        let restart_s = crate::state::restarts::typical_cost(gpus).as_secs_f64();
        gpus <= self.present
            || self.lasts_s * (1.0 - self.rate / rate) > restart_s * self.restart_factor
    }
}

/// Removes the moves of jobs that have not settled from a policy's plan. Policies respect the rule
/// themselves; an allocation that was decided earlier and is still being carried out may not. Returns the
/// jobs that keep their GPUs, and until when at least.
///
/// If a job awaits GPUs that others hold, the next round is at the latest when the next job settles.
pub(crate) fn apply(input: PlanningInput<'_>, plan: &mut Plan) -> BTreeMap<JobKey, Timestamp> {
    let early = plan.decisions.iter().filter_map(|decision| {
        // A job that continues at once is moved or resized; one that waits was preempted.
        let Decision::Stop { job, next_gpus: Some(_), .. } = decision else { return None };
        Some((*job, held_until(input, input.state.job(*job)?)?))
    });
    let kept: BTreeMap<JobKey, Timestamp> = early.collect();
    if !kept.is_empty() {
        plan.decisions.retain(|decision| {
            !(matches!(decision, Decision::Stop { .. }) && kept.contains_key(&decision.job()))
        });
        plan.cache = plan.cache.take().map(|cache| cache.only_at(input.now()));
    }
    if matches!(&plan.blocked, Some(Blocked { reason: Reason::Awaits { .. }, .. })) {
        plan_when_settled(input, plan);
    }
    kept
}

/// Removes the changes to settings that a job left lately, where the plan fits the limits without them, and plans
/// again once they may be made.
pub(crate) fn keep_changed_settings(input: PlanningInput<'_>, plan: &mut Plan) {
    let avoided_until = |decision: &Decision| {
        let Decision::Set { job, setting, .. } = decision else { return None };
        let job = input.state.job(*job)?;
        let until = job.settings_left.avoided_until(*setting, input.now())?;
        (!misses_deadline(input, job)).then_some(until)
    };
    let Some(next) = plan.decisions.iter().filter_map(avoided_until).min() else { return };
    let mut kept = plan.clone();
    kept.decisions.retain(|decision| avoided_until(decision).is_none());
    kept.again_at = kept.again_at.into_iter().chain([next]).min();
    if is_within_bounds(input, &kept) {
        *plan = kept;
    }
}

/// Plans again when the next job settles that runs or that this plan starts.
pub fn plan_when_settled(input: PlanningInput<'_>, plan: &mut Plan) {
    let running = input.state.running().filter(|(_, job)| job.facts.can_stop);
    let held = running.filter_map(|(_, job)| held_beyond_now(input, job));
    let starts = plan.decisions.iter().filter_map(|decision| {
        let Decision::Start { job, on, .. } = decision else { return None };
        let job = input.state.job(*job).filter(|job| job.facts.can_stop)?;
        Some(input.now() + restart_cost(input, job, on.gpu_count()) * RUNS_FOR)
    });
    let next = held.chain(starts.filter(|until| *until > input.now())).min();
    plan.again_at = plan.again_at.into_iter().chain(next).min();
}

/// The predicted cost of a restart of this job on this many GPUs.
pub(crate) fn restart_cost(input: PlanningInput<'_>, job: &Job, gpus: u32) -> Duration {
    input.state.restart_cost(job, gpus)
}
