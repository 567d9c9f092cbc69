//! The integration tests of this crate, linked as one binary.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod aim;
mod backfill;
mod budgets;
mod expected;
mod feeder_events;
mod feeders;
mod files;
mod generator;
mod grid_events;
mod inferred;
mod lockstep;
mod measured;
mod named;
mod peer;
mod power_histories;
mod recording;
mod runs;
mod settling;
mod traces;
mod twin;
