//! The integration tests of this crate, linked as one binary.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod aim;
mod capacity;
mod estimate;
mod html;
mod recorded;
mod report;
mod seeds;
