//! GreenFlow: PowerFlow's steps under a carbon budget.
//!
//! GreenFlow (IEEE TPDS 36(2), 2025) is known by its abstract: it lowers completion time under a
//! budget of carbon, with PowerFlow's kind of models and the grid's intensity. The rest is our own.
//! A step's relative spending of carbon is that of energy as long as the intensity is what it is
//! now, so the order of steps is PowerFlow's, and only the price follows the grid: it is multiplied
//! by the intensity now over its expected mean ([`crate::PlanningLimits::carbon_ratio`]). A power of one needs no
//! forecast, and more of it gains nothing on the measured series. Under constant intensity the plans
//! are PowerFlow's own.

use crate::plan::Plan;
use crate::plan::input::PlanningInput;
use crate::policies::powerflow::plan_at;
use crate::policies::{Policy, RELATIVE_PRICES, Reads};
use crate::power::budget::PriceRange;

/// Most time per carbon, step by step.
#[derive(Clone, Copy, Debug, Default)]
pub struct GreenFlow;

impl Policy for GreenFlow {
    fn name(&self) -> &str {
        "greenflow"
    }

    fn reads(&self) -> Reads {
        Reads::All
    }

    fn sets_cards(&self) -> bool {
        true
    }

    fn prices(&self) -> Option<PriceRange> {
        Some(RELATIVE_PRICES)
    }

    fn follows_grid(&self) -> bool {
        true
    }

    fn solve(&self, input: PlanningInput<'_>) -> Plan {
        plan_at(input, input.limits.price_now())
    }
}
