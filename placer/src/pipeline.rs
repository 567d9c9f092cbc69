//! The stages of a planning round, in order. They are the same for every policy.
//!
//! 1. Carbon deferral hides queued jobs that wait for a cleaner grid ([`crate::power::carbon_deferral`]).
//! 2. Jobs that need more power than the budget ever supplies are hidden, so that no job queues
//!    behind them.
//! 3. Quotas and fair shares hide the queued jobs of accounts at their limit and bound the sizes of elastic
//!    jobs ([`crate::accounts::stage`]).
//! 4. The policy plans. If it shares GPUs, the co-location trial ([`crate::policies::colocation_trial`])
//!    first decides about ended observations, and observes the jobs that the policy co-locates. Jobs that
//!    have not settled are not moved ([`crate::allocation::settling`]). Starts that break a rule of the
//!    site's scheduler move ([`crate::allocation::site_rules`]).
//! 5. One clock for all jobs replaces caps and clocks, if it is selected (`@MHZ`).
//! 6. Node sleep wakes nodes for queued jobs and puts unused ones to sleep ([`crate::power::node_sleep`]).
//! 7. Carbon deferral pauses running jobs.
//! 8. Power limits lower settings, hold back starts and stop jobs until the plan keeps every limit
//!    ([`crate::power::limits`]).
//!
//! Without limits and deferrals the policy's plan passes unchanged.

use std::collections::{BTreeMap, BTreeSet};

use wattle_common::Power;

use crate::accounts;
use crate::plan::capabilities::Capabilities;
use crate::plan::input::PlanningInput;
use crate::plan::reason::Reason;
use crate::plan::{Blocked, Plan};
use crate::policies::Policy;
use crate::power::carbon_deferral::Deferrals;
use crate::power::limits::enforce;
use crate::power::model::{PowerEstimate, alone_w};
use crate::state::gpu_set::JobKey;

/// The plan of one round.
#[must_use]
pub fn solve(policy: &dyn Policy, input: PlanningInput<'_>) -> Plan {
    let capabilities = policy.capabilities();
    let deferrals = Deferrals::of(capabilities, input);
    let infeasible = infeasible_under_budget(capabilities, input);
    let hidden: BTreeSet<JobKey> =
        deferrals.waiting.keys().chain(infeasible.keys()).copied().collect();
    let visible = (!hidden.is_empty()).then(|| input.state.without(&hidden));
    let input = visible.as_ref().map_or(input, |visible| input.with_state(visible));

    let accounts = accounts::stage::limit(&input.limits.accounts, capabilities.is_elastic, input);
    let held_back: BTreeSet<JobKey> = accounts.held_back.keys().copied().collect();
    let visible = (!held_back.is_empty()).then(|| input.state.without(&held_back));
    let input = visible.as_ref().map_or(input, |visible| input.with_state(visible));
    let input = PlanningInput { sizes_max: Some(&accounts.sizes_max), ..input };

    // Stages 4 to 6 are inside the selected policy: `policies/staged.rs`.
    let mut plan = policy.solve(input);
    if !deferrals.is_empty() {
        deferrals.add_to(&mut plan);
    }
    let mut plan = enforce(capabilities, input, plan);

    let first = |(job, reason): (JobKey, Option<Reason>)| Some(Blocked { job, reason: reason? });
    plan.held_back = accounts.held_back.into_iter().filter_map(first).collect();
    plan.deferred = deferrals.waiting.len() as u32;
    if plan.blocked.is_none() {
        plan.blocked = hidden.iter().next().and_then(|&job| {
            let reason = deferrals.reason(job).or_else(|| infeasible.get(&job).cloned())?;
            Some(Blocked { job, reason })
        });
    }
    plan
}

/// Queued jobs that exceed the admission limit even alone on the cluster and at their lowest power.
fn infeasible_under_budget(
    capabilities: Capabilities,
    input: PlanningInput<'_>,
) -> BTreeMap<JobKey, Reason> {
    let mut found = BTreeMap::new();
    let Some(below) = input.limits.admission_limit else { return found };
    let estimate = PowerEstimate::under(capabilities);
    for (key, job) in input.state.queue() {
        // A job that continues with another size is admitted already.
        if job.next_gpus.is_some() {
            continue;
        }
        let drawn = alone_w(input, estimate, job);
        if drawn > below.as_w() {
            let drawn = Power::from_w_f64(drawn);
            found.insert(key, Reason::HeldBack { drawn, below });
        }
    }
    found
}
