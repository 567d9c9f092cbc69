//! The integration tests of this crate, linked as one binary.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bounds;
mod compare;
#[path = "../../../saving/tests/suite/html.rs"]
mod html;
mod power_limits;
mod report;
