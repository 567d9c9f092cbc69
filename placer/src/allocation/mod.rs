//! Placement: which GPUs of which nodes each job gets, and the decisions that lead from one allocation
//! to the next.

mod buddy;
pub mod capacity;
pub mod feasibility;
pub mod first_fit;
mod network;
pub mod restart_cost;
pub mod transition;
mod type_choice;
