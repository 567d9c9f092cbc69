//! Surfaces and their points.

use wattle_common::Timestamp;
use wattle_common::messages::{Estimate, Surface, SurfacePoint};

use crate::id;

/// An estimate without uncertainty.
#[must_use]
pub const fn exactly(mean: f64) -> Estimate {
    Estimate { mean, low: mean, high: mean }
}

/// An estimate whose 90 % interval is `mean` plus and minus `share` of it.
#[must_use]
pub fn estimate(mean: f64, share: f64) -> Estimate {
    Estimate { mean, low: mean * (1.0 - share), high: mean * (1.0 + share) }
}

/// One exactly known configuration: exclusive GPUs, at default cap and clock, eight to a node.
#[must_use]
pub fn point(gpus: u32, steps_per_s: f64, gpu_power_w: f64) -> SurfacePoint {
    SurfacePoint {
        gpus,
        nodes: gpus.div_ceil(8),
        cap_mw: None,
        clock_mhz_max: None,
        global_batch: None,
        neighbours: Vec::new(),
        steps_per_s: Some(exactly(steps_per_s)),
        relative_speed: exactly(1.0),
        gpu_power_w: exactly(gpu_power_w),
    }
}

/// A surface of the predictor `test`, from three windows of the job.
#[must_use]
pub fn surface(
    job: &str,
    gpu_type: &str,
    points: impl IntoIterator<Item = SurfacePoint>,
) -> Surface {
    Surface {
        job: id::job(job),
        admission: None,
        predictor: id::predictor("test"),
        at_us: Timestamp::EPOCH,
        gpu_type: gpu_type.to_owned(),
        windows: 3,
        basis: None,
        class: None,
        utilization_gpu_percent: None,
        utilization_memory_percent: None,
        memory_mib_max: None,
        points: points.into_iter().collect(),
        other_gpu_types: Vec::new(),
    }
}
