//! Starts, checkpoints, moves and stops the processes of jobs on one node.
//!
//! The placer writes what should run here; this crate makes it so and reports what is. What to do
//! is decided in [`machine`], which is pure: it is told what is desired and what processes do, and
//! answers what to start, to signal, to report. [`order`] is one start, worked out in full.
//! The rest, behind the feature `service`, does it: [`folder`] keeps each start's facts on disk,
//! [`process`] knows `/proc` and signals, [`supervise`] is the small process that outlives the
//! launcher beside each job, and [`shell`] joins them with the bus.
//!
//! It must not choose: which job, which GPUs, when to stop is the placer's business.

pub mod config;
pub mod machine;
pub mod order;

#[cfg(feature = "service")]
pub mod folder;
#[cfg(feature = "service")]
pub mod process;
#[cfg(feature = "service")]
pub mod shell;
#[cfg(feature = "service")]
pub mod supervise;

pub use config::Config;
pub use machine::{Action, Event, Found, Launcher, Outcome, PersistedState, Run, Stage};
pub use order::Order;
