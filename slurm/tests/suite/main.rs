//! Tests of this crate with programs outside the process.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod real_slurm;
