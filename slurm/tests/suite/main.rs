//! Tests of the machine against models of Slurm and of the placer, and of the client with a running Slurm.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod absent;
mod attempts;
mod following;
mod intake_terms;
mod model;
mod placer;
mod properties;
#[cfg(feature = "service")]
mod real_slurm;
mod release;
mod rounds;
mod rules;
mod world;
