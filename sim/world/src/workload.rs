//! Workloads and their responses on each GPU model.

use wattle_common::WorkloadId;

use crate::Curve;
use crate::scaling::Scaling;

/// A workload: model, data set and batch size.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Id in the catalog.
    pub id: WorkloadId,
    /// Network.
    pub model: String,
    /// Data set.
    pub dataset: String,
    /// Global batch size: samples per step over all GPUs.
    pub batch_size: u32,
    /// Number of GPUs of one node in the measurement.
    pub gpus: u32,
    /// Steps per epoch.
    pub steps_per_epoch: u64,
    /// Epochs of a complete training run.
    pub epochs: u32,
    /// Device memory per GPU, MiB.
    pub memory_mib: u64,
    /// Whether it belongs to the mix for jobs without a known workload.
    pub in_mix: bool,
    /// Source of the figures.
    pub source: String,
    /// Scaling over GPUs and nodes.
    pub(crate) scaling: Scaling,
    /// Whether the scaling applies to the complete step instead of its GPU share only.
    pub(crate) scaling_of_step: bool,
    /// Share of active power drawn while waiting for the job's other GPUs; if absent, power follows
    /// the square root of the computing share.
    pub(crate) waiting_share: Option<f64>,
    /// Response on each GPU model of the catalog, by the model's index.
    pub(crate) responses: Vec<Response>,
}

/// Response of a workload on one GPU model: exclusive use of the measured number of GPUs.
#[derive(Clone, Debug)]
pub(crate) struct Response {
    /// Seconds per epoch at default cap and clock.
    pub(crate) epoch_s: f64,
    /// Active power (above idle) of one GPU at default cap and clock, in watts.
    pub(crate) active_w: f64,
    /// Upper bound on the active power of one GPU at any utilisation, in watts.
    pub(crate) full_w: f64,
    /// Share of time with kernels on the GPU, 0..=1.
    pub(crate) busy: f64,
    /// Share of time with memory accesses, 0..=1.
    pub(crate) memory_busy: f64,
    /// Share of a step's time that scales with the core clock, 0..=1.
    pub(crate) core_bound: f64,
    /// Cap in watts -> speed and active power in watts, if measured.
    pub(crate) caps: Option<(Curve, Curve)>,
    /// Clock in MHz -> speed of the core-bound share and active power, relative to the top clock; if
    /// the workload has curves of its own.
    pub(crate) clock: Option<(Curve, Curve)>,
    /// Family in the GPU's table of pairs.
    pub(crate) family: Option<usize>,
}

impl Workload {
    /// Seconds per epoch with exclusive use of `gpus` GPUs on `nodes` nodes, at default cap and clock.
    #[must_use]
    pub fn epoch_s(&self, gpu: &crate::GpuModel, gpus: u32, nodes: u32) -> f64 {
        let response = &self.responses[gpu.index];
        response.epoch_s * self.scaled(response, gpus, nodes).time
    }

    /// Steps per second with exclusive use of `gpus` GPUs on `nodes` nodes, at default cap and clock.
    #[must_use]
    pub fn steps_per_s(&self, gpu: &crate::GpuModel, gpus: u32, nodes: u32) -> f64 {
        self.steps_per_epoch as f64 / self.epoch_s(gpu, gpus, nodes)
    }

    /// The response on another number of GPUs or nodes than measured.
    ///
    /// Input time is constant and GPU time follows the strong-scaling curve, or the complete step
    /// does if the curve was measured with this job. Like NVML, busy time includes communication.
    /// Power falls with the computing share: down to the waiting share, or with the square root, as
    /// for utilisation (docs/world.md).
    pub(crate) fn scaled(&self, response: &Response, gpus: u32, nodes: u32) -> Scaled {
        if gpus == self.gpus && nodes <= 1 {
            return Scaled {
                time: 1.0,
                busy: response.busy,
                active_w: response.active_w,
                computing: 1.0,
            };
        }
        let gpus = gpus.max(1);
        let ratio = self.scaling.speed(self.gpus, 1) / self.scaling.speed(gpus, nodes.max(1));
        let (time, busy) = if self.scaling_of_step {
            (ratio, response.busy)
        } else {
            let on_gpu = response.busy * ratio;
            let time = 1.0 - response.busy + on_gpu;
            (time, on_gpu / time)
        };
        let computing =
            (f64::from(self.gpus) / f64::from(gpus) / time).min(1.0 / response.busy.max(0.01));
        let power_factor = match self.waiting_share {
            Some(waiting) => waiting + (1.0 - waiting) * computing,
            None => computing.sqrt(),
        };
        Scaled {
            time,
            busy,
            active_w: (response.active_w * power_factor).min(response.full_w),
            computing,
        }
    }
}

/// A response scaled to a number of GPUs and nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scaled {
    /// Step time relative to the measurement.
    pub(crate) time: f64,
    /// Share of time with kernels on the GPU.
    pub(crate) busy: f64,
    /// Active power of one GPU, in watts.
    pub(crate) active_w: f64,
    /// Computing share of a step relative to the measurement. A lower clock lengthens computation
    /// but not communication.
    pub(crate) computing: f64,
}
