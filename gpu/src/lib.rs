//! The device trait, and NVML behind it.
