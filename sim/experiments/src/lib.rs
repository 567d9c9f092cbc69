//! Experiments on simulated runs: comparisons of policies, lower bounds on completion time, savings
//! over seeds, and report pages.
//!
//! [`compare`] runs policies over their tuning parameters and compares their frontiers of
//! completion time over energy ([`frontier`]) with each other and with lower bounds ([`bound`]).
//! [`aim`] searches the energy price of a policy under a bound on mean completion time. [`saving`]
//! summarizes one command's runs over several seeds. [`saving_estimate`] compares the schedule that a
//! trace records with the one that Wattle would have made. [`report`] renders the results as HTML
//! pages.
//!
//! Nothing here is part of a service; only the command line depends on this crate.

pub mod aim;
pub mod aim_run;
pub mod bound;
pub mod compare;
pub mod frontier;
pub mod report;
pub mod saving;
pub mod saving_estimate;
pub mod schedule;
