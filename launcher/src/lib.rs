//! Starts, checkpoints, moves and stops the processes of jobs on one node.
//!
//! The placer writes the desired state of the node; the launcher brings the processes to it and
//! reports the actual state. [`machine`] decides what to start, stop and report, without I/O.
//! [`run_spec`] works out one run in full: command, environment, log file.
//! An [`engine::Engine`] carries the decisions out; [`engine::local`] starts child
//! processes on this node. Nothing outside this module assumes local processes
//! (`docs/extending/engine.md`). [`shell`] connects machine, engine and bus.
//!
//! The launcher must not choose: which job runs, on which GPUs and until when is decided by the
//! placer.

pub mod config;
pub mod log;
pub mod machine;
pub mod run;
pub mod run_spec;

#[cfg(feature = "service")]
pub mod engine;
#[cfg(feature = "service")]
mod fault;
#[cfg(feature = "service")]
mod json_file;
#[cfg(feature = "service")]
pub mod output;
#[cfg(feature = "service")]
pub mod shell;
#[cfg(feature = "service")]
pub mod state;

pub use config::Config;
pub use machine::{Action, Event, Launcher, PersistedState};
pub use run::{Fault, Found, Handle, Outcome, Run, Status, StopStage};
pub use run_spec::RunSpec;
