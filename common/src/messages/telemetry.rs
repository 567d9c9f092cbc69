//! GPU readings at the sampling rate.
//!
//! * **Publisher:** profiler, one batch for all GPUs of a node and a few sampling instants.
//! * **Listeners:** `wattle tap`, any NATS client. No decision uses telemetry: decisions use windows.
//! * **How often:** batches twice a second at 10 Hz.
//! * **Delivery:** core NATS, bincode behind the four-byte frame of [`crate::codec`].
//! * **Lost or doubled:** a lost batch is a gap; each sample has its own time, which identifies a
//!   doubled one. Data that must not be lost is in the ledger and in windows.
//!
//! The order and type of the fields is the wire format. It never changes: a new layout has a new
//! schema number in the frame.

use serde::{Deserialize, Serialize};

use crate::id::{GpuIndex, JobId, NodeId};
use crate::time::Timestamp;
use crate::units::{Energy, Frequency, Power};

/// Samples of one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TelemetryBatch {
    /// The node.
    pub node: NodeId,
    /// Number of the batch since the profiler's start.
    pub sequence: u64,
    /// The samples, oldest first.
    pub samples: Vec<GpuSample>,
}

/// One reading of one GPU. A value without a reading is `None`, never zero.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuSample {
    /// When it was read.
    pub at_us: Timestamp,
    /// The GPU.
    pub gpu: GpuIndex,
    /// Power draw. NVML averages it over one second on Ampere, except GA100 (A100, A30), and later; on
    /// other GPUs it is instantaneous.
    pub power_mw: Option<Power>,
    /// Energy since the previous sample, from the GPU's counter if it has one, otherwise power times
    /// time.
    pub energy_mj: Option<Energy>,
    /// Share of time in which a kernel ran, per cent.
    pub utilization_gpu_percent: Option<u8>,
    /// Share of time in which device memory was read or written, per cent.
    pub utilization_memory_percent: Option<u8>,
    /// Device memory in use, MiB.
    pub memory_used_mib: Option<u64>,
    /// SM clock.
    pub clock_mhz: Option<Frequency>,
    /// The power cap in force.
    pub cap_mw: Option<Power>,
    /// Temperature, degrees Celsius.
    pub temperature_c: Option<u16>,
    /// NVML's throttle reasons, a bit set.
    pub throttle_reasons: Option<u64>,
    /// The processes on the GPU.
    pub tenants: Vec<TenantSample>,
}

/// One process on a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantSample {
    /// Its job, if known.
    pub job: Option<JobId>,
    /// Its process id on the node.
    pub pid: u32,
    /// Device memory it uses, MiB.
    pub memory_used_mib: Option<u64>,
    /// Its share of the GPU's time, per cent.
    pub utilization_gpu_percent: Option<u8>,
}
