//! One second of a node's readings, for people and any NATS client.
//!
//! * **Publisher:** profiler.
//! * **Listeners:** people (`nats sub`, `wattle tap`), `wattle up`.
//! * **How often:** once a second.
//! * **Delivery:** core NATS, JSON.
//! * **Lost or doubled:** the next one follows a second later.

use serde::{Deserialize, Serialize};

use crate::id::{GpuIndex, JobId, NodeId};
use crate::time::Timestamp;
use crate::units::{Energy, Frequency, Power};

/// One second of a node's readings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSummary {
    /// The node.
    pub node: NodeId,
    /// End of the second.
    pub at_us: Timestamp,
    /// Sampling instants in it.
    pub samples: u32,
    /// Failed readings in it.
    pub readings_failed: u32,
    /// Every GPU.
    pub gpus: Vec<GpuSummary>,
}

/// One second of a GPU's readings. A reading that failed is absent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuSummary {
    /// The GPU.
    pub gpu: GpuIndex,
    /// Mean power.
    #[serde(default)]
    pub power_mw_mean: Option<Power>,
    /// Energy since the profiler's start.
    #[serde(default)]
    pub energy_mj_total: Option<Energy>,
    /// Mean busy share, per cent.
    #[serde(default)]
    pub utilization_gpu_percent_mean: Option<u8>,
    /// Device memory in use, MiB.
    #[serde(default)]
    pub memory_used_mib: Option<u64>,
    /// SM clock.
    #[serde(default)]
    pub clock_mhz: Option<Frequency>,
    /// The power cap in force.
    #[serde(default)]
    pub cap_mw: Option<Power>,
    /// Temperature, degrees Celsius.
    #[serde(default)]
    pub temperature_c: Option<u16>,
    /// NVML's throttle reasons, a bit set.
    #[serde(default)]
    pub throttle_reasons: Option<u64>,
    /// Jobs on it.
    pub jobs: Vec<JobId>,
    /// The error of a failed reading, while it persists.
    #[serde(default)]
    pub error: Option<String>,
}
