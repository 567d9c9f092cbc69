//! The models, one file each: formula, units, source of the constants.
//!
//! They know nothing of jobs, windows or each other's results; [`crate::job`] combines them.

pub mod cap;
pub mod cap_curve;
pub mod cap_forms;
pub mod clock;
pub mod constant;
pub mod interference;
pub mod pairs;
pub mod ridge;
pub mod throughput;
pub mod transfer;
