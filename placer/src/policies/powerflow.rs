//! PowerFlow: GPUs and clocks are raised step by step, where a step saves most time per energy.
//!
//! The rule is PowerFlow's (arXiv 2304.06381), as far as it is published: every job starts at its least
//! size; the next step (more GPUs or another clock) goes to the job with the greatest ratio of relative
//! time saved to relative energy spent ([`crate::power::step`]), until GPUs or the energy allowance end.
//! The abstract and a third-party port (chikoneuru/hasagi-parallelism) state that much. The paper's
//! models and its step over clocks are not published; our own choices are:
//!
//! * Sizes are powers of two. A step doubles the GPUs, with any clock, or raises the clock.
//! * A job starts at its least size, at the clock with the least energy of a training step.
//! * The allowance is a price: [`PlanningLimits::price`](crate::PlanningLimits::price) is the least ratio of a step that is taken, so no job
//!   waits for energy. A step that spends no more energy is always taken.
//! * Energy is the job's charge ([`crate::power::energy_cost`]).
//! * If GPUs do not suffice for the least size of every job, earlier jobs come first.
//! * On a cluster with several GPU types jobs are assigned to types by the same two relative gains,
//!   weighted by the price ([`super::gpu_type_assignment`]).

use std::collections::BTreeMap;

use crate::allocation::transition::Target;
use crate::plan::input::PlanningInput;
use crate::plan::reason::Reason;
use crate::plan::{Blocked, Plan};
use crate::policies::elastic::Sizing;
use crate::policies::gpu_type_assignment::assign_types;
use crate::policies::greedy::{Grant, RatedStep, first_grants, take_best_steps};
use crate::policies::{Build, Capabilities, Policy, PolicyEntry, RELATIVE_PRICES, Reads};
use crate::power::energy_cost::Charge;
use crate::power::step::{best_step, least_energy};
use crate::state::job::State;
use crate::state::operating_points::OperatingPoint;

/// Most time saved per energy, step by step.
#[derive(Clone, Copy, Debug, Default)]
pub struct PowerFlow;

impl PowerFlow {
    /// Its line in the table of policies.
    pub const ENTRY: PolicyEntry = PolicyEntry {
        name: "powerflow",
        rule: "elastic: GPUs and clocks are raised for the job with the most time saved per energy, down to a price",
        source: "PowerFlow, arXiv 2304.06381",
        build: Build::Plain(|| Box::new(PowerFlow)),
    };
}

impl Policy for PowerFlow {
    fn name(&self) -> &str {
        Self::ENTRY.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            reads: Reads::All,
            is_elastic: true,
            sets_gpus: true,
            prices: Some(RELATIVE_PRICES),
            ..Capabilities::default()
        }
    }

    fn solve(&self, input: PlanningInput<'_>) -> Plan {
        plan_at(input, input.limits.price)
    }
}

/// The best step of a job to its next size or to a faster clock, with a ratio of at least `price`.
fn next_step<'a>(
    charge: &Charge,
    price: f64,
    grant: &Grant<'a>,
    free: u32,
) -> Option<RatedStep<'a>> {
    let gpus = grant.point.gpus;
    let larger = grant.job.sizes().find(|&size| size > gpus).filter(|size| size - gpus <= free);
    let sizes = [Some(gpus), larger].into_iter().flatten();
    let step = best_step(charge, grant.point, sizes.flat_map(|gpus| grant.job.with_gpus(gpus)))?;
    (step.ratio >= price).then_some(RatedStep {
        to: step.to,
        rating: step.ratio,
        tie_break: step.saved,
    })
}

/// The plan in which every step has a ratio of at least `price`.
pub(super) fn plan_at(input: PlanningInput<'_>, price: f64) -> Plan {
    let mut sizing = Sizing::of(input);
    let types = sizing.free.by_name();
    let charges: BTreeMap<&str, Charge> =
        types.keys().map(|&gpu_type| (gpu_type, Charge::on(input, gpu_type))).collect();
    let charge = |gpu_type: &str| charges.get(gpu_type).copied().unwrap_or_default();
    // A step is taken if it saves `price` of relative time per relative energy, which is the value of
    // a unit of the logarithm of energy in units of the logarithm of speed.
    let unassigned = assign_types(input, &mut sizing, &|points, gpus| {
        let charge = charges.get(points.gpu_type.as_str())?;
        let value = |point: &OperatingPoint| {
            point.steps_per_s.ln() - price * charge.joules_per_step(point).ln()
        };
        points.with_gpus(gpus).iter().map(value).reduce(f64::max)
    });
    let (mut grants, unserved) = first_grants(&mut sizing, &unassigned, |job| {
        let size = job.sizes().next()?;
        least_energy(&charge(job.gpu_type()), job.with_gpus(size))
    });
    let first = unserved.iter().find(|unserved| unserved.job.job.state == State::Queued);
    let blocked = first.map(|unserved| {
        let (facts, free) = (&unserved.job.job.facts, unserved.free);
        let (requested, gpu_type) = (facts.request.min, facts.gpu_type.clone());
        let reason = Reason::NoRoom {
            requested,
            gpu_type,
            free,
            free_on_one_node: free,
            not_shared: None,
            reserved_at: None,
        };
        Blocked { job: unserved.job.key, reason }
    });
    take_best_steps(&mut grants, &mut sizing.free, |grant, free| {
        next_step(&charge(grant.job.gpu_type()), price, grant, free)
    });
    let targets = grants
        .iter()
        .map(|grant| Target {
            jobs: vec![grant.job.key],
            gpus: grant.point.gpus,
            gpu_type: grant.job.gpu_type().to_owned(),
            setting: grant.point.setting,
            reason: Reason::EfficientStep {
                gpus: grant.point.gpus,
                ratio: grant.last_rating,
                price,
            },
        })
        .collect();
    let mut plan = sizing.plan(input, targets, grants.len() as u32);
    plan.blocked = plan.blocked.or(blocked);
    plan
}
