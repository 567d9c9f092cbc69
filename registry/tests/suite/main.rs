//! The registry: its decisions, and the service on a real nats-server.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[cfg(feature = "service")]
mod evaluation;
mod registry;
