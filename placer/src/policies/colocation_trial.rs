//! Co-location trials: a new co-tenant is observed for an epoch and undone if sharing does not pay.
//!
//! The idea is EaCO's (arXiv 2412.08294, Algorithm 1); every policy that shares GPUs uses it. A job that
//! starts on occupied GPUs is observed. Once every job on those GPUs has run an epoch, its placement is confirmed
//! or the job is undone. EaCO checks whether deadlines hold at the measured speeds ([`broken_deadline`]). For
//! policies with [`has_trials`](crate::policies::Capabilities::has_trials), two conditions must hold:
//!
//! * The sum of the jobs' speeds, each measured over the observation and relative to its exclusive speed on
//!   those GPUs at that setting, is at least 1. Together they are then no slower than in turns.
//! * No deadline breaks that a job could meet exclusively.
//!
//! A policy with a higher threshold for new pairs keeps a pair that is below it but not below 1: undoing
//! costs the work since the last epoch.
//!
//! Trials end: a set on which a job was undone is not tried again for it, nor with the job there, and after
//! three undos the job runs exclusively ([`may_share`], [`were_parted`]). A job without a known exclusive speed
//! or that cannot stop is not undone.

use std::time::Duration;

use wattle_common::Timestamp;
use wattle_common::job::GpuSetting;

use crate::plan::input::PlanningInput;
use crate::plan::reason::Reason;
use crate::plan::{Decision, Plan};
use crate::policies::Capabilities;
use crate::state::cluster::ClusterState;
use crate::state::gpu_set::{GpuSet, JobKey};
use crate::state::job::{Job, Mark, State, Trial};
use crate::state::job_forecast::{end, measured_end, measured_rate};

/// The number of undos after which a job runs exclusively.
pub(crate) const UNDOS_MAX: usize = 3;
/// How long a job that reports no epochs is observed.
pub(crate) const WITHOUT_EPOCHS: Duration = Duration::from_secs(600);
/// The sum of relative speeds of jobs that run in turns.
const IN_TURNS: f64 = 1.0;

/// Whether a job may still share, after its undos.
#[must_use]
pub fn may_share(job: &Job) -> bool {
    job.undone_on.len() < UNDOS_MAX
}

/// Whether one of them was undone on the GPUs that the other has, and does not run there again.
pub(crate) fn were_parted(a: &Job, b: &Job) -> bool {
    let runs_there =
        |a: &Job, there: &GpuSet| matches!(&a.state, State::Running { on, .. } if on == there);
    let undone = |a: &Job, b: &Job| {
        let there = b.state.gpus();
        there.is_some_and(|there| a.undone_on.contains(there) && !runs_there(a, there))
    };
    undone(a, b) || undone(b, a)
}

/// The result of an trial.
pub(crate) enum Verdict {
    /// The placement is confirmed.
    Holds(Reason),
    /// The job is undone if it can be stopped.
    Broken {
        /// Why it is undone.
        reason: Reason,
        /// Why it is confirmed if it cannot be stopped.
        otherwise: Reason,
    },
}

/// The decision about an observed placement; `None` while the observation continues. `verdict` is evaluated
/// once every job there has run an epoch.
pub(crate) fn judge(
    input: PlanningInput<'_>,
    key: JobKey,
    job: &Job,
    without_epochs: Duration,
    verdict: impl FnOnce(&Trial, Duration) -> Verdict,
) -> Option<Decision> {
    let seen = job.state.trial()?;
    if seen.marks.iter().all(|mark| mark.job == key) {
        return Some(Decision::Confirm { job: key, reason: Reason::NeighboursGone });
    }
    let after = input.now().since(seen.since);
    if !seen.marks.iter().all(|mark| has_run_an_epoch(input, mark, after, without_epochs)) {
        return None;
    }
    Some(match verdict(seen, after) {
        Verdict::Holds(reason) => Decision::Confirm { job: key, reason },
        Verdict::Broken { reason, .. } if job.facts.can_stop => Decision::Undo { job: key, reason },
        Verdict::Broken { otherwise: reason, .. } => Decision::Confirm { job: key, reason },
    })
}

fn has_run_an_epoch(
    input: PlanningInput<'_>,
    mark: &Mark,
    after: Duration,
    without: Duration,
) -> bool {
    let Some(progress) = input.state.job(mark.job).and_then(|job| job.progress) else {
        return after >= without;
    };
    match (mark.from, progress.steps_per_epoch) {
        (Some((_, step)), Some(epoch)) => progress.step.saturating_sub(step) >= epoch,
        // It reports epochs, but not since the observation began.
        (None, Some(_)) => false,
        (_, None) => after >= without,
    }
}

/// The first deadline that breaks at the measured speeds, of the jobs that `at_stake` selects.
pub(crate) fn broken_deadline(
    input: PlanningInput<'_>,
    seen: &Trial,
    at_stake: impl Fn(&Job, &GpuSet, Timestamp) -> bool,
) -> Option<Reason> {
    seen.marks.iter().find_map(|mark| {
        let tenant = input.state.job(mark.job)?;
        let deadline = tenant.facts.deadline?;
        let set = tenant.state.gpus().filter(|set| at_stake(tenant, set, deadline))?;
        let (gpus, nodes) = (set.gpu_count(), set.node_count());
        let end =
            measured_end(tenant, mark).or_else(|| end(input.now(), tenant, gpus, nodes, 1.0))?;
        let job = tenant.facts.id.clone();
        (end > deadline).then_some(Reason::DeadlineBroken { job, deadline, end })
    })
}

/// The trials that end and begin in a round.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrialReport {
    /// The placements that are confirmed or undone.
    pub verdicts: Vec<Decision>,
    /// The jobs that start under trial.
    pub observed: Vec<JobKey>,
    /// The end of an observation of jobs that report no epochs.
    look_at: Option<Timestamp>,
}

/// Decides about the observations that have ended, for a policy with
/// [`has_trials`](crate::policies::Capabilities::has_trials).
pub(crate) fn end_trials(policy: Capabilities, input: PlanningInput<'_>) -> TrialReport {
    let mut report = TrialReport::default();
    if !policy.has_trials {
        return report;
    }
    for (key, job) in input.state.observed() {
        match judge(input, key, job, WITHOUT_EPOCHS, |seen, after| verdict(input, seen, after)) {
            Some(decision) => report.verdicts.push(decision),
            None => {
                let looks = report.look_at.into_iter().chain(silent_until(input, job));
                report.look_at = looks.min();
            }
        }
    }
    report
}

impl TrialReport {
    /// Whether some job is undone.
    pub(crate) fn undoes(&self) -> bool {
        self.verdicts.iter().any(|verdict| matches!(verdict, Decision::Undo { .. }))
    }

    /// The cluster after the verdicts; `None` without one. A confirmed job counts like any other. An undone one
    /// holds its GPUs until it has stopped and gets no co-tenant.
    pub(crate) fn state_after(&self, state: &ClusterState) -> Option<ClusterState> {
        if self.verdicts.is_empty() {
            return None;
        }
        let mut after = state.clone();
        let judged = Plan { decisions: self.verdicts.clone(), ..Plan::default() };
        judged.apply_to(&mut after);
        Some(after)
    }

    /// Adds the verdicts before the decisions of `plan`, which was made for `input`, the cluster after them,
    /// and observes the jobs that it co-locates.
    pub(crate) fn begin_trials(
        &mut self,
        policy: Capabilities,
        input: PlanningInput<'_>,
        plan: &mut Plan,
    ) {
        if !policy.has_trials {
            return;
        }
        self.observed = observe_newcomers(input, plan);
        if self.undoes() {
            plan.cache = plan.cache.take().map(|cache| cache.only_at(input.now()));
        }
        // A job that is stopped is not confirmed first.
        let stopped = |key: JobKey| {
            let stops = |d: &Decision| matches!(d, Decision::Stop { job, .. } if *job == key);
            plan.decisions.iter().any(stops)
        };
        self.verdicts.retain(|decision| !stopped(decision.job()));
        plan.decisions.splice(0..0, self.verdicts.iter().cloned());
        plan.again_at = plan.again_at.into_iter().chain(self.look_at).min();
    }
}

/// The end of an observation for jobs that report no epochs, if there are any.
fn silent_until(input: PlanningInput<'_>, job: &Job) -> Option<Timestamp> {
    let seen = job.state.trial()?;
    let silent = |mark: &Mark| {
        let progress = input.state.job(mark.job).and_then(|job| job.progress);
        progress.is_none_or(|progress| progress.steps_per_epoch.is_none())
    };
    let then = seen.since + WITHOUT_EPOCHS;
    (then > input.now() && seen.marks.iter().any(silent)).then_some(then)
}

/// Whether the observed jobs are no slower than in turns, and deadlines hold.
fn verdict(input: PlanningInput<'_>, seen: &Trial, after: Duration) -> Verdict {
    let tenants = seen.marks.len() as u32;
    let sum = measured_sum(input, seen);
    let otherwise = Reason::PairHolds { tenants, after, sum };
    if let Some(sum) = sum.filter(|sum| *sum < IN_TURNS) {
        return Verdict::Broken { reason: Reason::PairLoses { after, sum }, otherwise };
    }
    let could_be_met = |job: &Job, on: &GpuSet, deadline: Timestamp| {
        end(input.now(), job, on.gpu_count(), on.node_count(), 1.0)
            .is_some_and(|end| end <= deadline)
    };
    match broken_deadline(input, seen, could_be_met) {
        Some(reason) => Verdict::Broken { reason, otherwise },
        None => Verdict::Holds(otherwise),
    }
}

/// The sum of the measured speeds, each relative to the job's exclusive speed there; `None` if one is
/// unknown.
fn measured_sum(input: PlanningInput<'_>, seen: &Trial) -> Option<f64> {
    let relative = |mark: &Mark| {
        let job = input.state.job(mark.job)?;
        let State::Running { on, setting, .. } = &job.state else { return None };
        Some(measured_rate(job, mark)? / alone(job, on, *setting)?)
    };
    let sum = seen.marks.iter().map(relative).sum::<Option<f64>>()?;
    sum.is_finite().then_some(sum)
}

/// Predicted steps per second exclusively on these GPUs at this setting.
fn alone(job: &Job, on: &GpuSet, setting: GpuSetting) -> Option<f64> {
    let choice = job.operating_points.as_ref()?.point(on.gpu_count(), setting)?;
    (choice.nodes == on.node_count()).then_some(choice.steps_per_s)
}

/// Marks jobs that start on occupied GPUs as observed, if they can be stopped. Returns these jobs.
fn observe_newcomers(input: PlanningInput<'_>, plan: &mut Plan) -> Vec<JobKey> {
    let mut observed = Vec::new();
    let mut started: Vec<u64> = vec![0; input.state.nodes().len()];
    for decision in &mut plan.decisions {
        let Decision::Start { job, on, observe, .. } = decision else { continue };
        let mut shares = false;
        for spot in &on.by_node {
            let here = &mut started[spot.node.index()];
            shares |=
                *here & spot.gpus != 0 || input.state.node(spot.node).occupied & spot.gpus != 0;
            *here |= spot.gpus;
        }
        *observe = shares && input.state.job(*job).is_some_and(|job| job.facts.can_stop);
        observed.extend(observe.then_some(*job));
    }
    observed
}
