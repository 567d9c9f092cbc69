//! Early observation: whoever is put beside others is watched for an epoch and taken off again where
//! the promise does not hold.
//!
//! The idea is EaCO's (arXiv 2412.08294, Algorithm 1), and every policy that packs does it. A
//! newcomer beside others starts observed; once everybody on those GPUs has run an epoch, the
//! placement stands, or the newcomer is undone. EaCO asks whether deadlines hold at the measured
//! speeds ([`broken_deadline`]). The others, whom [`Watched`] wraps, promise that jobs do more together
//! than in turns: the sum of their speeds, each measured over the observation and relative to what
//! its surface says of it alone on those GPUs so set, must not be below 1; and a deadline that a job
//! alone could meet must hold, too.
//!
//! A policy with a higher bar for new pairs keeps one that fell below its bar but not below 1: it
//! does more than it would apart, and undoing costs what was done since the last epoch.
//!
//! What keeps it from doing and undoing for ever: a set that a job was undone on is not tried again
//! for it, nor with the job that is there, and after three undos it runs alone ([`may_share`],
//! [`were_parted`]). Of whom nothing is known alone, or who cannot stop, nothing is undone.

use std::time::Duration;

use wattle_common::Timestamp;
use wattle_common::job::GpuSetting;

use crate::plan::input::PlanningInput;
use crate::plan::reason::Reason;
use crate::plan::{Decision, Plan};
use crate::policies::{Capabilities, Policy};
use crate::state::gpu_set::{GpuSet, JobKey};
use crate::state::job::{Job, Mark, Observation, State};
use crate::state::job_forecast::{end, measured_end, measured_rate};

/// A job undone so often runs alone.
pub(crate) const UNDOS_MAX: usize = 3;
/// How long a job that reports no epochs is observed.
pub(crate) const WITHOUT_EPOCHS: Duration = Duration::from_secs(600);
/// Together as much as in turns, as a sum of relative speeds.
const IN_TURNS: f64 = 1.0;

/// Whether a job was undone too rarely to run alone for good.
pub(crate) fn may_share(job: &Job) -> bool {
    job.undone_on.len() < UNDOS_MAX
}

/// Whether one of them was undone on the GPUs that the other has, and is not there again.
pub(crate) fn were_parted(a: &Job, b: &Job) -> bool {
    let runs_there =
        |a: &Job, there: &GpuSet| matches!(&a.state, State::Running { on, .. } if on == there);
    let undone = |a: &Job, b: &Job| {
        let there = b.state.gpus();
        there.is_some_and(|there| a.undone_on.contains(there) && !runs_there(a, there))
    };
    undone(a, b) || undone(b, a)
}

/// What came of an observation.
pub(crate) enum Verdict {
    /// The placement stands.
    Holds(Reason),
    /// It does not, if the job can be stopped.
    Broken {
        /// Why it would be undone.
        reason: Reason,
        /// Why it stands where it cannot be.
        otherwise: Reason,
    },
}

/// What becomes of an observed placement; `None` while the observation goes on. `verdict` is asked
/// once everybody there has run an epoch.
pub(crate) fn judge(
    input: PlanningInput<'_>,
    key: JobKey,
    job: &Job,
    without_epochs: Duration,
    verdict: impl FnOnce(&Observation, Duration) -> Verdict,
) -> Option<Decision> {
    let seen = job.state.observation()?;
    if seen.marks.iter().all(|mark| mark.job == key) {
        return Some(Decision::Settle { job: key, reason: Reason::NeighboursGone });
    }
    let after = input.now().since(seen.since);
    if !seen.marks.iter().all(|mark| has_run_an_epoch(input, mark, after, without_epochs)) {
        return None;
    }
    Some(match verdict(seen, after) {
        Verdict::Holds(reason) => Decision::Settle { job: key, reason },
        Verdict::Broken { reason, .. } if job.facts.can_stop => Decision::Undo { job: key, reason },
        Verdict::Broken { otherwise: reason, .. } => Decision::Settle { job: key, reason },
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
        // It reports epochs, but has not been heard since: wait for it.
        (None, Some(_)) => false,
        (_, None) => after >= without,
    }
}

/// The first deadline that would be broken at the speeds measured, of jobs that `at_stake` names.
pub(crate) fn broken_deadline(
    input: PlanningInput<'_>,
    seen: &Observation,
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

/// A policy that packs, whose newcomers beside others are observed.
pub(crate) struct Watched<P> {
    inner: P,
}

impl<P: Policy> Watched<P> {
    pub(crate) const fn new(inner: P) -> Self {
        Self { inner }
    }
}

impl<P: Policy> Policy for Watched<P> {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn solve(&self, input: PlanningInput<'_>) -> Plan {
        let mut judged = Plan::default();
        let mut look_at: Option<Timestamp> = None;
        for (key, job) in input.state.observed() {
            match judge(input, key, job, WITHOUT_EPOCHS, |seen, after| verdict(input, seen, after))
            {
                Some(decision) => judged.decisions.push(decision),
                None => look_at = look_at.into_iter().chain(silent_until(input, job)).min(),
            }
        }
        if judged.is_empty() {
            let mut plan = self.inner.solve(input);
            observe_newcomers(input, &mut plan);
            plan.again_at = plan.again_at.into_iter().chain(look_at).min();
            return plan;
        }
        // Who is settled counts as everybody does; who is undone still holds its GPUs until it has
        // stopped, and nobody is put beside it.
        let mut then = input.state.clone();
        judged.apply_to(&mut then);
        // The verdicts void what was allocated before them.
        let then = PlanningInput { cache: None, ..input.with_state(&then) };
        let mut plan = self.inner.solve(then);
        observe_newcomers(then, &mut plan);
        if judged.decisions.iter().any(|decision| matches!(decision, Decision::Undo { .. })) {
            plan.cache = None;
        }
        // Whoever is stopped is not settled first.
        let stopped = |key: JobKey| {
            let stops = |d: &Decision| matches!(d, Decision::Stop { job, .. } if *job == key);
            plan.decisions.iter().any(stops)
        };
        judged.decisions.retain(|decision| !stopped(decision.job()));
        judged.decisions.append(&mut plan.decisions);
        plan.decisions = judged.decisions;
        plan.again_at = plan.again_at.into_iter().chain(look_at).min();
        plan
    }
}

/// When the observation of a job will be over for those who report no epochs, if there are any.
fn silent_until(input: PlanningInput<'_>, job: &Job) -> Option<Timestamp> {
    let seen = job.state.observation()?;
    let silent = |mark: &Mark| {
        let progress = input.state.job(mark.job).and_then(|job| job.progress);
        progress.is_none_or(|progress| progress.steps_per_epoch.is_none())
    };
    let then = seen.since + WITHOUT_EPOCHS;
    (then > input.now() && seen.marks.iter().any(silent)).then_some(then)
}

/// Whether those observed do more together than in turns, and deadlines hold.
fn verdict(input: PlanningInput<'_>, seen: &Observation, after: Duration) -> Verdict {
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

/// The sum of all measured speeds, each relative to what the job does alone there; `None` where one
/// of them is not known.
fn measured_sum(input: PlanningInput<'_>, seen: &Observation) -> Option<f64> {
    let relative = |mark: &Mark| {
        let job = input.state.job(mark.job)?;
        let State::Running { on, setting, .. } = &job.state else { return None };
        Some(measured_rate(job, mark)? / alone(job, on, *setting)?)
    };
    let sum = seen.marks.iter().map(relative).sum::<Option<f64>>()?;
    sum.is_finite().then_some(sum)
}

/// Steps a second alone on these GPUs so set, as its menu says.
fn alone(job: &Job, on: &GpuSet, setting: GpuSetting) -> Option<f64> {
    let choice = job.menu.as_ref()?.choice(on.gpu_count(), setting)?;
    (choice.nodes == on.node_count()).then_some(choice.steps_per_s)
}

/// Whoever is started where somebody is already is observed, if it can be stopped again.
fn observe_newcomers(input: PlanningInput<'_>, plan: &mut Plan) {
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
    }
}
