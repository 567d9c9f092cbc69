//! Parsers, one file for each format. The format of a file is recognised by its header.

pub mod caps;
pub mod isolated;
pub mod pairs;
pub(crate) mod placements;
pub mod stages;
pub(crate) mod throughputs;

use wattle_common::id::WorkloadId;

use super::names;

/// A known format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Format {
    /// Time and power by power cap (Zeus).
    Caps,
    /// Time and energy by clock (Perseus).
    Stages,
    /// Iterations/s by batch and GPUs (ElasticFlow).
    Throughputs,
    /// Step time by placement and batch (Pollux).
    Placements,
    /// Two jobs on one GPU (Gavel).
    Pairs,
    /// One job by batch and GPUs (Gavel).
    Isolated,
}

impl Format {
    /// Format with these columns, in any order and possibly among others.
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

/// The paths of a file.
pub(crate) struct Context<'a> {
    /// Name for output.
    pub file: &'a str,
    /// Folders and name.
    pub place: &'a str,
}

impl Context<'_> {
    pub(crate) fn file_gpu(&self) -> FileGpu {
        let gpu = names::gpu(self.place);
        let gpu_type = names::gpu_type(gpu.as_deref());
        FileGpu { file: self.file.to_owned(), gpu_type, gpu }
    }
}

/// A file with its GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileGpu {
    /// Its name for output.
    pub file: String,
    /// As written in the file.
    pub gpu: Option<String>,
    /// As in windows.
    pub gpu_type: String,
}

/// A model's readings over GPUs, nodes and batches.
#[derive(Clone, Debug, PartialEq)]
pub struct Readings {
    /// The file.
    pub file_gpu: FileGpu,
    /// The model.
    pub model: String,
    /// Its class as in windows.
    pub class: WorkloadId,
    /// The readings.
    pub readings: Vec<Reading>,
}

/// Step time in one configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// Number of GPUs.
    pub gpus: u32,
    /// Number of nodes.
    pub nodes: u32,
    /// Global batch size.
    pub batch: u32,
    /// Time of a step, s.
    pub time_s: f64,
    /// Placement as written in the file, if any.
    pub shape: String,
}
