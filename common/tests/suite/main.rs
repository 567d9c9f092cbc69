//! The integration tests of this crate, linked as one binary.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod golden;
mod ledger;
mod messages_doc;
mod telemetry_doc;
