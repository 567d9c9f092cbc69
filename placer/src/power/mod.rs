//! What jobs and nodes draw, what energy costs, and the bounds on both.

pub mod budget;
pub mod carbon_deferral;
pub mod energy_cost;
pub(crate) mod limits;
pub mod model;
pub(crate) mod step;
