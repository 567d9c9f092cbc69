//! Summary of one job: its rates, power, and responses to settings and co-tenants.

use serde::{Deserialize, Serialize};
use wattle_common::id::WorkloadId;
use wattle_common::observation::{JobShape, Setting};

use crate::model::throughput;
use crate::statistics::regression::Gaussian;

/// Step rate of one shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Level {
    /// GPUs in all.
    pub gpus: u32,
    /// Nodes.
    pub nodes: u32,
    /// Global batch size, where it was reported.
    #[serde(default)]
    pub global_batch: Option<u32>,
    /// ln of steps/s on exclusive GPUs at the default setting.
    pub ln_rate: Gaussian,
}

impl Level {
    /// Its shape.
    #[must_use]
    pub fn shape(&self) -> JobShape {
        JobShape { gpus: self.gpus, nodes: self.nodes, batch: self.global_batch }
    }
}

/// Power per GPU for one number of GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PowerLevel {
    /// GPUs in all.
    pub gpus: u32,
    /// ln of the power of one exclusive GPU at the default setting, watts.
    pub ln_power: Gaussian,
}

/// Effect of a cap or a locked clock on a job, relative to the default setting.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AtSetting {
    /// A cap or a clock, exactly one of them.
    pub setting: Setting,
    /// ln of the power of one GPU at the default setting in the same shape, watts. It determines how
    /// strongly a cap limits the job.
    #[serde(default)]
    pub ln_power: Option<f64>,
    /// ln of its slowdown.
    pub slow: Option<Gaussian>,
    /// ln of its power relative to the default.
    pub power: Option<Gaussian>,
}

/// Effect of a set of co-tenants on a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SharedSet {
    /// The neighbours' classes, sorted.
    pub neighbours: Vec<WorkloadId>,
    /// ln of its slowdown.
    pub slow: Option<Gaussian>,
    /// ln of the GPU's power above idle over the sum of the tenants' exclusive power above idle.
    pub power: Option<Gaussian>,
}

/// Summary of one job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Step rates by shape.
    pub levels: Vec<Level>,
    /// Busy share on exclusive GPUs, 0 to 1.
    pub busy: Option<Gaussian>,
    /// Memory traffic share on exclusive GPUs, 0 to 1.
    pub memory_busy: Option<f64>,
    /// Peak device memory, MiB.
    pub memory_mib: Option<u64>,
    /// ln of the power of one exclusive GPU at the default setting, watts.
    pub ln_power: Option<Gaussian>,
    /// The same by number of GPUs.
    #[serde(default)]
    pub powers: Vec<PowerLevel>,
    /// Effects of caps and clocks, from its own readings only.
    #[serde(default)]
    pub settings: Vec<AtSetting>,
    /// Effects of sets of co-tenants.
    pub shared: Vec<SharedSet>,
    /// ln slowdown with each single co-tenant, for the class's [`ColocationHistory`].
    #[serde(skip)]
    pub singles: Vec<(WorkloadId, Gaussian)>,
    /// Fitted constants of its throughput model.
    #[serde(default)]
    pub scaling: Option<throughput::Constants>,
}
