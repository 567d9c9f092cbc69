//! Where jobs run: which GPUs of which nodes, and the steps from one allocation to the next.

pub mod blocks;
pub mod buddy;
pub mod first_fit;
mod network;
pub mod restart_cost;
mod room;
pub mod transition;
