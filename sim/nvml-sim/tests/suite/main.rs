//! The integration tests of this crate, linked as one binary.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod clock;
mod driver;
mod health;
mod jobs;
mod processes;
mod python;
mod simnode;
mod state;
mod support;
