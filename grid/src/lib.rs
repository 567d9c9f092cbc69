//! Carbon intensity and electricity prices of the grid, from their providers.
//!
//! A [`SignalSeries`] is what one read of a provider returned: intervals with a value in a fixed unit (g/kWh, or
//! the currency per kWh) and its [`Origin`]. [`electricity_maps`], [`watttime`], [`carbon_aware_sdk`],
//! [`entsoe`] and [`table`] parse; they are total functions of bytes. `client` reads over HTTP with time-outs,
//! limits and a schedule of retries, on threads of its own, so a caller never waits for a provider.
//!
//! **Why the placer reads.** The active placer owns the budget with its series, and the service lease already
//! leaves exactly one active. A service of its own would add a unit, a role and a lease for the same data.
//! A read can not delay a plan: its thread sends a finished series, as the bus sends a finished message.
//!
//! **Fallback.** Values of the last read, then values of an earlier read while they are valid (at most
//! [`VALID_MAX`]), then the constant of the configuration, which is required. The source in use is part of
//! every figure ([`wattle_common::messages::GridStatus`]).
//!
//! **Time.** All instants are UTC with an explicit offset in the source, so the days of 23 and 25 hours need
//! no rule. A row without an offset is refused.

pub mod carbon_aware_sdk;
pub mod chain;
pub mod config;
pub mod credential;
pub mod electricity_maps;
pub mod entsoe;
pub mod instant;
pub mod parse_error;
pub mod retry;
pub mod series;
pub mod table;
pub mod watttime;

#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "client")]
pub mod http;
#[cfg(feature = "client")]
pub mod poller;

pub use chain::{Chain, ChainConfig};
pub use config::GridConfig;
pub use parse_error::ParseError;
pub use series::{Interval, Signal, SignalSeries, VALID_MAX};

/// How a value was obtained.
pub use wattle_common::messages::Origin;
