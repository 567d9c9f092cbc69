//! One reader a format. A file's format is known by its header, whatever it is called.

pub(super) mod caps;
pub(super) mod isolated;
pub(super) mod pairs;
pub(super) mod placements;
pub(super) mod stages;
pub(super) mod throughputs;

use wattle_common::id::WorkloadId;

use super::names;
use crate::method::Method;

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
pub(super) struct Context<'a> {
    /// As it is printed.
    pub(super) file: &'a str,
    /// Folders and name.
    pub(super) place: &'a str,
    /// Who is asked.
    pub(super) method: Method,
}

impl Context<'_> {
    pub(super) fn card(&self) -> FileGpu {
        let gpu = names::gpu(self.place);
        let kind = names::kind(gpu.as_deref());
        FileGpu { file: self.file.to_owned(), kind, gpu, method: self.method }
    }
}

/// A file and its GPU, and which method is asked of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileGpu {
    pub(super) file: String,
    /// As the file writes it.
    pub(super) gpu: Option<String>,
    /// As windows carry it.
    pub(super) kind: String,
    /// Who is asked of it.
    pub(super) method: Method,
}

/// A model's readings over GPUs, nodes and batches.
pub(super) struct Readings {
    pub(super) card: FileGpu,
    pub(super) model: String,
    pub(super) class: WorkloadId,
    pub(super) readings: Vec<Reading>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Reading {
    pub(super) gpus: u32,
    pub(super) nodes: u32,
    /// Global.
    pub(super) batch: u32,
    pub(super) time_s: f64,
    /// The placement as it was written, where there was one.
    pub(super) shape: String,
}
