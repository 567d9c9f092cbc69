//! Statistical methods that know nothing of jobs.

pub mod interval;
pub mod regression;
