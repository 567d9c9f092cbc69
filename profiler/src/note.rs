//! What the machine wants said in the log: once, when it becomes so.

use std::fmt;

use wattle_common::GpuIndex;

/// Something a person who reads the log should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// A card cannot be read.
    Lost(GpuIndex, String),
    /// It can be read again.
    Back(GpuIndex),
    /// Its energy counter stands still under load; power is integrated instead.
    CounterStuck(GpuIndex),
    /// No card can be read.
    DriverAway(String),
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(gpu, error) => write!(f, "gpu {gpu} cannot be read: {error}"),
            Self::Back(gpu) => write!(f, "gpu {gpu} can be read again"),
            Self::CounterStuck(gpu) => {
                write!(f, "gpu {gpu}'s energy counter stands still: power is integrated instead")
            }
            Self::DriverAway(error) => write!(f, "no card can be read: {error}"),
        }
    }
}
