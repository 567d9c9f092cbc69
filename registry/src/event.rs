//! Inputs and outputs of the [`Registry`](crate::Registry).

use std::collections::BTreeMap;

use wattle_common::id::{AdmissionId, JobId, PredictorId, WorkloadId};
use wattle_common::job::GpuRequest;
use wattle_common::messages::{Champion, JobWindow, PredictorState, PredictorStatus, Surface};

use crate::check::InvalidSurface;
use crate::score::Record;

/// An input.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A predictor proposed a surface on the subject of `predictor` and `job`.
    Proposed {
        /// The predictor in the subject.
        predictor: PredictorId,
        /// The job in the subject.
        job: JobId,
        /// The surface, or why it cannot be decoded.
        surface: Result<Box<Surface>, InvalidSurface>,
    },
    /// A window was closed.
    WindowClosed(Box<JobWindow>),
    /// A job's record was read: what its owner declares.
    JobDescribed {
        /// The job.
        job: JobId,
        /// Its submission; absent: an earlier version accepted it.
        admission: Option<AdmissionId>,
        /// Its declared workload.
        workload: Option<WorkloadId>,
        /// Number of GPUs it requests.
        gpus: GpuRequest,
        /// The GPU type it requires, if any.
        gpu_type: Option<String>,
        /// Whether it was ever started.
        started: bool,
    },
    /// A job ended, in whatever way; its submission, as far as it is known.
    JobEnded(JobId, Option<AdmissionId>),
    /// The job had a surface in the bucket when the registry started; its submission, if it names one.
    SurfaceFound(JobId, Option<AdmissionId>),
    /// The predictors that currently answer as services, with their versions.
    ServicesFound(BTreeMap<PredictorId, String>),
    /// An operator promoted this predictor; the new champion is stored.
    Promoted(Champion),
}

/// An output.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Write the surface that the placer reads.
    WriteSurface(Box<Surface>),
    /// Delete the surface of a job that ended.
    RemoveSurface(JobId),
    /// Write the champion, whether or not it changed: predictors then propose all their jobs.
    WriteChampion(Champion),
    /// Write a predictor's status.
    WriteStatus(Box<PredictorStatus>),
    /// Write a predictor's record of errors.
    WriteScores(PredictorId, Box<Record>),
    /// Delete everything stored of a predictor.
    RemovePredictor(PredictorId),
    /// Log a notice.
    Log(Notice),
}

/// An occurrence to be logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A proposal was refused.
    Refused {
        /// The predictor.
        predictor: PredictorId,
        /// The job.
        job: JobId,
        /// What is wrong with the proposal.
        error: InvalidSurface,
        /// Whether the predictor was not failing before.
        first: bool,
    },
    /// A predictor's state changed.
    StateChanged {
        /// The predictor.
        predictor: PredictorId,
        /// Whether it is the champion.
        champion: bool,
        /// Its state.
        state: PredictorState,
        /// What is wrong with it.
        trouble: Option<String>,
    },
    /// Jobs received priors because they have no surface of the champion.
    PriorsWritten {
        /// Number of jobs.
        jobs: usize,
        /// The champion.
        champion: PredictorId,
    },
    /// A predictor is ignored because as many others as the registry lists are listed.
    TooManyPredictors(PredictorId),
}
