//! The device trait and the properties and readings of a GPU.
//!
//! Calls block while the driver works: usually microseconds, but seconds on a faulty GPU. A service
//! therefore calls its driver from a dedicated thread. Callers cannot distinguish real from
//! simulated GPUs.

use wattle_common::{Frequency, GpuIndex, Power, units::Energy};

use crate::{GpuError, GpuHealth};

/// The GPUs of one node.
pub trait Driver: Send {
    /// Number of GPUs in the node.
    ///
    /// # Errors
    /// [`GpuError::DriverAbsent`] or [`GpuError::Retry`].
    fn count(&self) -> Result<u32, GpuError>;

    /// Properties of a GPU. They are constant while the service runs.
    ///
    /// # Errors
    /// If the GPU does not respond, or does not report its name or UUID.
    fn info(&self, gpu: GpuIndex) -> Result<GpuInfo, GpuError>;

    /// Current readings of a GPU. A quantity that cannot be read is `None`.
    ///
    /// # Errors
    /// Only if nothing can be read: [`GpuError::Lost`], [`GpuError::DriverAbsent`], or
    /// [`GpuError::Refused`] for an index without a GPU.
    fn read(&mut self, gpu: GpuIndex) -> Result<GpuReading, GpuError>;

    /// Modes and faults of a GPU, for a reading every few seconds: some of the calls are slow. A quantity
    /// that cannot be read is `None`.
    ///
    /// # Errors
    /// As [`Self::read`].
    fn health(&self, gpu: GpuIndex) -> Result<GpuHealth, GpuError>;

    /// Current power cap.
    ///
    /// # Errors
    /// If the GPU does not respond or has no power cap.
    fn cap(&self, gpu: GpuIndex) -> Result<Power, GpuError>;

    /// Sets the power cap. NVML requires root.
    ///
    /// # Errors
    /// [`GpuError::Refused`] outside the GPU's limits or without permission.
    fn set_cap(&mut self, gpu: GpuIndex, cap: Power) -> Result<(), GpuError>;

    /// Sets an upper limit on the SM clock; `None` removes it. NVML requires root.
    ///
    /// # Errors
    /// [`GpuError::Refused`] for a clock that the GPU does not support or without permission.
    fn set_clock_max(&mut self, gpu: GpuIndex, clock: Option<Frequency>) -> Result<(), GpuError>;
}

/// Constant properties of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuInfo {
    /// UUID, `GPU-...`.
    pub uuid: String,
    /// Name reported by NVML, e.g. `Tesla V100-SXM2-16GB`.
    pub name: String,
    /// GPU type derived from the name by [`crate::gpu_type_of`], e.g. `v100`.
    pub gpu_type: String,
    /// Device memory, MiB; absent if the GPU does not report it.
    pub memory_mib: Option<u64>,
    /// Default power cap; absent if the GPU has no power cap.
    pub cap_default: Option<Power>,
    /// Lowest settable power cap.
    pub cap_min: Option<Power>,
    /// Highest settable power cap.
    pub cap_max: Option<Power>,
    /// SM clocks that can be locked, ascending; empty if the GPU does not report them.
    pub clocks: Vec<Frequency>,
}

/// Readings of a GPU at one instant. A quantity that cannot be read is `None`, never zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuReading {
    /// Power draw. NVML averages it over one second on Ampere, except GA100 (A100, A30), and later; on
    /// other GPUs it is instantaneous.
    pub power: Option<Power>,
    /// Power draw at this instant, where [`Self::power`] may be a mean and the driver has both (NVML's field
    /// `NVML_FI_DEV_POWER_INSTANT`, drivers of 2023 and later).
    pub power_instant: Option<Power>,
    /// Energy of the GPU since the driver was loaded. See [`crate::EnergyCounter`] for differences.
    pub energy_total: Option<Energy>,
    /// Energy of the module that the GPU is a part of, since the driver was loaded. On a GPU that shares its
    /// module with a CPU, NVML's counter covers the module (ml-energy/zeus, pull request 172, for GH200), so
    /// it is no energy of the GPU.
    pub energy_module: Option<Energy>,
    /// Whether the driver states that the GPU supports no reading of its power and none of its energy.
    pub has_no_meter: bool,
    /// Share of time in which a kernel ran, percent.
    pub utilization_gpu_percent: Option<u8>,
    /// Share of time in which device memory was read or written, percent.
    pub utilization_memory_percent: Option<u8>,
    /// Device memory in use, MiB.
    pub memory_used_mib: Option<u64>,
    /// Free device memory, MiB. The driver's own memory is neither in use nor free.
    pub memory_free_mib: Option<u64>,
    /// SM clock.
    pub clock: Option<Frequency>,
    /// Power cap in force.
    pub cap: Option<Power>,
    /// The lowest of all limits on its power, of which the cap is one.
    pub cap_enforced: Option<Power>,
    /// Temperature, degrees Celsius.
    pub temperature_c: Option<u16>,
    /// NVML's throttle reasons, a bit set.
    pub throttle_reasons: Option<u64>,
    /// Compute processes by process id; absent if the GPU does not report them.
    pub processes: Option<Vec<ProcessReading>>,
}

/// Readings of one process on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessReading {
    /// Process id on the node.
    pub pid: u32,
    /// Device memory in use, MiB.
    pub memory_mib: Option<u64>,
    /// Share of GPU time since the previous reading, percent. NVML samples each active process a
    /// few times a second; absent if no sample was taken in between.
    pub utilization_gpu_percent: Option<u8>,
}
