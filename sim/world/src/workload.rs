//! Workloads: kinds of jobs, and what each does on each kind of card.

use wattle_common::WorkloadId;

use crate::Curve;
use crate::scaling::Scaling;

/// A kind of job: model, data set, batch size.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Its id in the catalog.
    pub id: WorkloadId,
    /// The network.
    pub model: String,
    /// The data set.
    pub dataset: String,
    /// Samples in a step, over all its GPUs.
    pub batch_size: u32,
    /// How many GPUs of one node it was measured on.
    pub gpus: u32,
    /// Steps in an epoch.
    pub steps_per_epoch: u64,
    /// Epochs of a whole training.
    pub epochs: u32,
    /// Device memory it takes on each GPU, MiB.
    pub memory_mib: u64,
    /// Whether it belongs to the mix that stands for jobs of unknown kind.
    pub in_mix: bool,
    /// Where its figures come from.
    pub source: String,
    /// How it scales over GPUs and nodes.
    pub(crate) scaling: Scaling,
    /// Whether that is the whole step's, not only that of its share on the card.
    pub(crate) scaling_of_step: bool,
    /// Share of its active power that it draws while it waits for its other GPUs; where not known,
    /// power follows the square root of the share that computes.
    pub(crate) waiting_share: Option<f64>,
    /// What it does on each GPU model of the catalog, by the model's index.
    pub(crate) responses: Vec<Response>,
}

/// What a workload does on one kind of card, alone, on the GPUs it was measured on.
#[derive(Clone, Debug)]
pub(crate) struct Response {
    /// Seconds for an epoch at the default cap and clock.
    pub(crate) epoch_s: f64,
    /// Power above idle of one card at the default cap and clock, in watts.
    pub(crate) active_w: f64,
    /// The most it draws above idle however busy it keeps the card, in watts.
    pub(crate) full_w: f64,
    /// Share of time with kernels on the card, 0..=1.
    pub(crate) busy: f64,
    /// Share of time with the memory in use, 0..=1.
    pub(crate) memory_busy: f64,
    /// Share of a step's time that lengthens as the core clock falls, 0..=1.
    pub(crate) core_bound: f64,
    /// Cap in watts -> speed and active power in watts, where measured.
    pub(crate) caps: Option<(Curve, Curve)>,
    /// Its own clock in MHz -> speed were it core-bound, and active power, relative to the top.
    pub(crate) clock: Option<(Curve, Curve)>,
    /// Its family in the card's table of pairs.
    pub(crate) family: Option<usize>,
    /// Whether these figures were measured on this kind of card, or carried from another.
    pub(crate) measured: bool,
}

impl Workload {
    /// Whether its figures on the GPU model of this kind were measured there, not carried over.
    #[must_use]
    pub fn measured_on(&self, gpu: &crate::GpuModel) -> bool {
        self.responses.get(gpu.index).is_some_and(|response| response.measured)
    }

    /// Seconds of one epoch alone on `gpus` GPUs of `nodes` nodes, at default cap and clock.
    #[must_use]
    pub fn epoch_s(&self, gpu: &crate::GpuModel, gpus: u32, nodes: u32) -> f64 {
        let response = &self.responses[gpu.index];
        response.epoch_s * self.spread_out(response, gpus, nodes).time
    }

    /// Steps in a second alone on `gpus` GPUs of `nodes` nodes, at default cap and clock.
    #[must_use]
    pub fn steps_per_s(&self, gpu: &crate::GpuModel, gpus: u32, nodes: u32) -> f64 {
        self.steps_per_epoch as f64 / self.epoch_s(gpu, gpus, nodes)
    }

    /// How the response changes on other GPUs than it was measured on.
    ///
    /// The input's share of a step stays and the card's follows the strong-scaling curve, or the
    /// whole step does where the curve is its own. Busy time on the card counts communication as
    /// NVML does. Power falls with the share that computes: to what was named for waiting, or by
    /// the square root, as it does for utilisation (docs/world.md).
    pub(crate) fn spread_out(&self, response: &Response, gpus: u32, nodes: u32) -> SpreadOut {
        if gpus == self.gpus && nodes <= 1 {
            return SpreadOut {
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
            let on_card = response.busy * ratio;
            let time = 1.0 - response.busy + on_card;
            (time, on_card / time)
        };
        let computing =
            (f64::from(self.gpus) / f64::from(gpus) / time).min(1.0 / response.busy.max(0.01));
        let drawn = match self.waiting_share {
            Some(waiting) => waiting + (1.0 - waiting) * computing,
            None => computing.sqrt(),
        };
        SpreadOut {
            time,
            busy,
            active_w: (response.active_w * drawn).min(response.full_w),
            computing,
        }
    }
}

/// A response on other GPUs than it was measured on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpreadOut {
    /// Time of a step relative to where it was measured.
    pub(crate) time: f64,
    /// Share of time with kernels on the card.
    pub(crate) busy: f64,
    /// Active power of one card, in watts.
    pub(crate) active_w: f64,
    /// Share of a step that computes on the card, relative to where it was measured: what a lower
    /// clock stretches; communication it does not.
    pub(crate) computing: f64,
}
