//! A predictor's response surface of a job: speed and power over the possible configurations.
//!
//! The placer reads surfaces, not model coefficients, so a predictor can use any method and language.
//!
//! A surface crosses the bus twice. Every predictor proposes its own:
//!
//! * **Publisher:** each predictor.
//! * **Listeners:** registry.
//! * **How often:** after each window that changes it, at most once in ten seconds for each job; the
//!   surfaces of all jobs when the key `champion` of the bucket `predictors` is written.
//! * **Delivery:** core subject `surface.proposed.<predictor>.<job>`.
//! * **Lost or doubled:** each proposal is complete; the next one replaces it.
//!
//! The registry passes the champion's surfaces on to the placer:
//!
//! * **Publisher:** registry.
//! * **Listeners:** placer, `wattle explain`.
//! * **How often:** at each proposal of the champion; a prior where the champion has none.
//! * **Delivery:** key-value bucket `surfaces`, key = job; the last value of a key is current.
//! * **Lost or doubled:** without a surface the placer treats the job as unknown: it runs on
//!   exclusive GPUs, without co-tenants.

use serde::{Deserialize, Serialize};

use crate::id::{AdmissionId, JobId, PredictorId, WorkloadId};
use crate::time::Timestamp;
use crate::units::{Frequency, Power};

/// Most workload classes on a surface's axis of neighbours.
pub const NEIGHBOUR_CLASSES_MAX: usize = 16;

/// Most GPU types in one message.
pub const GPU_TYPES_MAX: usize = 8;

/// Most points of all GPU types in one message with several: at about 300 bytes each the message
/// stays below a server's limit of 1 MiB.
pub const POINTS_MAX: usize = 8 * 256;

/// A predictor's response surface of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Surface {
    /// The job.
    pub job: JobId,
    /// The submission that it is of; absent: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admission: Option<AdmissionId>,
    /// The predictor.
    pub predictor: PredictorId,
    /// When it was computed.
    pub at_us: Timestamp,
    /// The GPU type it holds for.
    pub gpu_type: String,
    /// Number of the job's windows it is based on; 0 for a prior.
    pub windows: u32,
    /// Its data basis, for people: `12 windows of this job`, `prior: 3 jobs of resnet50 on v100`.
    #[serde(default)]
    pub basis: Option<String>,
    /// The workload class assumed for the job, as named on other surfaces' axis of neighbours.
    #[serde(default)]
    pub class: Option<WorkloadId>,
    /// Busy share on exclusive GPUs, per cent.
    #[serde(default)]
    pub utilization_gpu_percent: Option<f64>,
    /// Memory traffic share on exclusive GPUs, per cent.
    #[serde(default)]
    pub utilization_memory_percent: Option<f64>,
    /// Peak device memory on one GPU, MiB.
    #[serde(default)]
    pub memory_mib_max: Option<u64>,
    /// The configurations, in no order.
    pub points: Vec<SurfacePoint>,
    /// Surfaces of the same job and predictor on other GPU types that the job may use; this field is
    /// empty in each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_gpu_types: Vec<Self>,
}

impl Surface {
    /// One surface for each GPU type, its own type first.
    pub fn by_gpu_type(mut self) -> impl Iterator<Item = Self> {
        let others = std::mem::take(&mut self.other_gpu_types);
        std::iter::once(self).chain(others)
    }
}

/// One configuration, with its predicted speed and power.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SurfacePoint {
    /// GPUs on all nodes.
    pub gpus: u32,
    /// Number of nodes.
    pub nodes: u32,
    /// Power cap; absent: the GPU's default.
    #[serde(default)]
    pub cap_mw: Option<Power>,
    /// Upper limit of the locked SM clock; absent: not locked.
    #[serde(default)]
    pub clock_mhz_max: Option<Frequency>,
    /// Global batch size; absent: the job's own, as last reported.
    #[serde(default)]
    pub global_batch: Option<u32>,
    /// Workload classes of its co-tenants, sorted; empty: exclusive GPUs. The class of an unknown
    /// co-tenant is `unknown`.
    #[serde(default)]
    pub neighbours: Vec<WorkloadId>,
    /// Steps per second; absent if only the relative speed is known.
    #[serde(default)]
    pub steps_per_s: Option<Estimate>,
    /// Speed relative to this job on the same GPUs, exclusive, at default cap and clock.
    pub relative_speed: Estimate,
    /// Power of one of its GPUs with all co-tenants, watts.
    pub gpu_power_w: Estimate,
}

/// An expected value with its 90 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Expected value.
    pub mean: f64,
    /// Lower end of the 90 % interval.
    pub low: f64,
    /// Upper end of the 90 % interval.
    pub high: f64,
}

impl Estimate {
    /// Half the width of the interval, as a share of the expected value.
    #[must_use]
    pub fn error(&self) -> f64 {
        (self.high - self.low) / (2.0 * self.mean)
    }
}
