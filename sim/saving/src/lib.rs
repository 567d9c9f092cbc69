//! Results of simulated runs for operators: the price of an aim, the saving, and their pages.
//!
//! [`aim`] searches the energy price of a policy under a bound on mean completion time. [`seeds`] has the
//! changes of policies over several seeds of one simulation. [`estimate`] compares the schedule that a trace
//! records with the one that Wattle would have made. [`report`] renders the results as HTML pages.
//!
//! Nothing here is part of a service.

pub mod aim;
pub mod aim_run;
pub mod baseline;
pub mod estimate;
pub mod lateness;
pub mod parallel;
pub mod report;
pub mod schedule;
pub mod seeds;
pub mod spread;
