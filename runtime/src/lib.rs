//! I/O that all Wattle services share: bus, clock, configuration, files, logs, shutdown.
//!
//! The services' decision libraries do no I/O and read no clock. [`bus`] is the only module that names
//! `async_nats`, [`clock`] the only one that reads the time. The crate does not interpret messages.

pub mod bus;
pub mod clock;
pub mod command;
pub mod config;
pub mod driver;
pub mod files;
pub mod instance;
mod log_count;
mod log_limit;
mod log_lines;
pub mod metrics;
pub mod orders;
pub mod server;
pub mod service;
pub mod shell;
pub mod site_minutes;
pub mod testing;
pub mod traces;
pub mod user;
