//! The integration tests of this crate, linked as one binary.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod account;
mod bounds;
mod ends;
mod engine;
mod faults;
mod limits;
mod machine;
mod memory_engine;
mod properties;
mod run_spec;
mod service;
mod support;
