//! What a node looks like this second, for any NATS client.
//!
//! * **Publisher:** profiler.
//! * **Listeners:** people (`nats sub`, `wattle tap`), `wattle up`.
//! * **How often:** once a second.
//! * **Delivery:** core NATS, JSON.
//! * **Lost or doubled:** the next one is a second away.

use serde::{Deserialize, Serialize};

use crate::id::{GpuIndex, JobId, NodeId};
use crate::time::Timestamp;
use crate::units::{Energy, Frequency, Power};

/// One node, this second.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSummary {
    /// The node.
    pub node: NodeId,
    /// The second's end.
    pub at_us: Timestamp,
    /// Sampling instants in it.
    pub samples: u32,
    /// Readings that failed in it.
    pub readings_failed: u32,
    /// Every GPU.
    pub gpus: Vec<GpuSummary>,
}

/// One GPU, this second. What could not be read is absent.
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
    /// Why it could not be read, while it cannot.
    #[serde(default)]
    pub error: Option<String>,
}
