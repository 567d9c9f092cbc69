//! The live web page of a cluster.
//!
//! The [`model::Model`] collects what the cluster publishes, within bounds. [`pages::content`] computes
//! the content of a page from it as JSON, and [`patch::patch`] what has changed since the last time.
//! The service around them follows the bus and serves HTTP.

pub mod announced;
#[cfg(feature = "service")]
mod config;
pub mod model;
pub mod pages;
pub mod patch;
#[cfg(feature = "service")]
pub mod shell;
pub mod submission;
pub mod topic;

#[cfg(feature = "service")]
pub use config::Config;
#[cfg(feature = "service")]
pub use shell::run;
