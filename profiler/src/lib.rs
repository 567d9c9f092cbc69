//! Watches GPUs and jobs: samples, step rates, windows, attribution.
//!
//! The profiler turns what GPUs read and jobs say into three kinds of news: what the node looks
//! like (telemetry, summaries), how jobs run under which conditions (windows, for the predictor),
//! and what was spent by whom (the ledger). Missing readings stay missing; nothing is ever made up
//! to be zero.
//!
//! The library decides ([`ProfilerMachine`]); the shell (feature `service`) reads the GPUs, listens
//! to the jobs' socket and talks to the bus. The library must not do I/O and must not read a clock,
//! and the profiler must not change a GPU: it has no way to.

pub mod attribution;
pub mod config;
pub mod energy;
pub mod gpu_tracker;
mod jobs;
pub mod ledger;
pub mod machine;
pub mod note;
pub mod period_detection;
pub mod process_tree;
#[cfg(feature = "service")]
pub mod shell;
pub mod steps;
mod window;
mod windowing;

pub use config::{Config, Settings};
pub use gpu_tracker::{GpuFacts, SampledGpu};
pub use ledger::State;
pub use machine::{Action, Event, ProfilerMachine};
pub use note::Note;
pub use process_tree::ProcessOrigin;
