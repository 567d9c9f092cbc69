//! The models, one file each: formula, units, source of the constants.
//!
//! They know nothing of jobs, windows or each other; `job` puts them together.

pub mod cap;
pub mod clock;
pub mod constant;
pub mod interference;
pub mod pairs;
pub mod ridge;
pub mod shape;
pub mod throughput;
pub mod transfer;
