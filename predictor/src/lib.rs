//! Predicts the speed and power of a job over GPUs, nodes, batch size, caps, clocks and neighbours.
//!
//! Input: windows of running jobs ([`wattle_common::messages::JobWindow`]). Output: surfaces
//! ([`wattle_common::messages::Surface`]) with a step rate and a power for every configuration that a
//! job could run in, each with a 90 % interval. A job without windows gets a surface from the history
//! of its class, or from priors, and the surface states which.
//!
//! Modules, from the bottom up:
//!
//! * [`statistics`]: Bayesian least squares; intervals. No knowledge of jobs.
//! * [`model`]: one file for each model, with formula, units and the source of its constants:
//!   [`model::cap`] (priors of caps and clocks), [`model::transfer`] (the same, learned from other
//!   jobs), [`model::cap_curve`] and [`model::clock`] (a job's own curves), [`model::throughput`]
//!   (GPUs, nodes and batch), [`model::interference`] (co-located jobs), [`model::pairs`] (pairs of
//!   workload classes). [`prior`]: constants from data sheets and published measurements.
//! * [`gpu_types`]: the limits of each GPU type.
//! * [`history`]: what outlives a job, by workload class; [`pooled`]: models fitted to all of it.
//! * [`job`]: one job's windows and fitted models.
//! * [`configurations`]: what a surface lists; [`method`]: what is predicted for each, by the physical
//!   models or by statistics alone; [`calibration`]: intervals from earlier prediction errors.
//! * [`predictor`]: all of that for many jobs, from a window (`predictor/src/predictor/learning.rs`) to a surface
//!   (`predictor/src/predictor/surface.rs`); [`machine`]: the service's decisions.
//!
//! The library reads no clock and does no I/O: the same windows in the same order give the same
//! bytes. It does not depend on the simulated hardware that it is evaluated on.

pub mod calibration;
pub mod config;
pub mod configurations;
pub mod export;
pub mod gpu_types;
pub mod history;
pub mod job;
pub mod machine;
pub mod method;
pub mod model;
pub mod pooled;
pub mod predictor;
pub mod prior;
#[cfg(feature = "service")]
pub mod shell;
pub mod statistics;
pub mod workload_name;

pub use config::PredictorConfig;
pub use machine::{Action, Event, PredictorMachine};
pub use method::Method;
pub use predictor::Predictor;
