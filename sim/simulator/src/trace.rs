//! Trace files: readers for several formats, one module per format.
//!
//! The format is recognized by the file's columns, or given by the caller. An error names the
//! missing column of a file in no known format. Columns that are not read, and rows that are left
//! out or unusual, are reported in notes with their lines.

mod chronus;
mod elasticflow;
mod format;
mod gavel;
pub mod inferred;
mod philly;
mod row;
mod row_error;
mod slurm;
mod slurm_cells;
mod slurm_runs;
#[cfg(test)]
mod tests;
mod tiresias;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use csv::{ByteRecord, StringRecord};
use wattle_common::JobId;

use format::{FORMATS, Recognised, known};
use row::{Row, RowNotes};
use slurm_runs::ReadJob;

pub use inferred::{InferError, InferredCluster, infer};
pub use row_error::RowError;

use crate::text::{pluralize, sanitize};

/// Largest trace, uncompressed, bytes.
const BYTES_MAX: u64 = 1 << 30;

/// Most lines listed in a note; further rows are counted.
const NAMED_MAX: usize = 5;

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
    /// Run time at its placement without co-tenants.
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
    /// The owner.
    pub user: Option<String>,
    /// Recurring jobs have the same name here and get the same workload.
    pub recurs_as: Option<String>,
    /// The requested GPU type, as named in the trace.
    pub gpu_type: Option<String>,
    /// Recorded start of the run, from the start of the trace; `None` where the trace has none.
    pub started: Option<Duration>,
    /// Recorded end of the run, from the start of the trace; of a running job, the time of the
    /// export. `None` where the trace has none.
    pub ended: Option<Duration>,
    /// Whether the job can resume from a checkpoint; `None` where the trace does not state it.
    pub can_checkpoint: Option<bool>,
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
            user: None,
            recurs_as: None,
            gpu_type: None,
            started: None,
            ended: None,
            can_checkpoint: None,
            partition: None,
            nodes: None,
            node_names: Vec::new(),
        }
    }

    /// The time between its recorded start and end for which it was suspended: 0 without a start and an end.
    #[must_use]
    pub fn suspended(&self) -> Duration {
        let span = self.started.zip(self.ended).map(|(start, end)| end.saturating_sub(start));
        let rest = span.unwrap_or_default().saturating_sub(self.duration);
        if rest > ROUNDING { rest } else { Duration::ZERO }
    }
}

/// A note on some rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowNote {
    /// The anomaly and how it is handled.
    pub what: String,
    /// Number of rows.
    pub count: usize,
    /// Lines of the first few, from 1.
    pub lines: Vec<u64>,
}

impl fmt::Display for RowNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.lines.is_empty() {
            return f.write_str(&self.what);
        }
        let lines: Vec<String> = self.lines.iter().map(ToString::to_string).collect();
        let more = if self.count > self.lines.len() { ", ..." } else { "" };
        let (rows, at) = if self.count == 1 { ("row", "line") } else { ("rows", "lines") };
        write!(f, "{} {rows} {} ({at} {}{more})", self.count, self.what, lines.join(", "))
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
    /// It is larger than [`BYTES_MAX`].
    #[error("the trace {name} has more than {BYTES_MAX} bytes; shorten it")]
    TooLarge {
        /// The file.
        name: String,
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
    let bytes = std::fs::read(path)
        .map_err(|source| TraceError::Unreadable { path: path.to_owned(), source })?;
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    parse_as(&name, &bytes, format)
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
    let mut text = Vec::new();
    // The magic number of gzip (RFC 1952).
    let unpacked = if bytes.starts_with(&[0x1f, 0x8b]) {
        let mut reader = flate2::read::MultiGzDecoder::new(bytes).take(BYTES_MAX + 1);
        reader
            .read_to_end(&mut text)
            .map_err(|source| TraceError::Unreadable { path: name.into(), source })?;
        &text
    } else {
        bytes
    };
    if unpacked.len() as u64 > BYTES_MAX {
        return Err(TraceError::TooLarge { name: name.to_owned() });
    }
    rows(name, unpacked, &format::recognise(name, unpacked, format)?)
}

/// Reads all rows of a file in this format.
fn rows(name: &str, unpacked: &[u8], recognised: &Recognised) -> Result<Trace, TraceError> {
    let Recognised { format, header, has_header } = recognised;
    let mut reader = csv::ReaderBuilder::new()
        .trim(csv::Trim::All)
        .flexible(true)
        .delimiter(format.delimiter)
        .quoting(format.delimiter == b',')
        .has_headers(*has_header)
        .from_reader(unpacked);
    let mut notes = Notes::default();
    let unread: Vec<String> = header
        .iter()
        .filter(|column| !column.is_empty() && !format.reads(column))
        .map(|column| sanitize(column))
        .collect();
    if !unread.is_empty() {
        notes.add_for_file(format!("columns not read: {}", unread.join(", ")));
    }
    if format.has_header && !has_header {
        let columns = format.headless.join(",");
        notes.add_for_file(format!("no header line; the columns are read as {columns}"));
    }
    let named = |i: usize, column: &String| {
        !column.is_empty() && header[..i].iter().any(|before| before.eq_ignore_ascii_case(column))
    };
    let repeated: Vec<String> = header
        .iter()
        .enumerate()
        .filter(|(i, column)| named(*i, column))
        .map(|(_, column)| sanitize(column))
        .collect();
    if !repeated.is_empty() {
        let columns = repeated.join(", ");
        notes.add_for_file(format!(
            "columns that are repeated, of which the first is used: {columns}"
        ));
    }
    let columns: BTreeMap<String, usize> = header
        .iter()
        .enumerate()
        .rev()
        .map(|(i, column)| (column.to_ascii_lowercase(), i))
        .collect();
    let mut read: Vec<ReadJob> = Vec::new();
    let mut seen: BTreeSet<JobId> = BTreeSet::new();
    let mut bytes = ByteRecord::new();
    let mut row_notes = RowNotes::default();
    loop {
        let line = reader.position().line();
        match reader.read_byte_record(&mut bytes) {
            Ok(false) => break,
            Ok(true) => {}
            Err(_) => {
                notes.leave_out(&RowError::NoCells, line);
                continue;
            }
        }
        let line = bytes.position().map_or(line, csv::Position::line);
        // A row with a name in another encoding is kept.
        let record = StringRecord::from_byte_record(bytes).unwrap_or_else(|error| {
            notes.add("with bytes that are not UTF-8, each read as \u{fffd}", line);
            StringRecord::from_byte_record_lossy(error.into_byte_record())
        });
        row_notes.clear();
        let row = Row { columns: &columns, record: &record, width: header.len(), line };
        match (format.row)(&row, &mut row_notes) {
            Err(error) => notes.leave_out(&error, line),
            Ok(job) if !format.repeats && !seen.insert(job.id.clone()) => {
                notes.leave_out(&RowError::DuplicateId, line);
            }
            Ok(job) => read.push(ReadJob { job, line, notes: row_notes.iter().collect() }),
        }
        bytes = record.into_byte_record();
    }
    if format.repeats {
        read = slurm_runs::separate(read, |error, line| notes.leave_out(error, line));
    }
    let mut latest = Duration::ZERO;
    for ReadJob { job, line, notes: own } in &read {
        own.iter().for_each(|what| notes.add(*what, *line));
        if job.submit < latest {
            notes.add("out of order, sorted by submission", *line);
        }
        latest = job.submit;
    }
    let mut jobs: Vec<TraceJob> = read.into_iter().map(|read| read.job).collect();
    jobs.sort_by_key(|job| job.submit);
    let Some(first) = jobs.first().map(|job| job.submit) else {
        let first = notes.into_list().into_iter().find(|note| note.count > 0);
        return Err(TraceError::Empty { name: name.to_owned(), first });
    };
    if format.calendar {
        for job in &mut jobs {
            job.submit -= first;
            for at in [&mut job.deadline, &mut job.started, &mut job.ended] {
                *at = at.map(|at| at.saturating_sub(first));
            }
        }
    }
    let origin = format.calendar.then_some(first);
    Ok(Trace { name: name.to_owned(), format: format.name, jobs, notes: notes.into_list(), origin })
}

/// Notes on a file, and on its rows with their lines.
#[derive(Default)]
struct Notes {
    on_file: Vec<RowNote>,
    on_rows: Vec<(u64, Cow<'static, str>)>,
}

impl Notes {
    /// Adds a note on the file.
    fn add_for_file(&mut self, what: String) {
        self.on_file.push(RowNote { what, count: 0, lines: Vec::new() });
    }

    fn leave_out(&mut self, error: &RowError, line: u64) {
        self.add(format!("left out: {error}"), line);
    }

    fn add(&mut self, what: impl Into<Cow<'static, str>>, line: u64) {
        self.on_rows.push((line, what.into()));
    }

    /// All notes: on the file, then on rows by their first line.
    fn into_list(mut self) -> Vec<RowNote> {
        /// Most different notes; further ones share one.
        const NOTES_MAX: usize = 50;
        self.on_rows.sort_by_key(|(line, _)| *line);
        let mut places: BTreeMap<Cow<'static, str>, usize> = BTreeMap::new();
        let mut list = self.on_file;
        for (line, what) in self.on_rows {
            let what = if places.contains_key(&what) || list.len() < NOTES_MAX {
                what
            } else {
                Cow::Borrowed("left out for other reasons")
            };
            let place = *places.entry(what).or_insert_with_key(|what| {
                list.push(RowNote { what: what.to_string(), count: 0, lines: Vec::new() });
                list.len() - 1
            });
            let note = &mut list[place];
            note.count += 1;
            if note.lines.len() < NAMED_MAX {
                note.lines.push(line);
            }
        }
        list
    }
}
