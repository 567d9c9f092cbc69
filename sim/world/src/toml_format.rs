//! TOML format of the catalog files; `catalog` checks the values.

use serde::Deserialize;
use wattle_common::WorkloadId;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    #[serde(default)]
    pub(crate) gpu: Vec<GpuEntry>,
    #[serde(default)]
    pub(crate) derived_gpu: Vec<DerivedEntry>,
    #[serde(default)]
    pub(crate) workload: Vec<WorkloadEntry>,
    #[serde(default)]
    pub(crate) pair: Vec<PairEntry>,
    #[serde(default)]
    pub(crate) scaling: Vec<ScalingEntry>,
    #[serde(default)]
    pub(crate) spread: Vec<SpreadEntry>,
    pub(crate) sharing: Option<SharingEntry>,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GpuEntry {
    pub(crate) gpu_type: String,
    /// The type whose response to caps and clocks it has; absent: it was measured.
    pub(crate) derived_from: Option<String>,
    pub(crate) nvml_name: String,
    pub(crate) memory_mib: u64,
    /// Dense FP16 throughput by the data sheet.
    pub(crate) peak_tflops: Option<f64>,
    /// Memory bandwidth by the data sheet, GB/s.
    pub(crate) bandwidth_gbs: Option<f64>,
    pub(crate) idle_w: f64,
    pub(crate) cap_w: Caps,
    pub(crate) clock_mhz: Clocks,
    pub(crate) memory_clock_mhz: u32,
    #[serde(default = "supported")]
    pub(crate) energy_counter: bool,
    #[serde(default = "supported")]
    pub(crate) locked_clocks: bool,
    pub(crate) active_w: f64,
    pub(crate) relative_speed: f64,
    pub(crate) node_gpus: u32,
    pub(crate) host_w: f64,
    pub(crate) sleep: SleepEntry,
    pub(crate) throttle: Vec<(f64, f64)>,
    pub(crate) clock: Vec<(u32, f64, f64)>,
    pub(crate) source: String,
}

fn supported() -> bool {
    true
}

/// A GPU model derived from another by data-sheet ratios.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DerivedEntry {
    pub(crate) gpu_type: String,
    pub(crate) from: String,
    pub(crate) nvml_name: String,
    pub(crate) memory_mib: u64,
    /// Absent: the share of the default cap of `from`.
    pub(crate) idle_w: Option<f64>,
    pub(crate) cap_w: Caps,
    pub(crate) clock_max_mhz: u32,
    pub(crate) peak_tflops: f64,
    pub(crate) bandwidth_gbs: f64,
    /// Absent: that of `from`, scaled by the geometric mean of the two ratios.
    pub(crate) relative_speed: Option<f64>,
    pub(crate) source: String,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SleepEntry {
    pub(crate) power_w: f64,
    pub(crate) enter_s: f64,
    pub(crate) wake_s: f64,
    pub(crate) wake_j: f64,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Caps {
    pub(crate) min: u64,
    pub(crate) default: u64,
    pub(crate) max: u64,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Clocks {
    pub(crate) min: u32,
    pub(crate) max: u32,
    pub(crate) step: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WorkloadEntry {
    pub(crate) id: WorkloadId,
    pub(crate) model: String,
    pub(crate) dataset: String,
    pub(crate) batch_size: u32,
    pub(crate) gpus: u32,
    pub(crate) steps_per_epoch: u64,
    pub(crate) epochs: u32,
    pub(crate) memory_mib: u64,
    pub(crate) family: Option<String>,
    pub(crate) scaling: String,
    /// Whether the curve was measured with this job, and so applies to the complete step.
    #[serde(default)]
    pub(crate) scaling_of_step: bool,
    pub(crate) spread: String,
    /// Share of active power drawn while waiting for the job's other GPUs.
    pub(crate) waiting_share: Option<f64>,
    #[serde(default)]
    pub(crate) trace_names: Vec<String>,
    #[serde(default)]
    pub(crate) mix: bool,
    pub(crate) source: String,
    pub(crate) measured: Vec<MeasuredEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MeasuredEntry {
    pub(crate) gpu: String,
    /// Caps of the rows, ascending; empty if measured at the default cap only.
    #[serde(default)]
    pub(crate) cap_w: Vec<u64>,
    pub(crate) epoch_s: Vec<f64>,
    pub(crate) power_w: Vec<f64>,
    /// Share of time with kernels on the GPU; absent: estimated from power.
    pub(crate) busy: Option<f64>,
    pub(crate) memory_busy: Option<f64>,
    /// Share of a step that scales with the core clock; absent: estimated from the caps.
    pub(crate) core_bound: Option<f64>,
    /// Clock response of the workload, as in a GPU entry; absent: that of the GPU.
    #[serde(default)]
    pub(crate) clock: Vec<(u32, f64, f64)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PairEntry {
    pub(crate) gpu: String,
    pub(crate) family: String,
    pub(crate) neighbour: String,
    pub(crate) speed: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScalingEntry {
    pub(crate) name: String,
    pub(crate) gpus: Vec<u32>,
    pub(crate) speed: Vec<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SpreadEntry {
    pub(crate) name: String,
    pub(crate) gpus: u32,
    pub(crate) nodes: Vec<u32>,
    pub(crate) speed: Vec<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SharingEntry {
    pub(crate) delay_per_neighbour: f64,
    pub(crate) node_base_w: f64,
    pub(crate) mild: Vec<(f64, f64)>,
}
