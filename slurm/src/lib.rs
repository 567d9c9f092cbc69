//! Connects Wattle with Slurm: follows the jobs that Slurm runs, and makes Slurm start, move and cancel
//! the jobs that Wattle places.
//!
//! One service per cluster stands beside slurmctld. It has the rights of a Slurm operator and never those of
//! root. Its machine compares what Slurm reports ([`SlurmView`]) with the desired states of all nodes and
//! the records of the jobs, and takes one step for each job; then it polls again. It remembers nothing that
//! neither Slurm nor the records contain, except which attempt it has released.

pub mod check;
pub mod client;
pub mod command;
pub mod config;
#[cfg(feature = "service")]
mod failure;
pub mod give_back;
pub mod gres_conf;
pub mod intake;
pub mod machine;
pub mod past;
#[cfg(feature = "service")]
pub mod shell;
pub mod tag;
pub mod text;
pub mod view;

pub use client::Client;
pub use command::{Command, Place, SlurmError};
pub use config::Config;
pub use machine::{Action, Alarm, Event, Settings, SlurmMachine};
pub use past::{PastRun, PastState, ScriptEnd};
pub use view::{SlurmJob, SlurmNode, SlurmState, SlurmView};
pub use wattle_site::{Level, PersistedState, Released};
