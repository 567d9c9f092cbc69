//! Serde helpers for configuration values with checks beyond their type.
//!
//! Each service has one TOML file, whose keys contain their unit (`lease_ms`). The loader, which
//! reports the wrong key and its line, is in `runtime`.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Deserializer};

use crate::bounds::DURATION_MAX;
use crate::lease::{SERVICE_LEASE_DEFAULT, SERVICE_LEASE_MAX, SERVICE_LEASE_MIN};

/// Largest number in a configuration: ten years in milliseconds. Sums and products of a few such numbers do
/// not overflow.
pub const NUMBER_MAX: u64 = DURATION_MAX.as_secs() * 1_000;

/// Why the values of a configuration contradict each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The byte of the file at which the wrong value or its table begins; absent: not one place.
    pub at: Option<usize>,
    /// The keys and the remedy.
    pub text: String,
}

impl From<String> for Problem {
    fn from(text: String) -> Self {
        Self { at: None, text }
    }
}

/// The `[metrics]` table of every service's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetricsConfig {
    /// Address of the endpoint for Prometheus, `127.0.0.1:19401`; port 0 is a free one. Absent: no endpoint.
    #[serde(default)]
    pub listen: Option<SocketAddr>,
    /// File to which the address is written for Prometheus's `file_sd_configs`.
    #[serde(default)]
    pub targets_file: Option<PathBuf>,
}

/// The `[traces]` table of a service's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TracesConfig {
    /// Where spans are sent by OTLP over HTTP: `http://127.0.0.1:4318/v1/traces`. Absent: no spans.
    #[serde(default, deserialize_with = "http_url")]
    pub otlp_url: Option<String>,
}

fn http_url<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let url = String::deserialize(deserializer)?;
    let host =
        url.strip_prefix("http://").filter(|host| !host.is_empty() && !host.starts_with('/'));
    if host.is_none() {
        return Err(serde::de::Error::custom(format!(
            "`{url}` is not of the form http://HOST:PORT/v1/traces; reach a collector with TLS through one \
             on this host"
        )));
    }
    Ok(Some(url))
}

/// Deserialises a number from 1 to [`NUMBER_MAX`].
///
/// # Errors
/// For any other number.
pub fn non_zero<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let value = u64::deserialize(deserializer)?;
    if value == 0 {
        return Err(serde::de::Error::custom("must be greater than 0"));
    }
    if value > NUMBER_MAX {
        return Err(serde::de::Error::custom(format!("must be at most {NUMBER_MAX}")));
    }
    Ok(value)
}

/// Deserialises an optional power limit, watts: greater than 0 and at most [`NUMBER_MAX`].
///
/// # Errors
/// For any other number.
pub fn watts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    non_zero(deserializer).map(Some)
}

/// Deserialises the length of a service's lease, milliseconds: half a second to ten minutes.
///
/// # Errors
/// For any other length.
pub fn service_lease<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let value = u64::deserialize(deserializer)?;
    let length = std::time::Duration::from_millis(value);
    if (SERVICE_LEASE_MIN..=SERVICE_LEASE_MAX).contains(&length) {
        return Ok(value);
    }
    Err(serde::de::Error::custom("must be from 500 to 600_000"))
}

/// [`SERVICE_LEASE_DEFAULT`], milliseconds.
#[must_use]
pub const fn service_lease_default() -> u64 {
    SERVICE_LEASE_DEFAULT.as_millis() as u64
}

/// Deserialises an optional number of GPUs on a board: a power of two.
///
/// # Errors
/// For any other number.
pub fn board<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    let value = Option::<u32>::deserialize(deserializer)?;
    match value.filter(|gpus| !gpus.is_power_of_two()) {
        Some(_) => Err(serde::de::Error::custom("must be 1, 2, 4, 8, ...")),
        None => Ok(value),
    }
}
