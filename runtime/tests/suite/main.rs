//! The integration tests of this crate, linked as one binary.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod appender;
mod bus;
mod common;
mod copies;
mod lease;
mod service;
mod storage;
