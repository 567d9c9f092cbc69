//! A policy for tests that puts some jobs where no sensible policy would, to see them taken off again.

use wattle_common::job::CardSetting;

use crate::policy::{Fifo, Policy};
use crate::reason::Alone;
use crate::{Because, Decision, Plan, Problem};

/// FIFO, but for jobs called `undo-...`: those are first put beside another job, watched, and
/// taken off again.
pub(super) struct Tryst;

impl Policy for Tryst {
    fn name(&self) -> &'static str {
        "tryst"
    }
    fn reads(&self) -> crate::Reads {
        crate::Reads::Heads
    }
    fn solve(&self, problem: &Problem) -> Plan {
        let mut plan = Plan::default();
        let because = || Because::Idle { alone: Alone::Unknown };
        for (job, _) in problem.observed() {
            plan.decisions.push(Decision::Undo { job, because: because() });
        }
        let (_, host) = match problem.running().next() {
            Some(running) => running,
            None => return Fifo.solve(problem),
        };
        for (job, known) in problem.queue() {
            if let (true, true, Some(on), false) = (
                known.facts.id.as_str().starts_with("undo-"),
                known.undone_on.is_empty(),
                host.state.gpus(),
                plan.decisions.iter().any(|decision| decision.job() == job),
            ) && host.facts.request.max == known.facts.request.max
            {
                let on = on.clone();
                plan.decisions.push(Decision::Start {
                    job,
                    on,
                    setting: CardSetting::DEFAULT,
                    observe: true,
                    because: because(),
                });
                return plan;
            }
        }
        let rest = Fifo.solve(problem);
        plan.decisions.extend(rest.decisions);
        plan.blocked = rest.blocked;
        plan
    }
}
