//! Parsers, one file for each format. The format of a file is recognised by its header.

pub(crate) mod caps;
pub(crate) mod isolated;
pub(crate) mod pairs;
pub(crate) mod placements;
pub(crate) mod stages;
pub(crate) mod throughputs;

use wattle_common::id::WorkloadId;

use super::names;
use wattle_predictor::method::Method;

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

/// Path of a file, and the prediction method to evaluate on it.
pub(crate) struct Context<'a> {
    /// Name for output.
    pub(crate) file: &'a str,
    /// Folders and name.
    pub(crate) place: &'a str,
    /// Prediction method.
    pub(crate) method: Method,
}

impl Context<'_> {
    pub(crate) fn file_gpu(&self) -> FileGpu {
        let gpu = names::gpu(self.place);
        let gpu_type = names::gpu_type(gpu.as_deref());
        FileGpu { file: self.file.to_owned(), gpu_type, gpu, method: self.method }
    }
}

/// A file with its GPU, and the prediction method to evaluate on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileGpu {
    pub(crate) file: String,
    /// As written in the file.
    pub(crate) gpu: Option<String>,
    /// As in windows.
    pub(crate) gpu_type: String,
    /// Prediction method.
    pub(crate) method: Method,
}

/// A model's readings over GPUs, nodes and batches.
pub(crate) struct Readings {
    pub(crate) file_gpu: FileGpu,
    pub(crate) model: String,
    pub(crate) class: WorkloadId,
    pub(crate) readings: Vec<Reading>,
}

/// Step time in one configuration.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reading {
    pub(crate) gpus: u32,
    pub(crate) nodes: u32,
    /// Global batch size.
    pub(crate) batch: u32,
    pub(crate) time_s: f64,
    /// Placement as written in the file, if any.
    pub(crate) shape: String,
}
