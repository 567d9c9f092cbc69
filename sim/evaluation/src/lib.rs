//! Evaluates the predictor on files of measured runs.
//!
//! [`run`] takes files as text, recognises each by its header ([`Format`]), shows the predictor the
//! readings that a protocol declares known, and compares its predictions with the other readings. It
//! uses [`wattle_predictor::Predictor`] as the service does, with windows built from readings, and does
//! no I/O. Files may be of any GPU and model, and may be faulty: everything unusable is reported.

mod baselines;
mod forms;
mod metrics;
mod protocol;
mod trial;

use serde::Serialize;

use wattle_predictor::method::Method;

pub use forms::Forms;
pub use metrics::Row;
pub use wattle_measurements::{Format, Problem, Source, recognise};

use protocol::Task;
use wattle_measurements::Measurements;

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
        let Some((read, problems)) = wattle_measurements::read(source) else { continue };
        report.files += 1;
        match read {
            Measurements::Caps(caps) => {
                tasks.push(Box::new(move |out| {
                    protocol::caps::three_caps(&caps, method, out);
                    protocol::caps::new_network(&caps, method, out);
                }));
            }
            Measurements::Stages(stages) => {
                tasks.push(Box::new(move |out| protocol::clocks::run(&stages, method, out)));
            }
            Measurements::Throughputs(model) => scaling.push(model),
            Measurements::Placements(model) => placement.push(model),
            Measurements::Isolated(models) => {
                tasks.push(Box::new(move |out| protocol::isolated::run(&models, method, out)));
            }
            Measurements::Pairs(of_types) => {
                for pairs in of_types {
                    tasks.push(Box::new(move |out| protocol::pairs::run(&pairs, method, out)));
                }
            }
        }
        report.problems.extend(problems);
    }
    tasks.push(Box::new(move |out| protocol::scaling::run(&scaling, method, out)));
    tasks.push(Box::new(move |out| protocol::placement::run(&placement, method, out)));
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
