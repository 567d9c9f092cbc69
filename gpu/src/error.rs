//! Errors of GPU operations, grouped by the caller's action.

use std::path::PathBuf;

use wattle_common::GpuIndex;

/// Why an operation on a GPU failed. `operation` completes the sentence "cannot ...".
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    /// The GPU fell off the bus. Report it, place no job on it, check again later.
    #[error("GPU {gpu} is lost: cannot {operation}; reset the GPU or reboot the node")]
    Lost {
        /// The GPU.
        gpu: GpuIndex,
        /// The failed operation.
        operation: &'static str,
    },
    /// Permanent until an operator acts. Report it and do not retry.
    #[error("GPU {gpu}: cannot {operation}: {remedy}")]
    Refused {
        /// The GPU.
        gpu: GpuIndex,
        /// The failed operation.
        operation: &'static str,
        /// The cause and the remedy.
        remedy: String,
    },
    /// The GPU does not support the operation. Continue without it.
    #[error("GPU {gpu}: cannot {operation}: not supported")]
    Unsupported {
        /// The GPU.
        gpu: GpuIndex,
        /// The failed operation.
        operation: &'static str,
    },
    /// Transient failure. Retry.
    #[error("GPU {gpu}: cannot {operation}: {detail}; retrying")]
    Retry {
        /// The GPU.
        gpu: GpuIndex,
        /// The failed operation.
        operation: &'static str,
        /// The driver's error.
        detail: String,
    },
    /// No NVIDIA driver.
    #[error(
        "no NVIDIA driver: cannot use the NVML library {}: {detail}; install the driver, or set {} to another NVML library",
        library.display(), crate::LIBRARY_ENV
    )]
    DriverAbsent {
        /// The NVML library.
        library: PathBuf,
        /// The error of the dynamic loader or the driver, without the library's name.
        detail: String,
    },
}
