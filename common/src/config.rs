//! Serde helpers for configuration values that need a check beyond their type.
//!
//! Configuration is one TOML per service; keys carry their unit (`lease_ms`). The loader that
//! names the wrong key and its line lives in `runtime`; what lives here is only what two services
//! check alike.

use serde::{Deserialize, Deserializer};

/// Deserialises a number that must be greater than zero.
///
/// # Errors
/// A serde error that says so, for zero.
pub fn non_zero<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let value = u64::deserialize(deserializer)?;
    if value == 0 {
        return Err(serde::de::Error::custom("must be greater than 0"));
    }
    Ok(value)
}

/// Deserialises how many GPUs are on a board, where that is said: a power of two.
///
/// # Errors
/// A serde error that says so, for any other number.
pub fn board<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    let value = Option::<u32>::deserialize(deserializer)?;
    match value.filter(|gpus| !gpus.is_power_of_two()) {
        Some(_) => Err(serde::de::Error::custom("must be 1, 2, 4, 8, ...")),
        None => Ok(value),
    }
}
