//! Log messages of the machine, which does no I/O itself: one for each change.

use std::fmt;

use wattle_common::messages::Meter;
use wattle_common::{GpuIndex, JobId};

/// A log message for the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// A GPU cannot be read.
    Lost(GpuIndex, String),
    /// It can be read again.
    Recovered(GpuIndex),
    /// Its energy counter does not advance under load; power is integrated instead.
    CounterStuck(GpuIndex),
    /// Its energy is integrated from its power from the first reading on.
    MeteredByPower(GpuIndex),
    /// Its energy is not measured.
    NoMeter(GpuIndex),
    /// No GPU can be read.
    DriverFailed(String),
    /// A process that is not of a job reported progress for it; the user id of the process.
    ForeignProgress(JobId, Option<u32>),
}

impl Note {
    /// How the energy of a GPU is measured, where that is worth a line.
    pub(crate) fn of_meter(
        gpu: GpuIndex,
        before: Option<Meter>,
        now: Option<Meter>,
    ) -> Option<Self> {
        match (before, now) {
            (Some(Meter::None), Some(Meter::None)) => None,
            (_, Some(Meter::None)) => Some(Self::NoMeter(gpu)),
            (None | Some(Meter::None), Some(Meter::Power)) => Some(Self::MeteredByPower(gpu)),
            _ => None,
        }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(gpu, error) => write!(f, "GPU {gpu} cannot be read: {error}"),
            Self::Recovered(gpu) => write!(f, "GPU {gpu} can be read again"),
            Self::CounterStuck(gpu) => {
                write!(f, "GPU {gpu}: energy counter does not advance; power is integrated instead")
            }
            Self::MeteredByPower(gpu) => write!(
                f,
                "GPU {gpu}: energy is integrated from its power: it has no energy counter of its own"
            ),
            Self::NoMeter(gpu) => write!(
                f,
                "GPU {gpu}: energy is not known: power and energy are not supported; sums and budgets lack it"
            ),
            Self::ForeignProgress(job, uid) => {
                let uid = uid.map_or("unknown".to_owned(), |uid| uid.to_string());
                write!(f, "progress of job {job} ignored: its sender, user {uid}, is not the job")
            }
            Self::DriverFailed(error) => write!(f, "no GPU can be read: {error}"),
        }
    }
}
