//! The models, one file each: formula, units, source of the constants.
//!
//! They know nothing of jobs, windows or each other; `job` puts them together.

pub mod cap;
pub mod interference;
pub mod scaling;
