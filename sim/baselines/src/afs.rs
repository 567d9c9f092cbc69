//! AFS: elastic sharing; each further GPU goes to the job that gains most from it.
//!
//! Apathetic future share (Hwang et al., Elastic resource sharing for distributed deep learning, NSDI
//! 2021) shares GPUs out one by one by the relative speed-up that a further GPU gives a job. It makes
//! no assumption about the future and has no model of energy. The rule here: every job gets its
//! minimum in arrival order; then the size of one job at a time is doubled, always of the job with the
//! highest relative speed-up per added GPU.
//!
//! Our own choices:
//! * Sizes are powers of two, so that they are blocks.
//! * The length of jobs, which the paper's first form weighs, is not used.
//! * A doubling must gain at least [`Afs::floor`] of the speed (1 is perfect scaling), 0 by default.
//!   With a floor, GPUs that gain little stay free, which saves energy. It is the tuning number.
//! * On a cluster with several GPU types jobs are assigned to types by the same relative speed-up
//!   ([`wattle_placer::policies::gpu_type_assignment`]).

use wattle_common::job::GpuSetting;

use wattle_placer::allocation::transition::Target;
use wattle_placer::plan::input::PlanningInput;
use wattle_placer::plan::reason::Reason;
use wattle_placer::plan::{Blocked, Plan};
use wattle_placer::policies::elastic::Sizing;
use wattle_placer::policies::gpu_type_assignment::assign_types;
use wattle_placer::policies::greedy::{Grant, RatedStep, first_grants, take_best_steps};
use wattle_placer::policies::{Build, Capabilities, Policy, PolicyEntry, Reads};
use wattle_placer::state::job::State;
use wattle_placer::state::operating_points::OperatingPoint;

/// Elastic sharing by relative speed-up per GPU.
#[derive(Clone, Copy, Debug, Default)]
pub struct Afs {
    /// The least speed-up of a doubling, relative to the speed before it.
    pub floor: f64,
}

impl Afs {
    /// Its line in the table of policies.
    pub const ENTRY: PolicyEntry = PolicyEntry {
        name: "afs",
        rule: "elastic: GPUs are doubled for the job with the highest relative speed-up per GPU",
        source: "Hwang et al., AFS, NSDI 2021",
        build: Build::Tuned {
            number: "least relative speed-up of a doubling; 0 by default",
            build: |floor| Box::new(Afs { floor: floor.unwrap_or(0.0) }),
        },
    };
}

/// The operating point at the default setting, or the first if the surface does not state it.
fn at_default(points: &[OperatingPoint]) -> Option<&OperatingPoint> {
    points.iter().find(|point| point.setting == GpuSetting::DEFAULT).or(points.first())
}

impl Afs {
    /// The step to the next size.
    fn next<'a>(&self, grant: &Grant<'a>, free: u32) -> Option<RatedStep<'a>> {
        let gpus = grant.point.gpus;
        let size = grant.job.sizes().find(|&size| size > gpus)?;
        let added = size - gpus;
        let to = at_default(grant.job.with_gpus(size)).filter(|_| added <= free)?;
        let gain = to.steps_per_s / grant.point.steps_per_s - 1.0;
        // The last size of a range may be less than twice the one before.
        let gain_of_a_doubling = gain * f64::from(gpus) / f64::from(added);
        let is_enough = gain > 0.0 && gain_of_a_doubling >= self.floor;
        is_enough.then_some(RatedStep { to, rating: gain / f64::from(added), tie_break: 0.0 })
    }
}

impl Policy for Afs {
    fn name(&self) -> &str {
        Self::ENTRY.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { reads: Reads::All, is_elastic: true, ..Capabilities::default() }
    }

    fn solve(&self, input: PlanningInput<'_>) -> Plan {
        let mut sizing = Sizing::of(input);
        // The rule compares relative gains, which are differences of the logarithm of speed.
        let unassigned = assign_types(input, &mut sizing, &|points, gpus| {
            at_default(points.with_gpus(gpus)).map(|point| point.steps_per_s.ln())
        });
        let (mut grants, unserved) = first_grants(&mut sizing, &unassigned, |job| {
            job.sizes().next().and_then(|size| at_default(job.with_gpus(size)))
        });
        take_best_steps(&mut grants, &mut sizing.free, |grant, free| self.next(grant, free));
        let targets = grants.iter().map(|grant| Target {
            gpu_type: grant.job.gpu_type().to_owned(),
            ..Target::exclusive(grant.job.key, grant.point.gpus)
        });
        let targets = targets.collect();
        let mut plan = sizing.plan(input, targets, grants.len() as u32);
        if plan.blocked.is_none() {
            let first = unserved.iter().find(|unserved| unserved.job.job.state == State::Queued);
            plan.blocked = first.map(|unserved| Blocked {
                job: unserved.job.key,
                reason: Reason::Outranked { before: unserved.before },
            });
        }
        plan
    }
}
