//! Access to a node's GPUs through NVML.
//!
//! Profiler and power agent read and control GPUs through the trait [`Driver`]. Its implementations are
//! NVML (`nvml`, the only file of the project that names `nvml_wrapper`), two that read with another driver
//! and set through Zeus's daemon (`zeusd`) or not at all ([`ReadOnlyDriver`]), and an in-memory one for
//! unit tests ([`fake`]). This crate makes no decisions. A quantity that cannot be read is `None`, never
//! zero.

mod counter;
mod device;
mod error;
pub mod fake;
#[cfg(feature = "zeusd")]
pub mod fake_zeusd;
mod health;
#[cfg(feature = "nvml")]
pub mod nvml;
mod read_only;
#[cfg(feature = "zeusd")]
pub mod zeusd;

pub use counter::{EnergyCounter, EnergyStep};
pub use device::{Driver, GpuInfo, GpuReading, ProcessReading};
pub use error::GpuError;
pub use health::{GpuHealth, Slowdown};
pub use read_only::ReadOnlyDriver;
pub use wattle_common::gpu_type::{gpu_type_of, is_superchip};

/// Environment variable with the path of the NVML library to load instead of the system's.
pub const LIBRARY_ENV: &str = "WATTLE_NVML_LIBRARY";
