//! One reader a format. A file's format is known by its header, whatever it is called.

pub(crate) mod caps;
pub(crate) mod isolated;
pub(crate) mod pairs;
pub(crate) mod placements;
pub(crate) mod stages;
pub(crate) mod throughputs;

use wattle_common::id::WorkloadId;

use super::names;
use wattle_predictor::method::Method;

/// A format that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Format {
    /// Time and power by power cap (Zeus).
    Caps,
    /// Time and energy by clock (Perseus).
    Stages,
    /// Iterations a second by batch and GPUs (ElasticFlow).
    Throughputs,
    /// Step time by placement and batch (Pollux).
    Placements,
    /// Two jobs on one GPU (Gavel).
    Pairs,
    /// One job alone by batch and GPUs (Gavel).
    Isolated,
}

impl Format {
    /// The format whose columns these are, in any order and among others.
    #[must_use]
    pub fn of(columns: &[String]) -> Option<Self> {
        let has = |wanted: &[&str]| wanted.iter().all(|w| columns.iter().any(|c| c == w));
        if throughputs::is(columns) {
            return Some(Self::Throughputs);
        }
        [
            (Self::Caps, caps::COLUMNS),
            (Self::Stages, stages::COLUMNS),
            (Self::Placements, placements::COLUMNS),
            (Self::Pairs, pairs::COLUMNS),
            (Self::Isolated, isolated::COLUMNS),
        ]
        .into_iter()
        .find_map(|(format, wanted)| has(wanted).then_some(format))
    }
}

/// Where a file lies, and which method is asked of what it holds.
pub(crate) struct Context<'a> {
    /// As it is printed.
    pub(crate) file: &'a str,
    /// Folders and name.
    pub(crate) place: &'a str,
    /// Who is asked.
    pub(crate) method: Method,
}

impl Context<'_> {
    pub(crate) fn card(&self) -> FileGpu {
        let gpu = names::gpu(self.place);
        let kind = names::kind(gpu.as_deref());
        FileGpu { file: self.file.to_owned(), kind, gpu, method: self.method }
    }
}

/// A file and its GPU, and which method is asked of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileGpu {
    pub(crate) file: String,
    /// As the file writes it.
    pub(crate) gpu: Option<String>,
    /// As windows carry it.
    pub(crate) kind: String,
    /// Who is asked of it.
    pub(crate) method: Method,
}

/// A model's readings over GPUs, nodes and batches.
pub(crate) struct Readings {
    pub(crate) card: FileGpu,
    pub(crate) model: String,
    pub(crate) class: WorkloadId,
    pub(crate) readings: Vec<Reading>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reading {
    pub(crate) gpus: u32,
    pub(crate) nodes: u32,
    /// Global.
    pub(crate) batch: u32,
    pub(crate) time_s: f64,
    /// The placement as it was written, where there was one.
    pub(crate) shape: String,
}
