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
        for (key, job) in input.state.queue() {
            if let Some((on, reason)) = first_fit(&capacity, job) {
                capacity.take(&on);
                plan.decisions.push(Decision::start(key, on, reason));
            } else if let Some(reason) = infeasible(input.state, job) {
                plan.decisions.push(Decision::Reject { job: key, reason });
            } else {
                plan.blocked = Some(Blocked { job: key, reason: no_room(&capacity, job, None) });
                break;
            }
        }
        plan
    }
}
