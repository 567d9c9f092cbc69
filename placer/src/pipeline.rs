//! How every policy is asked: around its own rule stand those that hold for all of them.
//!
//! Before it, jobs that may wait for a cleaner grid are taken out of sight ([`crate::power::carbon_deferral`]), and
//! those that alone need more than the budget can ever feed, so that nobody waits behind them; after
//! it, what the plan would draw is kept within bounds ([`crate::power::limits`]). Where nothing is bounded
//! and nobody may wait, the policy's plan stands as it is.

use std::collections::{BTreeMap, BTreeSet};

use wattle_common::Power;

use crate::plan::input::PlanningInput;
use crate::plan::reason::Reason;
use crate::plan::{Blocked, Plan};
use crate::policies::Policy;
use crate::power::carbon_deferral::Deferrals;
use crate::power::limits::enforce;
use crate::power::model::{PowerEstimate, alone_w};
use crate::state::gpu_set::JobKey;

/// What is to be done now, with all that holds for every policy.
#[must_use]
pub fn solve(policy: &dyn Policy, input: PlanningInput<'_>) -> Plan {
    let deferred = Deferrals::of(policy, input);
    let too_dear = too_dear(policy, input);
    let hidden: BTreeSet<JobKey> =
        deferred.waiting.keys().chain(too_dear.keys()).copied().collect();
    let visible = (!hidden.is_empty()).then(|| input.state.without(&hidden));
    let seen = visible.as_ref().map_or(input, |visible| input.with_state(visible));
    let mut plan = policy.solve(seen);
    if !deferred.is_empty() {
        deferred.add_to(&mut plan);
    }
    let mut plan = enforce(policy, seen, plan);
    plan.deferred = deferred.waiting.len() as u32;
    if plan.blocked.is_none() {
        let first = hidden.iter().next();
        plan.blocked = first.and_then(|&job| {
            let reason = deferred.reason(job).or_else(|| too_dear.get(&job).cloned())?;
            Some(Blocked { job, reason })
        });
    }
    plan
}

/// Queued jobs that even at their min_power and alone need more than is there to start anything.
fn too_dear(policy: &dyn Policy, input: PlanningInput<'_>) -> BTreeMap<JobKey, Reason> {
    let mut found = BTreeMap::new();
    let Some(below) = input.limits.admission_limit else { return found };
    let thrift = PowerEstimate::under(policy);
    for (key, job) in input.state.queue() {
        // Who goes on with another size has started already.
        if job.next_gpus.is_some() {
            continue;
        }
        let drawn = alone_w(input, thrift, job);
        if drawn > below.as_w() {
            let drawn = Power::from_w_f64(drawn);
            found.insert(key, Reason::HeldBack { drawn, below });
        }
    }
    found
}
