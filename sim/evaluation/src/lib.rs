//! Evaluates the predictor on files of measured runs.
//!
//! [`run`] takes files as text, recognises each by its header ([`Format`]), shows the predictor the
//! readings that a protocol declares known, and compares its predictions with the other readings. It
//! uses [`wattle_predictor::Predictor`] as the service does, with windows built from readings, and does
//! no I/O. Files may be of any GPU and model, and may be faulty: everything unusable is reported.

mod baselines;
mod forms;
mod metrics;
mod names;
mod protocol;
mod reader;
mod readings;
mod table;
mod trial;

use serde::Serialize;

use wattle_predictor::method::Method;

pub use forms::Forms;
pub use metrics::Row;
pub use reader::Format;
pub use readings::{AtClock, ClockSweep, ModelRates, Rate, clock_sweep, model_rates};

use protocol::Task;
use reader::Context;
use table::Table;

/// A file.
#[derive(Clone, Debug)]
pub struct Source {
    /// Name for output.
    pub file: String,
    /// Path with its folders: some formats put the name of the GPU or model there.
    pub place: String,
    /// Contents.
    pub text: String,
}

/// An unusable part of a file, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The file.
    pub file: String,
    /// Line, if it concerns one.
    pub line: Option<u64>,
    /// Reason.
    pub what: String,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.file, self.what),
            None => write!(f, "{}: {}", self.file, self.what),
        }
    }
}

/// Result of an evaluation.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// By file, GPU, protocol, quantity and model.
    pub rows: Vec<Row>,
    /// Forms of the response of time to caps that were chosen, by file.
    pub forms: Vec<Forms>,
    /// Everything unusable.
    #[serde(skip)]
    pub problems: Vec<Problem>,
    /// Number of files in a known format.
    #[serde(skip)]
    pub files: usize,
}

/// Format of a file that begins with `text`.
#[must_use]
pub fn recognise(text: &str) -> Option<Format> {
    Format::of(&table::columns(text))
}

/// Runs every protocol for which `sources` have the readings. The report does not depend on the order of
/// the sources.
#[must_use]
pub fn run(sources: &[Source]) -> Report {
    run_by(sources, Method::Physical)
}

/// As [`run`], with a given prediction method.
#[must_use]
pub fn run_by(sources: &[Source], method: Method) -> Report {
    let mut sources: Vec<&Source> = sources.iter().collect();
    sources.sort_by(|a, b| a.file.cmp(&b.file));
    let mut report = Report::default();
    let mut tasks: Vec<Task<'_>> = Vec::new();
    let (mut scaling, mut placement) = (Vec::new(), Vec::new());
    for source in sources {
        let columns = table::columns(&source.text);
        let Some(format) = Format::of(&columns) else { continue };
        report.files += 1;
        let mut table = Table::read(&source.file, &source.text);
        let context = Context { file: &source.file, place: &source.place, method };
        match format {
            Format::Caps => {
                let caps = reader::caps::read(&mut table, &context);
                tasks.push(Box::new(move |out| {
                    protocol::caps::three_caps(&caps, out);
                    protocol::caps::new_network(&caps, out);
                }));
            }
            Format::Stages => {
                let stages = reader::stages::read(&mut table, &context);
                tasks.push(Box::new(move |out| protocol::clocks::run(&stages, out)));
            }
            Format::Throughputs => {
                scaling.push(reader::throughputs::read(&mut table, &context, &columns));
            }
            Format::Placements => placement.push(reader::placements::read(&mut table, &context)),
            Format::Isolated => {
                let models = reader::isolated::read(&mut table, &context);
                tasks.push(Box::new(move |out| protocol::isolated::run(&models, out)));
            }
            Format::Pairs => {
                for pairs in reader::pairs::read(&mut table, &context) {
                    tasks.push(Box::new(move |out| protocol::pairs::run(&pairs, out)));
                }
            }
        }
        report.problems.extend(table.into_problems());
    }
    tasks.push(Box::new(move |out| protocol::scaling::run(&scaling, out)));
    tasks.push(Box::new(move |out| protocol::placement::run(&placement, out)));
    let out = protocol::run_all(tasks);
    let omitted = out.omitted.into_iter();
    report.problems.extend(omitted.map(|(file, what)| Problem { file, line: None, what }));
    report.problems.sort();
    report.rows = out.rows;
    report.forms = out.forms;
    let key = |r: &Row| {
        (r.file.clone(), r.gpu.clone(), r.protocol.clone(), r.quantity.clone(), r.model.clone())
    };
    report.rows.sort_by_cached_key(key);
    report
}
