//! When a job is expected to start and to end, and the errors of such forecasts.
//!
//! [`ExpectedTimes`] is a part of the job's record ([`crate::messages::JobRecord`]). [`ExpectedStatus`] has the errors:
//!
//! * **Publisher:** the active placer.
//! * **Listeners:** the placer itself when it restarts.
//! * **How often:** every five minutes.
//! * **Delivery:** key-value bucket `budget`, key `expected`; the last value is current.
//! * **Lost or doubled:** the value is complete; the next one replaces it. The errors of the last minutes before a
//!   placer was killed are lost.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// The expected times of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpectedTimes {
    /// When this was computed.
    pub at_us: Timestamp,
    /// Its start, while it waits; absent: it holds GPUs, or the start is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<ExpectedInstant>,
    /// Its end; absent: it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<ExpectedInstant>,
    /// Why the start is not known, or the end of a job with GPUs or an expected start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown: Option<NotExpected>,
}

/// An expected instant with its 90 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpectedInstant {
    /// The instant.
    pub at_us: Timestamp,
    /// Start of the interval.
    pub from_us: Timestamp,
    /// End of the interval.
    pub until_us: Timestamp,
    /// Number of earlier forecasts from which the interval follows; 0: it is the prior, from simulations.
    #[serde(default)]
    pub forecasts: u64,
}

/// Why a time is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NotExpected {
    /// No node has GPUs of its type, or none with enough memory.
    NoGpuType,
    /// It requests more GPUs than are healthy where it could run.
    TooFewGpus,
    /// A job before it requests more GPUs than are healthy.
    Behind,
    /// It waits for the budget.
    Budget,
    /// It waits for power below a limit.
    Power,
    /// Its user or project holds its quota or its share.
    Quota,
    /// Its run time is not predicted.
    RunTime,
    /// For a reason that this release does not know.
    #[serde(other)]
    Other,
}

impl fmt::Display for NotExpected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoGpuType => "no GPU of its type",
            Self::TooFewGpus => "more GPUs than are healthy",
            Self::Behind => "behind a job without enough GPUs",
            Self::Budget => "waits for the budget",
            Self::Power => "waits for power",
            Self::Quota => "waits for its quota",
            Self::RunTime => "run time not predicted",
            Self::Other => "not known",
        })
    }
}

/// What a forecast is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExpectedKind {
    /// The start of a queued job.
    Start,
    /// The end of a queued job of known length.
    EndQueued,
    /// The end of a running job of known length.
    EndRunning,
    /// The end of a job whose length is estimated from past jobs.
    EndEstimated,
}

/// The errors of the forecasts of a site.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExpectedStatus {
    /// When this was written.
    pub at_us: Timestamp,
    /// When the first forecast was made.
    pub since_us: Timestamp,
    /// The errors by kind and time ahead.
    pub ratios: Vec<ExpectedRatios>,
    /// The errors by event.
    pub errors: Vec<ExpectedErrors>,
}

/// Ratios of actual to expected times ahead, of forecasts of one kind whose time ahead is of one class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExpectedRatios {
    /// The kind.
    pub kind: ExpectedKind,
    /// The class of the time ahead, from 0: below 5 min, 30 min, 2 h, 8 h, 1 d, and longer.
    pub class: u8,
    /// Number of forecasts by ratio: eighths of the binary logarithm, rounded.
    pub counts: BTreeMap<i16, u32>,
}

/// Errors of the forecasts of starts or of ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExpectedErrors {
    /// Whether they are of ends.
    pub of_end: bool,
    /// Whether they are the first forecasts of their jobs, at submission.
    pub first: bool,
    /// Number of forecasts within their interval.
    pub within: u64,
    /// Number of forecasts by absolute error: quarters of the binary logarithm of seconds, rounded, from 0.
    pub counts: BTreeMap<i16, u64>,
}
