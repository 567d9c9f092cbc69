//! What the machine wants said in the log: once, when it becomes so.

use std::fmt;

use wattle_common::GpuIndex;

/// Something a person who reads the log should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// A GPU cannot be read.
    Lost(GpuIndex, String),
    /// It can be read again.
    Recovered(GpuIndex),
    /// Its energy counter stands still under load; power is integrated instead.
    CounterStuck(GpuIndex),
    /// No GPU can be read.
    DriverFailed(String),
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(gpu, error) => write!(f, "gpu {gpu} cannot be read: {error}"),
            Self::Recovered(gpu) => write!(f, "gpu {gpu} can be read again"),
            Self::CounterStuck(gpu) => {
                write!(
                    f,
                    "gpu {gpu}'s energy counter stands still_since: power is integrated instead"
                )
            }
            Self::DriverFailed(error) => write!(f, "no tracker can be read: {error}"),
        }
    }
}
