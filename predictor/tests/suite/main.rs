//! The integration tests of this crate, linked as one binary.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod calibration;
mod caps;
mod common;
mod counts;
mod inferred;
mod learning;
mod machine;
mod measured;
mod methods;
mod robustness;
mod scales;
mod service;
mod undeclared;
