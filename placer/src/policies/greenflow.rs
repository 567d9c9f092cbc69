//! GreenFlow: PowerFlow's steps under a carbon budget.
//!
//! GreenFlow (IEEE TPDS 36(2), 2025) is known from its abstract: it lowers completion time under a carbon
//! budget, with models like PowerFlow's and the grid's intensity. The rest is our own. The relative carbon of a
//! step equals its relative energy while the intensity stays the same, so the order of steps is PowerFlow's.
//! Only the price follows the grid: it is multiplied by the intensity now over its expected mean
//! ([`crate::PlanningLimits::carbon_ratio`]). A power of one needs no forecast; a higher power gains nothing on
//! the measured series. At constant intensity the plans are PowerFlow's.

use crate::plan::Plan;
use crate::plan::input::PlanningInput;
use crate::policies::powerflow::{PowerFlow, plan_at};
use crate::policies::{Build, Capabilities, Policy, PolicyEntry};

/// Most time saved per carbon, step by step.
#[derive(Clone, Copy, Debug, Default)]
pub struct GreenFlow;

impl GreenFlow {
    /// Its line in the table of policies.
    pub const ENTRY: PolicyEntry = PolicyEntry {
        name: "greenflow",
        rule: "PowerFlow with a price that follows the grid's carbon intensity",
        source: "GreenFlow, IEEE TPDS 36(2), 2025",
        build: Build::Plain(|| Box::new(GreenFlow)),
    };
}

impl Policy for GreenFlow {
    fn name(&self) -> &str {
        Self::ENTRY.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { follows_grid: true, ..PowerFlow.capabilities() }
    }

    fn solve(&self, input: PlanningInput<'_>) -> Plan {
        plan_at(input, input.limits.price_now())
    }
}
