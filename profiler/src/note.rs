//! Log messages of the machine, which does no I/O itself: one for each change.

use std::fmt;

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
    /// No GPU can be read.
    DriverFailed(String),
    /// A process that is not of a job reported progress for it; the user id of the process.
    ForeignProgress(JobId, Option<u32>),
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(gpu, error) => write!(f, "GPU {gpu} cannot be read: {error}"),
            Self::Recovered(gpu) => write!(f, "GPU {gpu} can be read again"),
            Self::CounterStuck(gpu) => {
                write!(f, "GPU {gpu}: energy counter does not advance; power is integrated instead")
            }
            Self::ForeignProgress(job, uid) => {
                let uid = uid.map_or("unknown".to_owned(), |uid| uid.to_string());
                write!(f, "progress of job {job} ignored: its sender, user {uid}, is not the job")
            }
            Self::DriverFailed(error) => write!(f, "no GPU can be read: {error}"),
        }
    }
}
