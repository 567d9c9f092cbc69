//! The protocols, one file each: which readings are known, which are predicted, and what the predictor
//! knows of other jobs. No split, seed or constant here was chosen by the result.

pub(crate) mod caps;
pub(crate) mod clocks;
pub(crate) mod few;
pub(crate) mod isolated;
mod known;
pub(crate) mod pairs;
pub(crate) mod placement;
pub(crate) mod scaling;

use std::sync::{Mutex, PoisonError};

use super::forms::Forms;
use super::metrics::{Label, Measure, Row, Sample};
use wattle_measurements::reader::FileGpu;

/// Identity of a row.
#[derive(Clone, Copy)]
pub(crate) struct Of<'a> {
    pub(crate) file_gpu: &'a FileGpu,
    pub(crate) model: Option<&'a str>,
    pub(crate) protocol: &'static str,
    pub(crate) quantity: &'static str,
}

/// Rows, and the reasons for missing ones.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) rows: Vec<Row>,
    /// Forms of the response of time to caps.
    pub(crate) forms: Vec<Forms>,
    /// File and reason.
    pub(crate) omitted: Vec<(String, String)>,
}

impl Outcome {
    /// Adds a row of `samples`, or records the reason `why` if there are none.
    pub(crate) fn add(&mut self, of: Of<'_>, measure: Measure, samples: &[Sample], why: &str) {
        let label = Label {
            file: of.file_gpu.file.clone(),
            gpu: of.file_gpu.gpu.clone(),
            model: of.model.map(str::to_owned),
            protocol: of.protocol,
            quantity: of.quantity,
        };
        match Row::of(label, measure, samples) {
            Some(row) => self.rows.push(row),
            None => {
                let what = format!("no row for {} {}: {why}", of.protocol, of.quantity);
                self.omitted.push((of.file_gpu.file.clone(), what));
            }
        }
    }
}

/// A protocol with its readings.
pub(crate) type Task<'a> = Box<dyn FnOnce(&mut Outcome) + Send + 'a>;

/// Runs all tasks in parallel, one for each core. The outcome is in the order of the tasks.
pub(crate) fn run_all(tasks: Vec<Task<'_>>) -> Outcome {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = cores.min(tasks.len());
    let left = Mutex::new(tasks.into_iter().enumerate());
    let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || {
        let mut done = Vec::new();
        while let Some((place, task)) = next() {
            let mut out = Outcome::default();
            task(&mut out);
            done.push((place, out));
        }
        done
    };
    let mut done = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mut done = work();
        for other in others {
            done.extend(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        done
    });
    done.sort_by_key(|(place, _)| *place);
    let mut all = Outcome::default();
    for (_, out) in done {
        all.rows.extend(out.rows);
        all.forms.extend(out.forms);
        all.omitted.extend(out.omitted);
    }
    all
}

/// All elements except that at `me`.
pub(crate) fn all_but<T>(all: &[T], me: usize) -> impl Iterator<Item = &T> {
    all.iter().enumerate().filter(move |(i, _)| *i != me).map(|(_, one)| one)
}
