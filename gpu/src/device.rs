//! The device trait, and what a card says of itself.
//!
//! Calls block for as long as the driver takes (microseconds, but seconds where a card is ill), so
//! a shell keeps its driver on a thread of its own. Nothing here knows whether a card is real.

use wattle_common::{Frequency, GpuIndex, Power, units::Energy};

use crate::GpuError;

/// A node's GPUs, as a service sees them.
pub trait Driver: Send {
    /// How many GPUs the node has.
    ///
    /// # Errors
    /// [`GpuError::DriverAbsent`] or [`GpuError::Retry`].
    fn count(&self) -> Result<u32, GpuError>;

    /// What the card is. It does not change while the service runs.
    ///
    /// # Errors
    /// Where the card does not answer, or has no name or memory size to tell.
    fn info(&self, gpu: GpuIndex) -> Result<GpuInfo, GpuError>;

    /// What the card reads now. What it does not give is `None`.
    ///
    /// # Errors
    /// Only where there is no reading at all: [`GpuError::Gone`], [`GpuError::DriverAbsent`],
    /// [`GpuError::Refused`] for an index that no card has.
    fn read(&mut self, gpu: GpuIndex) -> Result<GpuReading, GpuError>;

    /// The cap that stands on the card.
    ///
    /// # Errors
    /// Where the card does not answer or has no cap.
    fn cap(&self, gpu: GpuIndex) -> Result<Power, GpuError>;

    /// Sets the power cap. Needs root with NVML.
    ///
    /// # Errors
    /// [`GpuError::Refused`] outside the card's limits or without the right to.
    fn set_cap(&mut self, gpu: GpuIndex, cap: Power) -> Result<(), GpuError>;

    /// Locks the SM clock's highest value; `None` takes the lock away. Needs root with NVML.
    ///
    /// # Errors
    /// [`GpuError::Refused`] for a clock that the card does not have or without the right to.
    fn set_clock_max(&mut self, gpu: GpuIndex, clock: Option<Frequency>) -> Result<(), GpuError>;
}

/// What a card is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuInfo {
    /// Its UUID, `GPU-...`.
    pub uuid: String,
    /// Its name, as NVML gives it: `Tesla V100-SXM2-16GB`.
    pub name: String,
    /// Its kind, made of the name by [`crate::kind_of`]: `v100`.
    pub kind: String,
    /// Its device memory in MiB.
    pub memory_mib: u64,
    /// The cap it starts with; absent: it has no power cap.
    pub cap_default: Option<Power>,
    /// The lowest cap it takes.
    pub cap_min: Option<Power>,
    /// The highest cap it takes.
    pub cap_max: Option<Power>,
    /// The SM clocks it may be locked to, ascending; empty where it does not say.
    pub clocks: Vec<Frequency>,
}

/// What a card reads at one instant. What it does not give is `None`, never zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuReading {
    /// Power draw. On Ampere and later NVML's figure is itself an average over about a second.
    pub power: Option<Power>,
    /// Energy since the driver was loaded. See [`crate::EnergyCounter`] for its differences.
    pub energy_total: Option<Energy>,
    /// Share of time in which a kernel ran, per cent.
    pub utilization_gpu_percent: Option<u8>,
    /// Share of time in which device memory was read or written, per cent.
    pub utilization_memory_percent: Option<u8>,
    /// Device memory in use, MiB.
    pub memory_used_mib: Option<u64>,
    /// SM clock.
    pub clock: Option<Frequency>,
    /// The power cap that was set.
    pub cap: Option<Power>,
    /// Temperature, degrees Celsius.
    pub temperature_c: Option<u16>,
    /// NVML's throttle reasons, a bit set.
    pub throttle_reasons: Option<u64>,
    /// Processes that compute on the card, by process id; absent where the card does not say.
    pub processes: Option<Vec<ProcessReading>>,
}

/// One process on a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessReading {
    /// Its process id on the node.
    pub pid: u32,
    /// Device memory it holds, MiB.
    pub memory_mib: Option<u64>,
    /// Its share of the card's time since the reading before, per cent. NVML takes a sample of
    /// each process a few times a second and none of an idle one, so between two samples this is
    /// absent.
    pub utilization_gpu_percent: Option<u8>,
}
