//! The integration tests of this crate, linked as one binary.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod advise;
mod bounds;
mod caps_ahead;
mod conditions;
mod config;
mod grid_event;
mod model;
mod node_limit;
mod properties;
mod sleep;
mod stop;
mod topology;
mod unsupported;
