//! Traces: lists of jobs in files, one file here for each format.
//!
//! The format is recognised by its header. A file that is none of the known ones is refused with
//! the name of the column that does not belong; a row that cannot be a job is counted and named by
//! its line, never dropped in silence.

mod philly;
mod tiresias;

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use csv::StringRecord;
use wattle_common::JobId;

/// Largest trace read, uncompressed: a limit against a file that is no trace.
const BYTES_MAX: u64 = 1 << 30;

/// Rows named one by one in a report; the rest are only counted.
const NAMED_MAX: usize = 5;

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
    /// The catalog's workload, where the trace names it outright.
    pub workload: Option<String>,
    /// When it must be done, from the trace's beginning.
    pub deadline: Option<Duration>,
}

/// What is odd about some rows, and which.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowNote {
    /// What is odd, and what was done about it.
    pub what: String,
    /// How many rows.
    pub count: usize,
    /// Lines of the first few, from 1 (the header).
    pub lines: Vec<u64>,
}

impl fmt::Display for RowNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.lines.iter().map(ToString::to_string).collect();
        let more = if self.count > self.lines.len() { ", ..." } else { "" };
        let rows = if self.count == 1 { "row" } else { "rows" };
        write!(f, "{} {rows} {} (line {}{more})", self.count, self.what, lines.join(", "))
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
    /// A column that no known format has.
    #[error("{name}: unknown column `{column}`; known formats are {}", known())]
    UnknownColumn {
        /// The file.
        name: String,
        /// The column.
        column: String,
    },
    /// A column that the format needs is not there.
    #[error("{name}: column `{column}` of the {format} format is missing; it needs {}", columns.join(","))]
    MissingColumn {
        /// The file.
        name: String,
        /// The column.
        column: &'static str,
        /// The format it looks most like.
        format: &'static str,
        /// All columns it needs.
        columns: &'static [&'static str],
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

/// One format: its columns, and how a row becomes a job.
struct Format {
    name: &'static str,
    required: &'static [&'static str],
    optional: &'static [&'static str],
    row: fn(&Row<'_>) -> Result<TraceJob, String>,
}

const FORMATS: [&Format; 2] = [&philly::FORMAT, &tiresias::FORMAT];

fn known() -> String {
    let show = |f: &&Format| {
        let optional = if f.optional.is_empty() {
            String::new()
        } else {
            format!(" [,{}]", f.optional.join(","))
        };
        format!("{} ({}{optional})", f.name, f.required.join(","))
    };
    FORMATS.iter().map(show).collect::<Vec<_>>().join(" and ")
}

/// Reads the trace in the file at `path`, plain or compressed with gzip.
///
/// # Errors
/// [`TraceError`] says what is wrong with it.
pub fn read(path: &Path) -> Result<Trace, TraceError> {
    let bytes = std::fs::read(path)
        .map_err(|source| TraceError::Unreadable { path: path.to_owned(), source })?;
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    parse(&name, &bytes)
}

/// Reads a trace from the bytes of a file called `name`, plain or compressed with gzip.
///
/// # Errors
/// [`TraceError`] says what is wrong with it.
pub fn parse(name: &str, bytes: &[u8]) -> Result<Trace, TraceError> {
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
    let mut reader =
        csv::ReaderBuilder::new().trim(csv::Trim::All).flexible(true).from_reader(unpacked);
    let header = reader.byte_headers().cloned().unwrap_or_default();
    let header: Vec<String> = header
        .iter()
        .map(|cell| String::from_utf8_lossy(cell).trim_start_matches('\u{feff}').to_owned())
        .collect();
    if header.is_empty() {
        return Err(TraceError::Empty { name: name.to_owned(), first: None });
    }
    let format = recognise(name, &header)?;
    let columns: BTreeMap<&str, usize> =
        header.iter().enumerate().map(|(i, column)| (column.as_str(), i)).collect();
    let mut notes = Notes::default();
    let mut jobs: Vec<TraceJob> = Vec::new();
    let mut lines_of: BTreeMap<JobId, u64> = BTreeMap::new();
    let mut ordered = true;
    let mut record = StringRecord::new();
    loop {
        let line = reader.position().line();
        match reader.read_record(&mut record) {
            Ok(false) => break,
            Ok(true) => {}
            Err(_) => {
                notes.add("are no text and were left out", line);
                continue;
            }
        }
        let line = record.position().map_or(line, csv::Position::line);
        match (format.row)(&Row { columns: &columns, record: &record }) {
            Err(problem) => notes.add(&format!("left out: {problem}"), line),
            Ok(job) => {
                if lines_of.insert(job.id.clone(), line).is_some() {
                    notes.add("left out: the job_id stood in an earlier row", line);
                    continue;
                }
                if jobs.last().is_some_and(|last| last.submit > job.submit) {
                    ordered = false;
                    notes.add("stood out of order and were sorted by submission", line);
                }
                jobs.push(job);
            }
        }
    }
    if jobs.is_empty() {
        let first = notes.0.into_iter().next();
        return Err(TraceError::Empty { name: name.to_owned(), first });
    }
    if !ordered {
        jobs.sort_by_key(|job| job.submit);
    }
    Ok(Trace { name: name.to_owned(), format: format.name, jobs, notes: notes.0 })
}

fn recognise(name: &str, header: &[String]) -> Result<&'static Format, TraceError> {
    let has = |column: &str| header.iter().any(|own| own == column);
    let closest = FORMATS
        .into_iter()
        .max_by_key(|format| format.required.iter().filter(|column| has(column)).count())
        .expect("there are formats");
    let foreign = header.iter().find(|column| {
        !closest.required.contains(&column.as_str()) && !closest.optional.contains(&column.as_str())
    });
    if let Some(column) = foreign {
        let (name, column) = (name.to_owned(), column.clone());
        return Err(TraceError::UnknownColumn { name, column });
    }
    if let Some(column) = closest.required.iter().find(|column| !has(column)) {
        return Err(TraceError::MissingColumn {
            name: name.to_owned(),
            column,
            format: closest.name,
            columns: closest.required,
        });
    }
    Ok(closest)
}

#[derive(Default)]
struct Notes(Vec<RowNote>);

impl Notes {
    fn add(&mut self, what: &str, line: u64) {
        /// Kinds of oddities told apart; more are one.
        const KINDS_MAX: usize = 50;
        let place = self.0.iter().position(|note| note.what == what).unwrap_or_else(|| {
            let what = if self.0.len() < KINDS_MAX { what } else { "left out for other reasons" };
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

/// One row, by the names of its columns.
struct Row<'a> {
    columns: &'a BTreeMap<&'a str, usize>,
    record: &'a StringRecord,
}

impl Row<'_> {
    /// A cell; `None` where it is empty or the column is not there.
    fn text(&self, column: &str) -> Option<&str> {
        let cell = self.record.get(*self.columns.get(column)?)?;
        (!cell.is_empty()).then_some(cell)
    }

    /// A cell as an id: what an id cannot have becomes `-`.
    fn id(&self, column: &str) -> Result<JobId, String> {
        let text = self.text(column).ok_or_else(|| format!("{column} is empty"))?;
        let fit: String = text
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' })
            .collect();
        JobId::new(&fit).map_err(|_| format!("{column} is longer than an id may be"))
    }

    /// A cell as seconds.
    fn seconds(&self, column: &str) -> Result<Duration, String> {
        let text = self.text(column).ok_or_else(|| format!("{column} is empty"))?;
        let seconds: f64 = text.parse().map_err(|_| format!("{column} is no number"))?;
        if seconds < 0.0 {
            return Err(format!("{column} is negative"));
        }
        /// A thousand years, so that no sum of times overflows.
        const SECONDS_MAX: f64 = 3.2e10;
        if !seconds.is_finite() || seconds > SECONDS_MAX {
            return Err(format!("{column} is no time"));
        }
        Ok(Duration::from_micros((seconds * 1e6).round() as u64))
    }

    /// A cell as a number of GPUs.
    fn gpus(&self, column: &str) -> Result<u32, String> {
        let text = self.text(column).ok_or_else(|| format!("{column} is empty"))?;
        match text.parse::<u32>() {
            Ok(0) => Err(format!("{column} is 0")),
            Ok(gpus) => Ok(gpus),
            Err(_) => Err(format!("{column} is no whole number of at least 1")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn notes(trace: &Trace) -> Vec<String> {
        trace.notes.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn philly_rows_become_jobs_plain_and_packed() {
        let text = "job_id,submit_s,duration_s,num_gpus,vc\na.1,0,60,8,7f\nb,2.5,30,1,7f\n";
        let plain = parse("p.csv", text.as_bytes()).unwrap();
        assert_eq!((plain.format, plain.jobs.len()), ("Philly", 2));
        assert_eq!(plain.jobs[0].id.as_str(), "a-1");
        assert_eq!(plain.jobs[1].submit, Duration::from_millis(2_500));
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gz.write_all(text.as_bytes()).unwrap();
        assert_eq!(parse("p.csv", &gz.finish().unwrap()).unwrap(), plain);
    }

    #[test]
    fn tiresias_rows_become_jobs() {
        let text = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval,deadline,workload\n\
                    0,2,10,1000,vgg19,164,30,500,\n1,1,20,9,,5,10,,eaco-vgg16\n";
        let trace = parse("t.csv", text.as_bytes()).unwrap();
        let [a, b] = &trace.jobs[..] else { panic!("{trace:?}") };
        assert_eq!(
            (a.model.as_deref(), a.gpus, a.deadline),
            (Some("vgg19"), 2, Some(Duration::from_secs(500)))
        );
        assert_eq!((b.model.as_deref(), b.workload.as_deref()), (None, Some("eaco-vgg16")));
    }

    #[test]
    fn odd_rows_are_counted_and_named() {
        let text = "job_id,submit_s,duration_s,num_gpus,vc\n\
                    a,10,60,0,x\nb,-1,60,1,x\nc,20,60,1,x\nd,5,60,1,x\nc,30,1,1,x\n\
                    e,1,,1,x\nf,1\ng,40,nan,1,x\nh,50,1,0,x\ni,60,1,-2,x\n";
        let trace = parse("odd.csv", text.as_bytes()).unwrap();
        let order: Vec<&str> = trace.jobs.iter().map(|job| job.id.as_str()).collect();
        assert_eq!(order, ["d", "c"]);
        expect_test::expect![[r#"
            [
                "2 rows left out: num_gpus is 0 (line 2, 10)",
                "1 row left out: submit_s is negative (line 3)",
                "1 row stood out of order and were sorted by submission (line 5)",
                "1 row left out: the job_id stood in an earlier row (line 6)",
                "2 rows left out: duration_s is empty (line 7, 8)",
                "1 row left out: duration_s is no time (line 9)",
                "1 row left out: num_gpus is no whole number of at least 1 (line 11)",
            ]
        "#]]
        .assert_debug_eq(&notes(&trace));
    }

    #[test]
    fn what_is_no_trace_says_what_would_be_one() {
        let error = |text: &str| parse("x.csv", text.as_bytes()).unwrap_err().to_string();
        expect_test::expect![[r#"
            x.csv: unknown column `color`; known formats are Philly (job_id,submit_s,duration_s,num_gpus,vc) and Tiresias (job_id,num_gpu,submit_time,iterations,model_name,duration,interval [,workload,deadline])
            x.csv: column `num_gpus` of the Philly format is missing; it needs job_id,submit_s,duration_s,num_gpus,vc
            x.csv: no row is a job
            x.csv: no row is a job: 1 row left out: num_gpus is 0 (line 2)
            x.csv: no row is a job
        "#]]
        .assert_eq(
            &[
                "job_id,submit_s,duration_s,num_gpus,color\n",
                "job_id,submit_s,duration_s,vc\n",
                "job_id,submit_s,duration_s,num_gpus,vc\n",
                "job_id,submit_s,duration_s,num_gpus,vc\na,1,1,0,x\n",
                "",
            ]
            .map(|text| error(text) + "\n")
            .concat(),
        );
        assert!(matches!(parse("x", &[0xff, 0xfe, 0x00]), Err(TraceError::UnknownColumn { .. })));
        assert!(matches!(parse("x", &[0x1f, 0x8b, 0x00]), Err(TraceError::Unreadable { .. })));
    }
}
