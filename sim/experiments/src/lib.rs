//! Comparisons of policies, lower bounds on completion time, and their report pages.
//!
//! [`compare`] runs policies over their tuning parameters and compares their frontiers of completion time
//! over energy ([`frontier`]) with each other and with lower bounds ([`bound`]). [`report`] renders the
//! results as an HTML page.

pub mod bound;
pub mod compare;
pub mod field_trial;
pub mod frontier;
pub mod grid_caiso;
pub mod grid_srp;
pub mod report;
