//! The integration tests of this crate, linked as one binary, with the test clusters of the placer.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../../../placer/tests/suite/policies/helpers.rs"]
#[allow(dead_code, reason = "the placer's tests use all of it")]
mod helpers;
mod rules;
#[path = "../../../../placer/tests/suite/support.rs"]
mod support;
