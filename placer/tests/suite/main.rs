//! The integration tests of this crate, linked as one binary.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod aim_projects;
mod elastic;
mod event_plan;
mod expected;
mod failover;
mod policies;
mod service;
mod settling;
mod site;
mod slowdown;
mod support;
mod twin;
mod wattle;
