//! Compares predictors: serves the champion's surfaces to the placer and scores every predictor.
//!
//! Every predictor proposes a surface for each job. [`Registry`] checks each proposal ([`check`]),
//! passes the champion's on to the placer, and scores all of them against the windows that close
//! later ([`score`]). An operator promotes a predictor; the registry never does. Where the champion
//! is silent, gone or failing, its last valid surface stays in force, and after a timeout a prior
//! ([`prior`]) replaces it.
//!
//! The library reads no clock and does no I/O; [`service`] connects it to the bus. It depends on no
//! predictor: a proposal is only a message.

pub mod check;
pub mod config;
mod contender;
pub mod event;
mod gpu_types;
mod job;
pub mod prior;
pub mod proposal;
pub mod registry;
pub mod score;
#[cfg(feature = "service")]
pub mod service;

pub use config::RegistryConfig;
pub use event::{Action, Event, Notice};
pub use registry::{Registry, UnknownPredictor};
