//! Serde helpers for configuration values with checks beyond their type.
//!
//! Each service has one TOML file, whose keys contain their unit (`lease_ms`). The loader, which
//! reports the wrong key and its line, is in `runtime`.

use serde::{Deserialize, Deserializer};

use crate::bounds::DURATION_MAX;

/// Largest number in a configuration: ten years in milliseconds. Sums and products of a few such numbers do
/// not overflow.
pub const NUMBER_MAX: u64 = DURATION_MAX.as_secs() * 1_000;

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
