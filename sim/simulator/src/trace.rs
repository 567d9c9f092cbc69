//! Traces: lists of jobs in files, one file here for each format.
//!
//! The format is recognised by what the file holds, or named by the caller. A file that is none of
//! the known ones is refused with the name of the column that is missing; a column that is not
//! read, and a row that cannot be a job or is odd, is counted and named by its line, never dropped
//! in silence.

mod chronus;
mod elasticflow;
mod format;
mod gavel;
mod philly;
mod row;
mod slurm;
mod slurm_cells;
#[cfg(test)]
mod tests;
mod tiresias;

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use csv::{ByteRecord, StringRecord};
use wattle_common::JobId;

use format::{FORMATS, Format, known};
use row::{Odd, Row};

use crate::text::{pluralize, sanitize};

/// Largest trace read, uncompressed: a limit against a file that is no trace.
const BYTES_MAX: u64 = 1 << 30;

/// Rows named one by one in a report; the rest are only counted.
const NAMED_MAX: usize = 5;

/// What a job's deadline means to its owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeadlineKind {
    /// Late is worth nothing.
    #[default]
    Strict,
    /// Late is worth less.
    Soft,
    /// There is none: whenever there is room.
    BestEffort,
}

/// One job of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceJob {
    /// Its id, made fit to be one.
    pub id: JobId,
    /// When it is submitted, from the trace's beginning.
    pub submit: Duration,
    /// How long it runs at its placement, alone.
    pub duration: Duration,
    /// How many GPUs.
    pub gpus: u32,
    /// What the trace calls its model.
    pub model: Option<String>,
    /// Samples in a step over all its GPUs.
    pub batch: Option<u32>,
    /// Steps it trains.
    pub iterations: Option<u64>,
    /// The catalog's workload, where the trace names it outright.
    pub workload: Option<String>,
    /// The workload that was measured as this very job, and how many steps it does as that; used
    /// where the catalog has it.
    pub measured_as: Option<(String, u64)>,
    /// When it must be done, from the trace's beginning.
    pub deadline: Option<Duration>,
    /// What that deadline means.
    pub deadline_kind: DeadlineKind,
    /// Whose it is.
    pub user: Option<String>,
    /// Jobs with the same name here are runs of the same thing, whatever that is.
    pub recurs_as: Option<String>,
    /// The kind of GPU that was asked for, as the trace calls it.
    pub gpu_type: Option<String>,
}

impl Trace {
    /// Keeps its first jobs and says so; the others are not simulated.
    pub fn keep_first(&mut self, jobs: usize) {
        if jobs < self.jobs.len() {
            let what = format!("the first {jobs} of {}", pluralize(self.jobs.len(), "job"));
            self.jobs.truncate(jobs);
            self.notes.push(RowNote { what, count: 0, lines: Vec::new() });
        }
    }
}

impl TraceJob {
    /// A job of which no more is known than every trace tells.
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
        }
    }
}

/// What is odd about some rows, and which.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowNote {
    /// What is odd, and what was done about it.
    pub what: String,
    /// How many rows.
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
    /// What was odd.
    pub notes: Vec<RowNote>,
}

/// Why a file is no trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// It cannot be read.
    #[error("cannot read the trace {path}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
    /// It is larger than [`BYTES_MAX`].
    #[error("the trace {name} holds more than {BYTES_MAX} bytes; cut it")]
    TooLarge {
        /// The file.
        name: String,
    },
    /// The caller names a format that there is not.
    #[error("no trace format `{format}`; use one of {}", formats().collect::<Vec<_>>().join(", "))]
    UnknownFormat {
        /// What was asked for.
        format: String,
    },
    /// It begins with nothing that a known format begins with.
    #[error("{name}: unknown column `{column}`; known formats are {}", known())]
    UnknownColumn {
        /// The file.
        name: String,
        /// The column.
        column: String,
    },
    /// It has rows of `sacct -P`, and nothing that says what their cells are.
    #[error("{name}: no header line; export without -n (--noheader)")]
    NoHeader {
        /// The file.
        name: String,
    },
    /// A column that the format needs is not there.
    #[error(
        "{name}: column `{column}` of the {format} format is missing; it needs {columns}, and the file has {has}"
    )]
    MissingColumn {
        /// The file.
        name: String,
        /// The column.
        column: String,
        /// The format it looks most like, or that was asked for.
        format: &'static str,
        /// All columns it needs.
        columns: String,
        /// Those that are there.
        has: String,
    },
    /// No row is a job.
    #[error("{name}: no row is a job{}", first.as_ref().map_or(String::new(), |n| format!(": {n}")))]
    Empty {
        /// The file.
        name: String,
        /// What is odd about the first rows.
        first: Option<RowNote>,
    },
}

/// The names of the known formats, as [`read_as`] takes them.
pub fn formats() -> impl Iterator<Item = &'static str> {
    FORMATS.iter().map(|format| format.key)
}

/// Reads the trace in the file at `path`, plain or compressed with gzip.
///
/// # Errors
/// [`TraceError`] says what is wrong with it.
pub fn read(path: &Path) -> Result<Trace, TraceError> {
    read_as(path, None)
}

/// Reads the trace in the file at `path` as of the format called so, or of the one it looks like.
///
/// # Errors
/// [`TraceError`] says what is wrong with it.
pub fn read_as(path: &Path, format: Option<&str>) -> Result<Trace, TraceError> {
    let bytes = std::fs::read(path)
        .map_err(|source| TraceError::Unreadable { path: path.to_owned(), source })?;
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    parse_as(&name, &bytes, format)
}

/// Reads a trace from the bytes of a file called `name`, plain or compressed with gzip.
///
/// # Errors
/// [`TraceError`] says what is wrong with it.
pub fn parse(name: &str, bytes: &[u8]) -> Result<Trace, TraceError> {
    parse_as(name, bytes, None)
}

/// Reads a trace from the bytes of a file called `name`, as of the format called `format`, or of
/// the one it looks like.
///
/// # Errors
/// [`TraceError`] says what is wrong with it.
pub fn parse_as(name: &str, bytes: &[u8], format: Option<&str>) -> Result<Trace, TraceError> {
    let mut text = Vec::new();
    // What gzip files begin with (RFC 1952), whatever their name.
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
    let (format, header) = format::recognise(name, unpacked, format)?;
    rows(name, unpacked, format, &header)
}

/// Every row of a file of this format.
fn rows(
    name: &str,
    unpacked: &[u8],
    format: &'static Format,
    header: &[String],
) -> Result<Trace, TraceError> {
    let mut reader = csv::ReaderBuilder::new()
        .trim(csv::Trim::All)
        .flexible(true)
        .delimiter(format.delimiter)
        .quoting(format.delimiter == b',')
        .has_headers(format.has_header)
        .from_reader(unpacked);
    let mut notes = Notes::default();
    let unread: Vec<String> = header
        .iter()
        .filter(|column| !column.is_empty() && !format.reads(column))
        .map(|column| sanitize(column))
        .collect();
    if !unread.is_empty() {
        notes.say(format!("columns that were not read: {}", unread.join(", ")));
    }
    // The first of two columns with one name counts.
    let columns: BTreeMap<String, usize> = header
        .iter()
        .enumerate()
        .rev()
        .map(|(i, column)| (column.to_ascii_lowercase(), i))
        .collect();
    let mut jobs: Vec<TraceJob> = Vec::new();
    let mut lines_of: BTreeMap<JobId, u64> = BTreeMap::new();
    let mut ordered = true;
    let mut bytes = ByteRecord::new();
    let mut odd = Odd::default();
    loop {
        let line = reader.position().line();
        match reader.read_byte_record(&mut bytes) {
            Ok(false) => break,
            Ok(true) => {}
            Err(_) => {
                notes.add("left out: it cannot be split into cells", line);
                continue;
            }
        }
        let line = bytes.position().map_or(line, csv::Position::line);
        // A name in another encoding is no reason to lose a job.
        let record = StringRecord::from_byte_record(bytes).unwrap_or_else(|error| {
            notes.add("with bytes that are no UTF-8, each read as \u{fffd}", line);
            StringRecord::from_byte_record_lossy(error.into_byte_record())
        });
        odd.clear();
        match (format.row)(&Row { columns: &columns, record: &record, line }, &mut odd) {
            Err(problem) => notes.add(&format!("left out: {problem}"), line),
            Ok(job) => {
                if lines_of.insert(job.id.clone(), line).is_some() {
                    notes.add("left out: the job_id stood in an earlier row", line);
                } else {
                    odd.iter().for_each(|what| notes.add(what, line));
                    if jobs.last().is_some_and(|last| last.submit > job.submit) {
                        ordered = false;
                        notes.add("out of order, sorted by submission", line);
                    }
                    jobs.push(job);
                }
            }
        }
        bytes = record.into_byte_record();
    }
    if !ordered {
        jobs.sort_by_key(|job| job.submit);
    }
    let Some(first) = jobs.first().map(|job| job.submit) else {
        let first = notes.0.into_iter().find(|note| note.count > 0);
        return Err(TraceError::Empty { name: name.to_owned(), first });
    };
    if format.calendar {
        for job in &mut jobs {
            job.submit -= first;
            job.deadline = job.deadline.map(|deadline| deadline.saturating_sub(first));
        }
    }
    Ok(Trace { name: name.to_owned(), format: format.name, jobs, notes: notes.0 })
}

#[derive(Default)]
struct Notes(Vec<RowNote>);

impl Notes {
    /// About the whole file.
    fn say(&mut self, what: String) {
        self.0.push(RowNote { what, count: 0, lines: Vec::new() });
    }

    fn add(&mut self, what: &str, line: u64) {
        /// Kinds of oddities told apart; more are one.
        const GPU_TYPES_MAX: usize = 50;
        let place = self.0.iter().position(|note| note.what == what).unwrap_or_else(|| {
            let what =
                if self.0.len() < GPU_TYPES_MAX { what } else { "left out for other reasons" };
            if let Some(place) = self.0.iter().position(|note| note.what == what) {
                return place;
            }
            self.0.push(RowNote { what: what.to_owned(), count: 0, lines: Vec::new() });
            self.0.len() - 1
        });
        let note = &mut self.0[place];
        note.count += 1;
        if note.lines.len() < NAMED_MAX {
            note.lines.push(line);
        }
    }
}
