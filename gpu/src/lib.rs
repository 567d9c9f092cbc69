//! What a service may ask of a GPU, and NVML behind it.
//!
//! Profiler and power agent speak to cards through [`Driver`]. The trait is here because two
//! services need it and two things stand behind it: NVML (`nvml`, the only file of the project that
//! names `nvml_wrapper`) and a card in memory for unit tests ([`fake`]). This crate decides nothing:
//! which cap is right, and what a reading means, is the caller's business. A reading that a card
//! does not give is `None`, never zero.

mod counter;
mod device;
mod error;
pub mod fake;
mod kind;
#[cfg(feature = "nvml")]
pub mod nvml;

pub use counter::{EnergyCounter, Step};
pub use device::{Driver, GpuInfo, GpuReading, ProcessReading};
pub use error::GpuError;
pub use kind::kind_of;

/// Environment variable with the path of the NVML library to load, where it is not the system's.
pub const LIBRARY_ENV: &str = "WATTLE_NVML_LIBRARY";
