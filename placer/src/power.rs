//! Power and energy: the power model, the cost of energy, the budget controller, the power limits and their correction by measurements.

pub mod bounds;
pub mod budget;
pub(crate) mod caps_ahead;
pub mod carbon_deferral;
pub mod carried;
pub mod correction;
pub mod energy_cost;
pub mod event_plan;
pub(crate) mod headroom;
pub mod limit_cost;
pub(crate) mod limits;
pub(crate) mod lowest_limit;
pub(crate) mod means;
pub mod model;
pub(crate) mod node_sleep;
pub(crate) mod over_budget;
pub mod promises;
pub mod recent_power;
pub mod site_minutes;
pub mod slowdown;
pub(crate) mod step;
