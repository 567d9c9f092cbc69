//! Trace files: readers for several formats, one module per format.
//!
//! The format is recognized by the file's columns, or given by the caller. An error names the
//! missing column of a file in no known format, or what the file looks like. Columns that are not read, and rows that are left
//! out or unusual, are reported in notes with their lines.

mod acme;
mod chronus;
mod elasticflow;
mod foreign;
mod format;
mod gavel;
mod helios;
pub mod inferred;
mod json;
mod lines;
mod local_times;
mod notes;
mod pai2020;
mod pai2023;
mod philly;
mod philly_json;
mod reading;
mod row;
mod row_error;
mod slurm;
mod slurm_cells;
mod slurm_json;
mod slurm_runs;
#[cfg(test)]
mod tests;
mod tiresias;

use std::path::{Path, PathBuf};
use std::time::Duration;

use wattle_common::JobId;

use format::{FORMATS, known};

pub use inferred::{InferError, InferredCluster, infer};
pub use notes::RowNote;
pub use reading::JOBS_MAX;
pub use row_error::RowError;

use crate::input_file::{self, InputError, TRACE_BYTES_MAX};
use crate::text::pluralize;

/// Slurm rounds times to seconds.
const ROUNDING: Duration = Duration::from_secs(1);

/// The kind of a job's deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeadlineKind {
    /// A late job has no value.
    #[default]
    Strict,
    /// A late job has less value.
    Soft,
    /// No deadline.
    BestEffort,
}

/// One job of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceJob {
    /// Its id, with invalid characters replaced.
    pub id: JobId,
    /// Submission time, from the start of the trace.
    pub submit: Duration,
    /// Run time at its placement without co-tenants. Between its recorded start and end a job runs for this time
    /// and is suspended for the rest.
    pub duration: Duration,
    /// Number of GPUs.
    pub gpus: u32,
    /// The model's name in the trace.
    pub model: Option<String>,
    /// Global batch size, samples.
    pub batch: Option<u32>,
    /// Number of steps.
    pub iterations: Option<u64>,
    /// The catalog's workload, where the trace names one.
    pub workload: Option<String>,
    /// The workload measured for this job type and its number of steps; used where the catalog has
    /// it.
    pub measured_as: Option<(String, u64)>,
    /// Deadline, from the start of the trace.
    pub deadline: Option<Duration>,
    /// The kind of the deadline.
    pub deadline_kind: DeadlineKind,
    /// The time limit of the run, where the trace states it.
    pub time_limit: Option<Duration>,
    /// The priority that the site's scheduler gave it, higher first; 0 where the trace has none.
    pub site_priority: u32,
    /// The owner.
    pub user: Option<String>,
    /// The account or virtual cluster to which the site's scheduler charged the job.
    pub account: Option<String>,
    /// Recurring jobs have the same name here and get the same workload.
    pub recurs_as: Option<String>,
    /// The requested GPU type, as named in the trace.
    pub gpu_type: Option<String>,
    /// Recorded start of the run, from the start of the trace; `None` where the trace has none.
    pub started: Option<Duration>,
    /// Recorded end of the run, from the start of the trace, at least [`Self::duration`] after the start; of a
    /// running job, the time of the export. `None` where the trace has none.
    pub ended: Option<Duration>,
    /// Whether the job can resume from a checkpoint; `None` where the trace does not state it.
    pub can_checkpoint: Option<bool>,
    /// The cluster that ran it, where the trace names it.
    pub cluster: Option<String>,
    /// The partition that ran it.
    pub partition: Option<String>,
    /// Number of nodes that ran it.
    pub nodes: Option<u32>,
    /// Host names of the nodes that ran it; empty where the trace does not state them.
    pub node_names: Vec<String>,
}

impl Trace {
    /// Keeps only the first jobs, and adds a note.
    pub fn keep_first(&mut self, jobs: usize) {
        if jobs < self.jobs.len() {
            let what = format!("the first {jobs} of {}", pluralize(self.jobs.len(), "job"));
            self.jobs.truncate(jobs);
            self.notes.push(RowNote { what, count: 0, lines: Vec::new() });
        }
    }
}

impl TraceJob {
    /// A job with only the required properties.
    #[must_use]
    pub const fn new(id: JobId, submit: Duration, duration: Duration, gpus: u32) -> Self {
        Self {
            id,
            submit,
            duration,
            gpus,
            model: None,
            batch: None,
            iterations: None,
            workload: None,
            measured_as: None,
            deadline: None,
            deadline_kind: DeadlineKind::Strict,
            time_limit: None,
            site_priority: 0,
            user: None,
            account: None,
            recurs_as: None,
            gpu_type: None,
            started: None,
            ended: None,
            can_checkpoint: None,
            cluster: None,
            partition: None,
            nodes: None,
            node_names: Vec::new(),
        }
    }

    /// Its project: the account, or the user where the trace names no account.
    #[must_use]
    pub fn project(&self) -> Option<&str> {
        self.account.as_deref().or(self.user.as_deref())
    }

    /// The time between its recorded start and end for which it was suspended: 0 without a start and an end.
    #[must_use]
    pub fn suspended(&self) -> Duration {
        let span = self.started.zip(self.ended).map(|(start, end)| end.saturating_sub(start));
        let rest = span.unwrap_or_default().saturating_sub(self.duration);
        if rest > ROUNDING { rest } else { Duration::ZERO }
    }
}

/// A trace as read.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// The file's name.
    pub name: String,
    /// The format it was recognised as.
    pub format: &'static str,
    /// Its jobs in the order of their submission.
    pub jobs: Vec<TraceJob>,
    /// Notes on columns and rows.
    pub notes: Vec<RowNote>,
    /// Calendar time of its start, from 1970-01-01 in the time zone of the trace; `None` where its times count
    /// from an unknown instant.
    pub origin: Option<Duration>,
}

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// It cannot be read.
    #[error("cannot read the trace {path}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        #[source]
        source: std::io::Error,
    },
    /// It is larger than a limit.
    #[error(
        "the trace {name} has more than {limit}; export a shorter period (sacct -S and -E), or give the header \
         and the first lines (head -n)"
    )]
    TooLarge {
        /// The file.
        name: String,
        /// The limit.
        limit: String,
    },
    /// It is no text, or the output of another program.
    #[error("{name} looks like {what}; {remedy}")]
    Foreign {
        /// The file.
        name: String,
        /// What it looks like.
        what: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// It has the jobs of several clusters.
    #[error(
        "{name} has the jobs of several clusters, {clusters}; they share no queue and may have nodes of one name: \
         export one of them (sacct -M NAME)"
    )]
    Clusters {
        /// The file.
        name: String,
        /// The clusters with their numbers of jobs.
        clusters: String,
    },
    /// The given format is unknown.
    #[error("unknown trace format `{format}`; use one of {}", formats().collect::<Vec<_>>().join(", "))]
    UnknownFormat {
        /// The given format.
        format: String,
    },
    /// It has no column of a known format.
    #[error("{name}: unknown column `{column}`; known formats are {}", known())]
    UnknownColumn {
        /// The file.
        name: String,
        /// The column.
        column: String,
    },
    /// It has rows of `sacct -P` without a header, and other columns than the documented export.
    #[error("{name}: no header line; export without -n (--noheader)")]
    NoHeader {
        /// The file.
        name: String,
    },
    /// It is an export of sacct with another separator.
    #[error("{name}: the columns of sacct are not separated by `|`; export with -P (--parsable2)")]
    NoPipes {
        /// The file.
        name: String,
    },
    /// A required column is missing.
    #[error(
        "{name}: column `{column}` of the {format} format is missing; required are {columns}; the file has {has}"
    )]
    MissingColumn {
        /// The file.
        name: String,
        /// The column.
        column: String,
        /// The given format, or the most similar one.
        format: &'static str,
        /// The required columns.
        columns: String,
        /// The file's columns.
        has: String,
    },
    /// No row is a valid job.
    #[error("{name}: no row is a valid job{}", first.as_ref().map_or(String::new(), |n| format!(": {n}")))]
    Empty {
        /// The file.
        name: String,
        /// The first note on its rows.
        first: Option<RowNote>,
    },
}

/// The names of the known formats, for [`read_as`].
pub fn formats() -> impl Iterator<Item = &'static str> {
    FORMATS.iter().map(|format| format.key)
}

impl TraceError {
    /// The error of reading the file at `path`.
    fn of(path: &Path, error: InputError) -> Self {
        let name = input_file::name_of(path);
        match error {
            InputError::Io(source) => Self::Unreadable { path: path.to_owned(), source },
            InputError::TooLarge(bytes) => {
                Self::TooLarge { name, limit: format!("{} MiB of text", bytes >> 20) }
            }
            InputError::NotText { what, remedy } => Self::Foreign { name, what, remedy },
        }
    }
}

/// Reads the trace in the file at `path`, plain or compressed with gzip.
///
/// # Errors
/// [`TraceError`] describes the problem.
pub fn read(path: &Path) -> Result<Trace, TraceError> {
    read_as(path, None)
}

/// Reads the trace in the file at `path` in the given format, or in the recognized one.
///
/// # Errors
/// [`TraceError`] describes the problem.
pub fn read_as(path: &Path, format: Option<&str>) -> Result<Trace, TraceError> {
    let text =
        input_file::read(path, TRACE_BYTES_MAX).map_err(|error| TraceError::of(path, error))?;
    parse_text(&input_file::name_of(path), &text, format)
}

/// Reads a trace from the bytes of a file called `name`, plain or compressed with gzip.
///
/// # Errors
/// [`TraceError`] describes the problem.
pub fn parse(name: &str, bytes: &[u8]) -> Result<Trace, TraceError> {
    parse_as(name, bytes, None)
}

/// Reads a trace from the bytes of a file called `name`, in the given format or in the recognized
/// one.
///
/// # Errors
/// [`TraceError`] describes the problem.
pub fn parse_as(name: &str, bytes: &[u8], format: Option<&str>) -> Result<Trace, TraceError> {
    let text = input_file::text_of(bytes, TRACE_BYTES_MAX);
    parse_text(name, &text.map_err(|error| TraceError::of(Path::new(name), error))?, format)
}

fn parse_text(name: &str, text: &[u8], format: Option<&str>) -> Result<Trace, TraceError> {
    reading::rows(name, text, &format::recognise(name, text, format)?)
}
