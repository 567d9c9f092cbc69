//! GPU models: what a card is, whatever runs on it.

use std::collections::BTreeMap;
use std::time::Duration;

use wattle_common::{Energy, Frequency, Power};

use crate::Curve;

/// One kind of card.
#[derive(Clone, Debug)]
pub struct GpuModel {
    /// Its name in configuration and traces, as in `v100`.
    pub kind: String,
    /// Its name as NVML gives it.
    pub nvml_name: String,
    /// Device memory, MiB.
    pub memory_mib: u64,
    /// Power with no tenant.
    pub idle: Power,
    /// The cap it starts with.
    pub cap_default: Power,
    /// The lowest cap it takes.
    pub cap_min: Power,
    /// The highest cap it takes.
    pub cap_max: Power,
    /// The clocks its cores can be locked to, highest first (NVML's order).
    pub clocks: Vec<Frequency>,
    /// The clock of its memory.
    pub memory_clock: Frequency,
    /// How many a node usually has; what [`crate::World::host_power`] is for.
    pub node_gpus: u32,
    /// Where its figures come from.
    pub source: String,
    /// What a usual node of them draws asleep, and what falling asleep and waking take.
    pub asleep: NodeSleep,
    /// Constant power of a usual node beside its GPUs.
    pub(crate) host: Power,
    /// Active power (above idle) of a job that fills the card, at the default cap, in watts.
    pub(crate) active_w: f64,
    /// Speed of a compute-bound job relative to the catalog's reference card.
    pub(crate) relative_speed: f64,
    /// Share of active power that is left -> speed of a compute-bound job.
    pub(crate) throttle: Curve,
    /// Locked MHz -> speed of a compute-bound job, relative to the top clock.
    pub(crate) clock_speed: Curve,
    /// Locked MHz -> active power, relative to the top clock.
    pub(crate) clock_active: Curve,
    /// The other way round: active power, relative to the top clock's -> MHz.
    pub(crate) clock_of_active: Curve,
    /// Position in the catalog: where workloads keep what they do on this card.
    pub(crate) index: usize,
    /// Names of the families that pairs were measured for.
    pub(crate) families: BTreeMap<String, usize>,
    /// Measured speed of one family beside another, relative to alone; 0 where not measured.
    pub(crate) pairs: Vec<Vec<f64>>,
}

/// A node asleep. While it falls asleep it draws what it drew awake and idle; while it wakes it
/// draws [`NodeSleep::waking`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeSleep {
    /// Power of the whole node.
    pub power: Power,
    /// From the command until it draws that.
    pub fall: Duration,
    /// From the command until jobs can start on it.
    pub wake: Duration,
    /// Energy of the whole node over that time.
    pub wake_energy: Energy,
}

impl NodeSleep {
    /// Mean power of the whole node while it wakes.
    #[must_use]
    pub fn waking(&self) -> Power {
        self.wake_energy.mean_power(self.wake).unwrap_or(self.power)
    }
}

impl GpuModel {
    /// The highest clock.
    #[must_use]
    pub fn clock_max(&self) -> Frequency {
        self.clocks.first().copied().unwrap_or(Frequency::ZERO)
    }

    /// Measured speed of a tenant of `family` beside one of `beside`, relative to alone.
    pub(crate) fn pair_speed(&self, family: Option<usize>, beside: Option<usize>) -> Option<f64> {
        let speed = *self.pairs.get(family?)?.get(beside?)?;
        (speed > 0.0).then_some(speed)
    }
}
