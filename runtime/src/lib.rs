//! The shell every Wattle service shares: the bus, the clock, config, logs, shutdown.
//!
//! Decisions live in the services' own libraries, which do no I/O and read no clock. What they are
//! spared is here, once: [`bus`] is the only module of the project that names `async_nats`,
//! [`clock`] the only one that reads the time. Nothing here knows what a message means.

pub mod bus;
pub mod clock;
pub mod command;
pub mod config;
pub mod driver;
pub mod server;
pub mod service;
pub mod shell;
pub mod testing;
