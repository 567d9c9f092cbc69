//! Checks a plan against the power bounds: no job starts and no node wakes within a bound that the plan
//! exceeds.
//!
//! Jobs that cannot stop may exceed a bound at their lowest settings; they do not make a plan invalid.

use std::collections::BTreeMap;

use wattle_common::job::GpuSetting;

use crate::plan::check::Violation;
use crate::plan::input::PlanningInput;
use crate::plan::{Decision, NodeDecision, Plan};
use crate::power::bounds::Bound;
use crate::power::model::{JobGpus, PowerSum};
use crate::state::gpu_set::{GpuSet, JobKey};
use crate::state::job::State;

/// Excess that rounding explains, as a share of the bound.
const ROUNDING: f64 = 1e-9;

/// The expected power of a plan.
fn power_sum<'a>(input: PlanningInput<'a>, plan: &Plan) -> PowerSum<'a> {
    let mut sum = PowerSum::new(input);
    let mut add = |key: JobKey, on: &GpuSet, setting: GpuSetting| {
        let node = on.by_node.first().and_then(|here| input.state.nodes().get(here.node.index()));
        if let (Some(job), Some(node)) = (input.state.job(key), node) {
            let gpus = JobGpus::on(input, job, &node.facts.gpu_type, on);
            sum.add(on, gpus.expected_w(input, setting));
        }
    };
    let set: BTreeMap<JobKey, GpuSetting> = plan
        .decisions
        .iter()
        .filter_map(|decision| match decision {
            Decision::Set { job, setting, .. } => Some((*job, *setting)),
            _ => None,
        })
        .collect();
    for (key, job) in input.state.running() {
        match &job.state {
            State::Running { on, setting, .. } | State::Stopping { on, setting } => {
                add(key, on, set.get(&key).copied().unwrap_or(*setting));
            }
            State::Queued => {}
        }
    }
    for decision in &plan.decisions {
        if let Decision::Start { job, on, setting, .. } = decision {
            add(*job, on, *setting);
        }
    }
    sum
}

/// Whether a plan is within all bounds.
pub(crate) fn is_within_bounds(input: PlanningInput<'_>, plan: &Plan) -> bool {
    let bounds = Bound::all(input);
    let sum = (!bounds.is_empty()).then(|| power_sum(input, plan));
    let fits = |bound: &Bound| {
        sum.as_ref().is_none_or(|sum| sum.bounded_w(bound, plan.nodes.iter()) <= bound.limit_w)
    };
    bounds.iter().all(fits)
}

/// Adds the bounds that a plan exceeds although it starts a job or wakes a node within them.
pub(super) fn check_power(input: PlanningInput<'_>, plan: &Plan, found: &mut Vec<Violation>) {
    let bounds = Bound::all(input);
    if bounds.is_empty() {
        return;
    }
    let sum = power_sum(input, plan);
    let starts = |bound: &Bound| {
        plan.decisions
            .iter()
            .any(|decision| matches!(decision, Decision::Start { on, .. } if bound.covers_any(on)))
    };
    let wakes = |bound: &Bound| {
        plan.nodes.iter().any(|decision| {
            matches!(decision, NodeDecision::Wake { .. }) && bound.covers(decision.node())
        })
    };
    for bound in bounds {
        let power_w = sum.bounded_w(&bound, plan.nodes.iter());
        if power_w > bound.limit_w * (1.0 + ROUNDING) && (starts(&bound) || wakes(&bound)) {
            found.push(Violation::PowerExceeded {
                bound: bound.name(),
                power_w: (power_w + bound.static_w()).round() as u64,
            });
        }
    }
}
