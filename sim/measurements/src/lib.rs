//! Reads published files of measured runs: time and power by cap, clock, GPUs, placement and co-tenant.
//!
//! A file is text with a header ([`Source`]), which decides its format ([`Format`]); [`read`] gives its
//! readings. Files may be of any GPU and model, and may be faulty: everything unusable is returned as a
//! [`Problem`]. Nothing here does I/O.

mod names;
pub mod reader;
mod readings;
mod table;

pub use reader::{FileGpu, Format, Reading, Readings};
pub use readings::{AtClock, ClockSweep, ModelRates, Rate, clock_sweep, model_rates};

use reader::caps::Caps;
use reader::pairs::Pairs;
use reader::stages::Stages;
use reader::{Context, caps, isolated, pairs, placements, stages, throughputs};
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

/// Format of a file that begins with `text`.
#[must_use]
pub fn recognise(text: &str) -> Option<Format> {
    Format::of(&table::columns(text))
}

/// The readings of a file.
#[derive(Debug)]
pub enum Measurements {
    /// Time and power by power cap.
    Caps(Caps),
    /// Time and energy by clock.
    Stages(Stages),
    /// Step rates of a model by batch and GPUs.
    Throughputs(Readings),
    /// Step times of a model by placement.
    Placements(Readings),
    /// Step rates of models alone, by GPU type.
    Isolated(Vec<Readings>),
    /// Speeds of two jobs on one GPU, by GPU type.
    Pairs(Vec<Pairs>),
}

/// The readings of a file, and what is unusable in it; `None` if its format is unknown.
#[must_use]
pub fn read(source: &Source) -> Option<(Measurements, Vec<Problem>)> {
    let columns = table::columns(&source.text);
    let format = Format::of(&columns)?;
    let mut table = Table::read(&source.file, &source.text);
    let context = Context { file: &source.file, place: &source.place };
    let read = match format {
        Format::Caps => Measurements::Caps(caps::read(&mut table, &context)),
        Format::Stages => Measurements::Stages(stages::read(&mut table, &context)),
        Format::Throughputs => {
            Measurements::Throughputs(throughputs::read(&mut table, &context, &columns))
        }
        Format::Placements => Measurements::Placements(placements::read(&mut table, &context)),
        Format::Isolated => Measurements::Isolated(isolated::read(&mut table, &context)),
        Format::Pairs => Measurements::Pairs(pairs::read(&mut table, &context)),
    };
    Some((read, table.into_problems()))
}
