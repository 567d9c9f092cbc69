//! GPU models: the workload-independent properties of a GPU type and of its nodes.

use std::collections::BTreeMap;
use std::time::Duration;

use wattle_common::{Energy, Frequency, Power};

use crate::Curve;

/// A GPU type of the catalog.
#[derive(Clone, Debug)]
pub struct GpuModel {
    /// GPU type as in configuration and traces, e.g. `v100`.
    pub gpu_type: String,
    /// The type whose response to caps and clocks it has, by data-sheet ratios; `None` if its own was
    /// measured. [`crate::SPEED_ERROR`] bounds the error.
    pub derived_from: Option<String>,
    /// Name reported by NVML.
    pub nvml_name: String,
    /// Device memory, MiB.
    pub memory_mib: u64,
    /// Power without tenants.
    pub idle: Power,
    /// Default power cap.
    pub cap_default: Power,
    /// Lowest settable power cap.
    pub cap_min: Power,
    /// Highest settable power cap.
    pub cap_max: Power,
    /// Core clocks that can be locked, highest first (NVML's order).
    pub clocks: Vec<Frequency>,
    /// Memory clock.
    pub memory_clock: Frequency,
    /// Whether NVML offers an energy counter.
    pub energy_counter: bool,
    /// Whether the core clock can be locked.
    pub locked_clocks: bool,
    /// Usual number of GPUs in a node; [`crate::World::host_power`] applies to this number.
    pub node_gpus: u32,
    /// Source of the figures.
    pub source: String,
    /// Power, delays and energy of the sleep state of a usual node.
    pub sleep: NodeSleep,
    /// Constant power of a usual node without its GPUs.
    pub(crate) host: Power,
    /// Active power (above idle) of a job that saturates the GPU at the default cap, in watts.
    pub(crate) active_w: f64,
    /// Speed of a compute-bound job relative to the catalog's reference GPU.
    pub(crate) relative_speed: f64,
    /// Remaining share of active power -> speed of a compute-bound job.
    pub(crate) throttle: Curve,
    /// Locked MHz -> speed of a compute-bound job, relative to the top clock.
    pub(crate) clock_speed: Curve,
    /// Locked MHz -> active power, relative to the top clock.
    pub(crate) clock_active: Curve,
    /// Inverse of `clock_active`: relative active power -> MHz.
    pub(crate) clock_of_active: Curve,
    /// Position in the catalog, the index into [`crate::Workload`]'s responses.
    pub(crate) index: usize,
    /// Indices into `pairs` by workload family.
    pub(crate) families: BTreeMap<String, usize>,
    /// Measured speed of one family co-located with another, relative to exclusive use; 0 if not
    /// measured.
    pub(crate) pairs: Vec<Vec<f64>>,
}

/// The sleep state of a node. While entering it the node draws its idle power; while waking it
/// draws [`NodeSleep::waking`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeSleep {
    /// Power of the sleeping node.
    pub power: Power,
    /// Time from the sleep command until the node draws `power`.
    pub enter: Duration,
    /// Time from the wake command until the node can start jobs.
    pub wake: Duration,
    /// Energy of the node during `wake`.
    pub wake_energy: Energy,
}

impl NodeSleep {
    /// Mean power of the node while it wakes.
    #[must_use]
    pub fn waking(&self) -> Power {
        self.wake_energy.mean_power(self.wake).unwrap_or(self.power)
    }
}

impl GpuModel {
    /// The highest core clock.
    #[must_use]
    pub fn clock_max(&self) -> Frequency {
        self.clocks.first().copied().unwrap_or(Frequency::ZERO)
    }

    /// Measured speed of a tenant of `family` co-located with one of family `other`, relative to
    /// exclusive use.
    pub(crate) fn pair_speed(&self, family: Option<usize>, other: Option<usize>) -> Option<f64> {
        let speed = *self.pairs.get(family?)?.get(other?)?;
        (speed > 0.0).then_some(speed)
    }
}
