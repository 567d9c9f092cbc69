//! The integration tests of this crate, linked as one binary.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod config;
mod day;
mod loops;
mod machine;
mod period_detection;
