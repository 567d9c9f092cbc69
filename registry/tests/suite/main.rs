//! The registry: its decisions, and the service on a real nats-server.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bench;
#[cfg(feature = "service")]
mod evaluation;
mod registry;
mod scoring;
