//! Why a row of a trace is left out.

use std::borrow::Cow;

/// Why a row of a trace is left out. The text continues "left out: ".
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    /// A required cell is empty.
    #[error("{0} is empty")]
    Missing(&'static str),
    /// A cell is not a number.
    #[error("{0} is not a number")]
    NotANumber(&'static str),
    /// A cell is negative.
    #[error("{0} is negative")]
    Negative(&'static str),
    /// A cell is not a time, or one beyond a thousand years.
    #[error("{0} is not a time")]
    NotATime(&'static str),
    /// A cell is zero.
    #[error("{0} is 0")]
    Zero(&'static str),
    /// A cell is not a positive integer.
    #[error("{0} is not a positive integer")]
    NotAPositiveInteger(&'static str),
    /// A cell is not a priority.
    #[error("{0} is not an integer from 0 to 4294967295")]
    NotAPriority(&'static str),
    /// A cell is neither `true` nor `false`.
    #[error("{0} is neither true nor false")]
    NotAFlag(&'static str),
    /// A cell is too long for an id.
    #[error("{0} is longer than an id allows")]
    IdTooLong(&'static str),
    /// A cell is not a date.
    #[error(
        "{0} is not a date such as 2024-05-01T13:00:00; export with SLURM_TIME_FORMAT=standard"
    )]
    NotADate(&'static str),
    /// A date is unknown.
    #[error("{0} is unknown")]
    Unknown(&'static str),
    /// A cell is not a duration in Slurm's notation.
    #[error("{column} `{cell}` is not a duration such as 1-02:03:04")]
    NotADuration {
        /// The column.
        column: &'static str,
        /// The cell, sanitized.
        cell: String,
    },
    /// A count in a list of resources is not a number of GPUs.
    #[error("{column} has an invalid number of GPUs: `{cell}`")]
    InvalidGpus {
        /// The column.
        column: &'static str,
        /// The resource, sanitized.
        cell: String,
    },
    /// The row has another number of cells than the header.
    #[error("it has {0} cells than the header: a `|` or a line break in a name or comment")]
    Width(&'static str),
    /// The row cannot be split into cells.
    #[error("it cannot be split into cells")]
    NoCells,
    /// A row with the same id was read before.
    #[error("an earlier row has the same job_id")]
    DuplicateId,
    /// The same run of a job was read before.
    #[error("the same run of the job is in the file twice; the row with the later end is used")]
    DuplicateRun,
    /// The row is a step of a job.
    #[error("it is a step of a job")]
    Step,
    /// The job never ran.
    #[error("it never ran")]
    NeverRan,
    /// The job ended before its nodes had booted.
    #[error("its nodes did not boot (BOOT_FAIL)")]
    BootFailure,
    /// Another cluster of a federation ran the job.
    #[error("another cluster of the federation ran it (REVOKED)")]
    Revoked,
    /// The job ended before it started.
    #[error("End is before Start")]
    EndBeforeStart,
    /// The job had no GPU.
    #[error("it had no GPU")]
    NoGpu,
    /// The job ran on parts of GPUs.
    #[error("it ran on slices of GPUs (MIG); slices are not simulated")]
    Slice,
    /// The job had a share of a GPU.
    #[error("it had a share of a GPU (gres/shard, gres/mps); shares are not simulated")]
    Share,
    /// The job had a part of a GPU.
    #[error("it had a part of a GPU; sharing inside a GPU is not simulated")]
    PartOfGpu,
    /// The object of a job is not one of this format.
    #[error("it is not a job of the format: {0}")]
    NoObject(String),
    /// No rate was measured for this job type.
    #[error("no measured rate of {job_type} on {gpus}")]
    NoRate {
        /// The job type, sanitized.
        job_type: String,
        /// The number of GPUs, as text.
        gpus: String,
    },
    /// Another problem.
    #[error("{0}")]
    Other(Cow<'static, str>),
}

impl RowError {
    /// An object of a JSON text that is no job.
    pub(super) fn json(error: &serde_json::Error) -> Self {
        // The place is that in the object, not in the file.
        let text = error.to_string();
        let cause = text.split(" at line ").next().unwrap_or_default();
        Self::NoObject(crate::text::sanitize(cause))
    }
}
