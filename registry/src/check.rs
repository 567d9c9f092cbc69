//! Validation of proposed surfaces.
//!
//! A proposal comes from a program outside this repository. An invalid one is refused completely,
//! with the reason; it never reaches the placer.

use wattle_common::Timestamp;
use wattle_common::bounds::{CLOCK_TOLERANCE, OutOfBounds, check_one_type};
use wattle_common::id::{JobId, PredictorId};
use wattle_common::messages::Surface;
use wattle_common::messages::surface::GPU_TYPES_MAX;

use crate::prior::PRIOR;

/// Why a proposal is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSurface {
    /// It cannot be decoded.
    #[error("cannot be decoded: {0}")]
    Undecodable(String),
    /// The predictor's name is reserved.
    #[error("the name `{PRIOR}` is reserved for the registry")]
    ReservedName,
    /// The message and its subject name different predictors.
    #[error("predictor is {surface}, but the subject names {subject}")]
    OtherPredictor {
        /// The predictor in the message.
        surface: PredictorId,
        /// The predictor in the subject.
        subject: PredictorId,
    },
    /// The message and its subject name different jobs.
    #[error("job is {surface}, but the subject names {subject}")]
    OtherJob {
        /// The job in the message.
        surface: JobId,
        /// The job in the subject.
        subject: JobId,
    },
    /// It is dated in the future, so it would outlast the following ones.
    #[error("at_us is in the future")]
    InFuture,
    /// It has no points.
    #[error("no points")]
    NoPoints,
    /// A number is outside its limits.
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
    /// It covers too many GPU types.
    #[error("more than {GPU_TYPES_MAX} GPU types")]
    TooManyGpuTypes,
    /// It covers a GPU type twice.
    #[error("GPU type {0} occurs twice")]
    DuplicateGpuType(String),
    /// A surface of another GPU type contains further ones.
    #[error("other_gpu_types[{0}] has other_gpu_types of its own")]
    Nested(usize),
    /// The surface of another GPU type is invalid.
    #[error("other_gpu_types[{index}]: {error}")]
    OtherGpuType {
        /// Index in `other_gpu_types`.
        index: usize,
        /// What is wrong with it.
        error: Box<InvalidSurface>,
    },
}

/// Checks a surface proposed on the subject of `predictor` and `job`.
///
/// # Errors
/// What is wrong with it.
pub fn check(
    now: Timestamp,
    predictor: &PredictorId,
    job: &JobId,
    surface: &Surface,
) -> Result<(), InvalidSurface> {
    if predictor.as_str() == PRIOR {
        return Err(InvalidSurface::ReservedName);
    }
    if surface.predictor != *predictor {
        let (surface, subject) = (surface.predictor.clone(), predictor.clone());
        return Err(InvalidSurface::OtherPredictor { surface, subject });
    }
    if surface.job != *job {
        let (surface, subject) = (surface.job.clone(), job.clone());
        return Err(InvalidSurface::OtherJob { surface, subject });
    }
    if surface.at_us > now + CLOCK_TOLERANCE {
        return Err(InvalidSurface::InFuture);
    }
    if surface.points.is_empty() {
        return Err(InvalidSurface::NoPoints);
    }
    check_one_type(surface, now)?;
    if surface.other_gpu_types.len() >= GPU_TYPES_MAX {
        return Err(InvalidSurface::TooManyGpuTypes);
    }
    for (index, other) in surface.other_gpu_types.iter().enumerate() {
        let mut before = surface.other_gpu_types[..index].iter().map(|known| &known.gpu_type);
        if other.gpu_type == surface.gpu_type || before.any(|known| *known == other.gpu_type) {
            return Err(InvalidSurface::DuplicateGpuType(other.gpu_type.clone()));
        }
        if !other.other_gpu_types.is_empty() {
            return Err(InvalidSurface::Nested(index));
        }
        check(now, predictor, job, other).map_err(|error| {
            let error = Box::new(error);
            InvalidSurface::OtherGpuType { index, error }
        })?;
    }
    Ok(())
}
