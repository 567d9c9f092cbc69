//! FIFO: first come, first served, alone.
//!
//! The rule: jobs start in the order of their arrival; while the first one does not fit, nobody
//! behind it starts. First fit in node order ([`crate::allocation::first_fit`]). This is the base policy of Gavel
//! (github.com/stanford-futuredata/gavel) and of EaCO's comparison (arXiv 2412.08294).
//!
//! Our own choice: a job that asks for a range gets its least.

use crate::allocation::first_fit::{Room, never};
use crate::plan::input::PlanningInput;
use crate::plan::{Blocked, Decision, Plan};
use crate::policies::{Policy, Reads};

/// First come, first served, alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fifo;

impl Policy for Fifo {
    fn name(&self) -> &'static str {
        "fifo"
    }

    fn reads(&self) -> Reads {
        Reads::Nothing
    }

    fn solve(&self, input: PlanningInput<'_>) -> Plan {
        let mut plan = Plan::default();
        let mut room = Room::new(input.state);
        for (key, job) in input.state.queue() {
            if let Some((on, reason)) = room.first_fit(job) {
                room.take(&on);
                plan.decisions.push(Decision::start(key, on, reason));
            } else if let Some(reason) = never(input.state, job) {
                plan.decisions.push(Decision::Reject { job: key, reason });
            } else {
                plan.blocked = Some(Blocked { job: key, reason: room.why_not(job, None) });
                break;
            }
        }
        plan
    }
}
