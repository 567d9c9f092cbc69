//! Watches GPUs and jobs: samples, step rates, windows, attribution.
//!
//! The profiler turns what cards read and jobs say into three kinds of news: what the node looks
//! like (telemetry, summaries), how jobs run under which conditions (windows, for the predictor),
//! and what was spent by whom (the ledger). Missing readings stay missing; nothing is ever made up
//! to be zero.
//!
//! The library decides ([`ProfilerMachine`]); the shell (feature `service`) reads the cards, listens
//! to the jobs' socket and talks to the bus. The library must not do I/O and must not read a clock,
//! and the profiler must not change a card: it has no way to.

pub mod attribution;
pub mod card;
pub mod config;
pub mod energy;
mod feed;
mod jobs;
pub mod ledger;
pub mod machine;
pub mod note;
pub mod process_tree;
pub mod rhythm;
#[cfg(feature = "service")]
pub mod shell;
pub mod steps;
mod window;

pub use card::{CardFacts, CardSample};
pub use config::{Config, Settings};
pub use ledger::State;
pub use machine::{Action, Event, ProfilerMachine};
pub use note::Note;
pub use process_tree::ProcessOrigin;
