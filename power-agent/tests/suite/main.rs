//! The integration tests of this crate, linked as one binary.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bounds;
mod config;
mod properties;
mod sleep;
mod topology;
