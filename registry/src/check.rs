//! Validation of proposed surfaces.
//!
//! A proposal comes from a program outside this repository. An invalid one is refused completely,
//! with the reason; it never reaches the placer.

use std::time::Duration;

use wattle_common::Timestamp;
use wattle_common::id::{self, JobId, PredictorId};
use wattle_common::messages::surface::GPU_TYPES_MAX;
use wattle_common::messages::{Estimate, Surface, SurfacePoint};

use crate::prior::PRIOR;

/// Largest number of points of one GPU type; the shipped predictors publish 256.
const POINTS_MAX: usize = 4_096;
/// Largest accepted number of GPUs.
const GPUS_MAX: u32 = 65_536;
/// Largest accepted number of co-tenants.
const NEIGHBOURS_MAX: usize = 16;
/// Longest accepted `basis`, bytes.
const BASIS_LEN_MAX: usize = 1_000;
/// Accepted clock skew. A proposal dated later would outlast all that follow it.
const SKEW_MAX: Duration = Duration::from_secs(300);
/// Largest accepted steps per second.
const RATE_MAX: f64 = 1e9;
/// Largest accepted relative speed.
const RELATIVE_MAX: f64 = 100.0;
/// Largest accepted power of one GPU, watts.
const POWER_W_MAX: f64 = 5_000.0;

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
    /// It is dated in the future.
    #[error("at_us is in the future")]
    InFuture,
    /// The GPU type is not a valid name.
    #[error("gpu_type is not a valid name")]
    GpuType,
    /// `basis` is too long.
    #[error("basis is longer than {BASIS_LEN_MAX} bytes")]
    BasisTooLong,
    /// A utilization is out of range.
    #[error("a utilization is not within 0 to 100 per cent")]
    Utilization,
    /// It has no points.
    #[error("no points")]
    NoPoints,
    /// It has too many points.
    #[error("more than {POINTS_MAX} points")]
    TooManyPoints,
    /// A point is invalid.
    #[error("points[{index}]: {error}")]
    Point {
        /// Index in `points`.
        index: usize,
        /// What is wrong with the point.
        error: InvalidPoint,
    },
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

/// What is wrong with a point of a surface.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPoint {
    /// Impossible numbers of GPUs and nodes.
    #[error("impossible numbers of gpus and nodes")]
    Shape,
    /// A cap or clock of zero.
    #[error("a cap or clock of 0; omit it for the default")]
    ZeroSetting,
    /// Too many neighbours.
    #[error("more than {NEIGHBOURS_MAX} neighbours")]
    TooManyNeighbours,
    /// Unsorted neighbours.
    #[error("neighbours are not sorted")]
    UnsortedNeighbours,
    /// An estimate that is not finite.
    #[error("{0} is not finite")]
    NotFinite(&'static str),
    /// An estimate with low, mean and high out of order.
    #[error("{0}: low, mean and high are not in order")]
    NotOrdered(&'static str),
    /// An estimate out of range.
    #[error("{name} is not within 0 to {max}")]
    OutOfRange {
        /// The field.
        name: &'static str,
        /// Its largest accepted value, rounded.
        max: u64,
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
    if surface.at_us > now + SKEW_MAX {
        return Err(InvalidSurface::InFuture);
    }
    if id::check(&surface.gpu_type).is_err() {
        return Err(InvalidSurface::GpuType);
    }
    if surface.basis.as_ref().is_some_and(|basis| basis.len() > BASIS_LEN_MAX) {
        return Err(InvalidSurface::BasisTooLong);
    }
    for percent in [surface.utilization_gpu_percent, surface.utilization_memory_percent] {
        if percent.is_some_and(|percent| !(0.0..=100.0).contains(&percent)) {
            return Err(InvalidSurface::Utilization);
        }
    }
    if surface.points.is_empty() {
        return Err(InvalidSurface::NoPoints);
    }
    if surface.points.len() > POINTS_MAX {
        return Err(InvalidSurface::TooManyPoints);
    }
    for (index, point) in surface.points.iter().enumerate() {
        check_point(point).map_err(|error| InvalidSurface::Point { index, error })?;
    }
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

fn check_point(point: &SurfacePoint) -> Result<(), InvalidPoint> {
    if point.gpus == 0 || point.gpus > GPUS_MAX || point.nodes == 0 || point.nodes > point.gpus {
        return Err(InvalidPoint::Shape);
    }
    if point.cap_mw.is_some_and(|cap| cap.as_mw() == 0)
        || point.clock_mhz_max.is_some_and(|clock| clock.as_mhz() == 0)
    {
        return Err(InvalidPoint::ZeroSetting);
    }
    if point.neighbours.len() > NEIGHBOURS_MAX {
        return Err(InvalidPoint::TooManyNeighbours);
    }
    if !point.neighbours.is_sorted() {
        return Err(InvalidPoint::UnsortedNeighbours);
    }
    if let Some(rate) = point.steps_per_s {
        check_estimate("steps_per_s", rate, RATE_MAX)?;
    }
    check_estimate("relative_speed", point.relative_speed, RELATIVE_MAX)?;
    check_estimate("gpu_power_w", point.gpu_power_w, POWER_W_MAX)
}

fn check_estimate(name: &'static str, estimate: Estimate, max: f64) -> Result<(), InvalidPoint> {
    let Estimate { mean, low, high } = estimate;
    if !(low.is_finite() && mean.is_finite() && high.is_finite()) {
        return Err(InvalidPoint::NotFinite(name));
    }
    if !(low <= mean && mean <= high) {
        return Err(InvalidPoint::NotOrdered(name));
    }
    if mean <= 0.0 || low < 0.0 || high > max {
        return Err(InvalidPoint::OutOfRange { name, max: max as u64 });
    }
    Ok(())
}
