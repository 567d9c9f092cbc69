//! One second of a node's readings, for people and any NATS client. Where system time runs faster than wall time it
//! covers more, which it states.
//!
//! * **Publisher:** profiler.
//! * **Listeners:** the placer below a power limit, people (`nats sub`, `wattle tap`), `wattle up`, `wattle top`,
//!   web page; as a reply `wattle jobs`, `wattle nodes`, `wattle explain`.
//! * **How often:** once a second, and at most ten times in a second of wall time.
//! * **Delivery:** core NATS, JSON; the last one also as the reply to [`ReadSummary`], through the
//!   NATS service API.
//! * **Lost or doubled:** the next one follows a second later.

use serde::{Deserialize, Serialize};

use crate::generation::is_unknown;
use crate::id::{AdmissionId, GpuIndex, JobId, NodeId};
use crate::time::Timestamp;
use crate::units::{Energy, Frequency, Power};

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(value: &u64) -> bool {
    *value == 0
}

const fn second_ms() -> u64 {
    1_000
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_second(ms: &u64) -> bool {
    *ms == second_ms()
}

/// One second of a node's readings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSummary {
    /// The node.
    pub node: NodeId,
    /// End of the time that it covers.
    pub at_us: Timestamp,
    /// The time that it covers, and after which the next one is due, milliseconds; absent: a second.
    #[serde(default = "second_ms", skip_serializing_if = "is_second")]
    pub span_ms: u64,
    /// The newest desired state whose jobs it reflects: that of the launcher's last report.
    #[serde(default, skip_serializing_if = "is_unknown")]
    pub observed_generation: u64,
    /// Sampling instants in it.
    pub samples: u32,
    /// Failed readings in it.
    pub readings_failed: u32,
    /// Every GPU.
    pub gpus: Vec<GpuSummary>,
    /// Every job with GPUs on the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<JobSummary>,
    /// Configured power of the rest of the node; absent: not configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_mw_host: Option<Power>,
    /// Start of the open interval of the energy ledger; absent: no interval has begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ledger_from_us: Option<Timestamp>,
}

/// Request: the last summary of this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadSummary {}

/// One second of a job's power on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSummary {
    /// The job.
    pub job: JobId,
    /// The submission that it is of; absent: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admission: Option<AdmissionId>,
    /// Mean power attributed to it; absent: no reading.
    #[serde(default)]
    pub power_mw_mean: Option<Power>,
    /// Energy attributed to it in the open interval of the ledger; absent: none was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy_mj_open: Option<Energy>,
    /// Time of its GPUs without a meter in the open interval, summed over GPUs, milliseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unmetered_ms_open: u64,
}

/// How the energy of a GPU is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Meter {
    /// By its energy counter.
    Counter,
    /// By its power, integrated over time. It has no energy counter, or one that also counts the other parts
    /// of its module.
    Power,
    /// Not at all: it supports neither power nor energy readings.
    None,
    /// In a way that this release does not know.
    #[serde(other)]
    Other,
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
    /// How its energy is measured; absent: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meter: Option<Meter>,
    /// Device memory in use, MiB.
    #[serde(default)]
    pub memory_used_mib: Option<u64>,
    /// Device memory that is free, MiB. The driver's own memory is neither in use nor free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_free_mib: Option<u64>,
    /// SM clock.
    #[serde(default)]
    pub clock_mhz: Option<Frequency>,
    /// The power cap in force.
    #[serde(default)]
    pub cap_mw: Option<Power>,
    /// The lowest of all limits on its power, of which the cap is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cap_mw_enforced: Option<Power>,
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
