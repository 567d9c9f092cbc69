//! The stages of a planning round, in order. They are the same for every policy.
//!
//! Each stage returns what it changed and why; [`StageReports`] has these reports in the order of the stages.
//! Without limits and deferrals the policy's plan passes unchanged and the reports are empty.

mod reports;

pub use reports::{Stage, StageReports};

use std::collections::BTreeSet;

use crate::accounts;
use crate::allocation::{settling, site_rules};
use crate::plan::input::{PlanningInput, PolicyCache};
use crate::plan::reason::Reason;
use crate::plan::{Blocked, Plan};
use crate::policies::{Policy, colocation_trial, settings};
use crate::power::carbon_deferral::Deferrals;
use crate::power::limits::enforce;
use crate::power::lowest_limit::{Refusal, Refusals, Unstoppable, jobs_over_lowest_limit};
use crate::power::node_sleep;
use crate::power::over_budget::jobs_over_budget;
use crate::state::cluster::ClusterState;
use crate::state::gpu_set::{JobKey, NodeKey};

/// The outcome of a planning round.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Round {
    /// The plan.
    pub plan: Plan,
    /// What each stage changed, and why.
    pub reports: StageReports,
}

/// Most plans of a round, of which all but the first are made without the jobs that the one before has refused: our
/// own choice. The plan of the last is kept without their starts.
const PLANS_MAX: usize = 4;

/// Plans one round.
#[must_use]
pub fn solve(policy: &dyn Policy, input: PlanningInput<'_>) -> Round {
    let mut refused = Refusals::new();
    for _ in 1..PLANS_MAX {
        let (round, more) = plan_without(&refused, policy, input);
        if more.is_empty() {
            return round;
        }
        refused.extend(more);
    }
    plan_without(&refused, policy, input).0
}

/// Plans one round without the jobs that a plan of it has refused. Returns the jobs that this plan refuses, too.
fn plan_without(
    refused: &Refusals,
    policy: &dyn Policy,
    input: PlanningInput<'_>,
) -> (Round, Refusals) {
    let capabilities = policy.capabilities();

    // Jobs that cannot start now are hidden first: a policy serves its queue in order, so that the jobs behind
    // a hidden one would wait for it.
    let deferral = Deferrals::of(capabilities, input);
    let mut over_budget = jobs_over_budget(capabilities, input);
    over_budget.extend(jobs_over_lowest_limit(input, refused));
    over_budget.extend(reasons(refused));
    over_budget.extend(paused_for_events(input));
    let hidden: BTreeSet<JobKey> =
        deferral.waiting.keys().chain(over_budget.keys()).copied().collect();
    let visible = without(input, &hidden);
    let input = visible.as_ref().map_or(input, |visible| input.with_state(visible));

    // After these, because a hidden job is no demand: its account's share goes to others meanwhile.
    let accounts = accounts::stage::limit(&input.limits.accounts, capabilities.is_elastic, input);
    let visible = without(input, &accounts.held_back.keys().copied().collect());
    let input = visible.as_ref().map_or(input, |visible| input.with_state(visible));
    let input = PlanningInput { sizes_max: Some(&accounts.sizes_max), ..input };

    // Ended trials are decided before the policy, which may then give a confirmed job a co-tenant and leaves the
    // GPUs of an undone one alone. The end of co-location voids what the policy allocated before it.
    let mut trial = colocation_trial::end_trials(capabilities, input);
    let judged = trial.state_after(input.state);
    let voided = input.cache.filter(|_| trial.undoes()).map(PolicyCache::voided);
    let after_trials = judged.as_ref().map_or(input, |judged| input.with_state(judged));
    let after_trials = PlanningInput { cache: voided.as_ref().or(input.cache), ..after_trials };

    let mut plan = policy.solve(after_trials);
    plan.price = input.limits.price;

    // Next to the policy, because later stages may move a start to free GPUs, where nothing is observed.
    trial.begin_trials(capabilities, after_trials, &mut plan);
    // Before the stages that count the GPUs of this plan: a job that keeps its GPUs is not moved.
    let settling = settling::apply(input, &mut plan);
    // Before the settings, which depend on the type and the number of the GPUs that a job gets.
    let site_rules = site_rules::apply(input, &mut plan);
    let fixed_settings = settings::fix(policy, input, &mut plan);
    // With the sizes of this plan, which no later stage changes.
    let mut more = Refusals::new();
    let mut unstoppable = Unstoppable::running(input);
    if let Some(unstoppable) = &mut unstoppable {
        unstoppable.refuse_starts(&mut plan, &mut more);
        over_budget.extend(reasons(&more));
    }
    // After all placements: nodes wake for the jobs that are left, and sleep where none is placed.
    let needed = needed_soon(refused.values().chain(more.values()));
    let mut node_sleep = node_sleep::apply(input, &over_budget, &needed, &mut plan);
    // Before the limits, which admit the others of these starts.
    if let Some(unstoppable) = &mut unstoppable {
        unstoppable.refuse_awaited(&mut plan, &mut more);
        over_budget.extend(reasons(&more));
        node_sleep.retain(|decision| plan.nodes.contains(decision));
    }
    // A pause replaces whatever the stages before have decided about the job.
    deferral.pause(&mut plan);
    // After all others, because nothing may add power to a plan that keeps the limits: they count the settings, the nodes
    // that wake, and paused jobs until they have stopped.
    let power_limits = enforce(capabilities, input, &needed, &mut plan);
    plan.limit_binds = power_limits.binds || plan.power_price > 0.0;
    // After every stage that changes settings. A limit that binds demands the settings that fill it.
    if !plan.limit_binds {
        settling::keep_changed_settings(input, &mut plan);
    }

    let reports = StageReports {
        deferral,
        over_budget,
        accounts,
        trial,
        settling,
        site_rules,
        fixed_settings,
        node_sleep,
        power_limits,
    };
    if plan.blocked.is_none() {
        plan.blocked = hidden
            .first()
            .and_then(|&job| Some(Blocked { job, reason: reports.why_held_back(job)?.1 }));
    }
    (Round { plan, reports }, more)
}

fn reasons(refused: &Refusals) -> impl Iterator<Item = (JobKey, Reason)> {
    refused.iter().map(|(&job, refusal)| (job, refusal.reason.clone()))
}

/// The queued jobs that are paused for a grid event. While there is one, or a job is about to pause, no job starts during an
/// event of the site that has not run during it: it would hold the GPUs on which a paused one continues.
fn paused_for_events(input: PlanningInput<'_>) -> impl Iterator<Item = (JobKey, Reason)> {
    let (most, promises) = (input.limits.power_max, &input.limits.promises);
    let is_paused = promises.of_site() && promises.of_known().any(|promise| promise.is_paused);
    let waits = move |key: &JobKey| match promises.known(*key) {
        Some(promise) => promise.is_paused,
        None => is_paused,
    };
    let queued = input.state.queue().map(|(key, _)| key).filter(waits);
    queued.map(move |key| (key, Reason::PowerLimit { most }))
}

/// The nodes of refused starts that fit soon.
fn needed_soon<'a>(refused: impl Iterator<Item = &'a Refusal>) -> BTreeSet<NodeKey> {
    let soon = refused.filter(|refusal| refusal.fits_at.is_some());
    soon.flat_map(|refusal| refusal.on.by_node.iter().map(|here| here.node)).collect()
}

/// The cluster without these queued jobs; `None` if there are none.
fn without(input: PlanningInput<'_>, hidden: &BTreeSet<JobKey>) -> Option<ClusterState> {
    (!hidden.is_empty()).then(|| input.state.without(hidden))
}
