//! What can go wrong with a card, by what the caller does about it.

use std::path::PathBuf;

use wattle_common::GpuIndex;

/// Why a card did not do as asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    /// The card fell off the bus. Report it, give it no work, look again later.
    #[error("gpu {gpu} is gone ({what}); the node may need a reset or a reboot to get it back")]
    Gone {
        /// The card.
        gpu: GpuIndex,
        /// What was asked of it.
        what: &'static str,
    },
    /// Not now and not later, unless somebody changes something: say so, and ask no more.
    #[error("gpu {gpu} refused to {what}: {remedy}")]
    Refused {
        /// The card.
        gpu: GpuIndex,
        /// What was asked of it.
        what: &'static str,
        /// What is wrong, and what to do about it.
        remedy: String,
    },
    /// This card cannot do that. Live without it.
    #[error("gpu {gpu} cannot {what}")]
    Unsupported {
        /// The card.
        gpu: GpuIndex,
        /// What was asked of it.
        what: &'static str,
    },
    /// It failed this time; ask again.
    #[error("gpu {gpu} failed to {what}: {detail}; it is tried again")]
    Retry {
        /// The card.
        gpu: GpuIndex,
        /// What was asked of it.
        what: &'static str,
        /// What the driver says.
        detail: String,
    },
    /// There is no NVIDIA driver to ask.
    #[error("no NVIDIA driver through {}: {detail}; install the driver, or name its NVML library", library.display())]
    DriverAbsent {
        /// The library that was to be loaded.
        library: PathBuf,
        /// What the loader or the driver says.
        detail: String,
    },
}
