//! A test policy that forces co-location trials and undoes them.

use wattle_common::job::GpuSetting;

use crate::plan::reason::NotShared;
use crate::policies::{Capabilities, Fifo, Policy};
use crate::{Decision, Plan, PlanningInput, Reads, Reason};

/// FIFO, except that a job named `undo-...` is first co-located with a running job, observed and
/// undone.
pub(super) struct ForcedColocation;

impl Policy for ForcedColocation {
    fn name(&self) -> &'static str {
        "forced-colocation"
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities { reads: Reads::Heads, shares_gpus: true, ..Capabilities::default() }
    }
    fn solve(&self, input: PlanningInput<'_>) -> Plan {
        let mut plan = Plan::default();
        let reason = || Reason::FreeGpus { not_shared: NotShared::Unknown };
        for (job, _) in input.state.observed() {
            plan.decisions.push(Decision::Undo { job, reason: reason() });
        }
        let (_, host) = match input.state.running().next() {
            Some(running) => running,
            None => return Fifo.solve(input),
        };
        for (job, known) in input.state.queue() {
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
                    setting: GpuSetting::DEFAULT,
                    observe: true,
                    reason: reason(),
                });
                return plan;
            }
        }
        let rest = Fifo.solve(input);
        plan.decisions.extend(rest.decisions);
        plan.blocked = rest.blocked;
        plan
    }
}
