//! FIFO: first come, first served, exclusively.
//!
//! Jobs start in arrival order; a job that does not fit blocks those behind it. Placement is first fit in node
//! order ([`crate::allocation::first_fit`]). This is the base policy of Gavel
//! (github.com/stanford-futuredata/gavel) and of EaCO's comparison (arXiv 2412.08294).
//!
//! Our own choice: a job with a range of sizes gets its minimum.

use crate::allocation::capacity::{FreeCapacity, Scope};
use crate::allocation::feasibility::infeasible;
use crate::allocation::first_fit::{first_fit, no_room};
use crate::plan::input::PlanningInput;
use crate::plan::{Blocked, Decision, Plan};
use crate::policies::{Build, Policy, PolicyEntry};
use crate::state::gpu_set::JobKey;
use crate::state::job::Job;

/// First come, first served, exclusively.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fifo;

impl Fifo {
    /// Its line in the table of policies.
    pub const ENTRY: PolicyEntry = PolicyEntry {
        name: "fifo",
        rule: "jobs start in arrival order, exclusively, by first fit; the first that does not fit blocks the rest",
        source: "base policy of Gavel and of EaCO (arXiv 2412.08294)",
        build: Build::Plain(|| Box::new(Fifo)),
    };
}

impl Policy for Fifo {
    fn name(&self) -> &str {
        Self::ENTRY.name
    }

    fn solve(&self, input: PlanningInput<'_>) -> Plan {
        let mut plan = Plan::default();
        let mut capacity = FreeCapacity::new(input.state, Scope::Idle);
        let head = start_in_order(input, &mut input.state.queue(), &mut capacity, &mut plan);
        plan.blocked = head.map(|(key, job)| {
            let reason = no_room(&capacity, job, None);
            Blocked { job: key, reason }
        });
        plan
    }
}

/// Starts the jobs of `queue` in its order by first fit, and rejects those that can never run. Returns the first that
/// does not fit now; those behind it stay in `queue`.
pub(super) fn start_in_order<'a>(
    input: PlanningInput<'a>,
    queue: &mut impl Iterator<Item = (JobKey, &'a Job)>,
    capacity: &mut FreeCapacity<'a>,
    plan: &mut Plan,
) -> Option<(JobKey, &'a Job)> {
    for (key, job) in queue {
        if let Some((on, reason)) = first_fit(capacity, job) {
            capacity.take(&on);
            plan.decisions.push(Decision::start(key, on, reason));
        } else if let Some(reason) = infeasible(input.state, job) {
            plan.decisions.push(Decision::Reject { job: key, reason });
        } else {
            return Some((key, job));
        }
    }
    None
}
