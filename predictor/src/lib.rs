//! Learns how a job's speed and power answer to GPUs, clocks, caps and neighbours.
//!
//! Windows of running jobs come in ([`wattle_common::messages::JobWindow`]); surfaces go out
//! ([`wattle_common::messages::Surface`]): for every configuration a job could run in, its speed and
//! its cards' power, each with a 90 % interval. Where nothing of a job was seen yet, the surface is
//! a prior and says so.
//!
//! One model per file, each with its formula, units and the source of its constants:
//! [`model::cap`] (what is believed of caps and clocks), [`model::transfer`] (what other jobs showed
//! of them), [`model::shape`] and [`model::clock`] (a job's own curves), [`model::throughput`] (GPUs,
//! nodes and batch), [`model::interference`] (neighbours on the same card), [`model::pairs`] (what two classes do
//! to each other, from all pairs seen). [`fit`] is the one place that solves least
//! squares, through linfa. [`history`] is what outlives a job. [`method`] holds two other ways to
//! answer, that share all but the models.
//!
//! [`evaluate`] asks all of that how well it predicts measured runs.
//!
//! The library reads no clock and does no I/O: the same windows in the same order give the same
//! bytes. It never reaches the tables by which a simulated world judges it.

pub mod beside;
pub mod calibration;
pub mod cards;
pub mod config;
pub mod evaluate;
pub mod export;
pub mod fit;
pub mod history;
pub mod interval;
pub mod job;
pub mod likeness;
pub mod machine;
pub mod method;
pub mod model;
pub mod pooled;
pub mod predictor;
pub mod prior;
pub mod probe;
#[cfg(feature = "service")]
pub mod shell;
pub mod surface;
pub mod workload_name;

pub use config::PredictorConfig;
pub use machine::{Action, Event, PredictorMachine};
pub use method::Method;
pub use predictor::Predictor;
