//! Follows the events of an OpenADR 3.1 server (VTN) as a client (VEN).
//!
//! The service polls the events of the configured programs. Each interval of an event becomes a grid event, which is
//! announced to the placer by the request that `wattle event add` sends; changes and cancellations follow the same way.
//! The reports that an event requests are sent to the server. Whether an event is accepted, and how its target is kept,
//! is the placer's decision.
//!
//! | part | where |
//! |---|---|
//! | the messages of the server, with their limits | [`wire`] |
//! | durations and starts of ISO 8601 | [`period`] |
//! | from an event to its intervals with times and depths | [`translate`] |
//! | which requests and reports follow from the server's events and the placer's records | [`machine`], [`report`] |
//! | the energy of the site over an interval, by its power in each minute | [`usage`] |
//! | HTTP with a token | `client` |
//! | bus and clock | `shell` |
//!
//! The service stores nothing: what was announced is in the placer's records, and a report has a name by which it is
//! found again. After a restart it requests what differs from the records.

#[cfg(feature = "service")]
pub mod client;
pub mod config;
pub mod machine;
pub mod period;
pub mod report;
#[cfg(feature = "service")]
pub mod shell;
pub mod translate;
pub mod usage;
pub mod wire;

pub use config::Config;
pub use machine::{Action, Event, VenMachine};
