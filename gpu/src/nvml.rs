//! NVML implementation of [`Driver`]: the only file that names `nvml_wrapper`.
//!
//! The library is loaded when a driver is opened, so services build and start without one. The
//! caller selects the library: the system's, or one that simulates a node. NVML's return codes map
//! to the variants of [`GpuError`]. A single failed reading becomes `None`: a GPU without one works. Only a
//! lost GPU or an absent driver fails a complete [`Driver::read`].

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use nvml_wrapper::enum_wrappers::device::{Clock, EccCounter, MemoryError, TemperatureSensor};
use nvml_wrapper::enums::device::{GpuLockedClocksSetting, SampleValue, UsedGpuMemory};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::FieldValueSample;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id::{
    NVML_FI_DEV_POWER_INSTANT, NVML_FI_DEV_REMAPPED_FAILURE, NVML_FI_DEV_REMAPPED_PENDING,
};
use nvml_wrapper::{Device, Nvml};
use wattle_common::messages::MemoryRepair;
use wattle_common::units::Energy;
use wattle_common::{Frequency, GpuIndex, Power};

use crate::{
    Driver, GpuError, GpuHealth, GpuInfo, GpuReading, ProcessReading, Slowdown, gpu_type_of,
    is_superchip,
};

/// Default library: the name that every NVIDIA driver installs.
const LIBRARY: &str = "libnvidia-ml.so.1";

const MIB: u64 = 1 << 20;

/// The GPUs reported by an NVML library.
pub struct NvmlDriver {
    nvml: Nvml,
    library: PathBuf,
    /// Driver timestamp of the newest process sample already read, per GPU.
    newest_sample_us: BTreeMap<GpuIndex, u64>,
    /// The properties of a GPU that its readings need.
    traits: BTreeMap<GpuIndex, Traits>,
}

/// Constant properties of a GPU that decide how it is read.
#[derive(Clone, Copy, Debug)]
struct Traits {
    /// Whether its energy counter covers its module.
    counts_module: bool,
    /// Whether the driver has its power at an instant beside a mean.
    has_power_instant: bool,
}

/// The error of the dynamic loader or the driver without the library's name, which its message has already.
fn cause(error: &NvmlError, library: &Path) -> String {
    let text = match error {
        NvmlError::LibloadingError(loader) => loader.to_string(),
        driver => driver.to_string(),
    };
    let named = format!("{}: ", library.display());
    text.strip_prefix(&named).unwrap_or(&text).to_owned()
}

impl NvmlDriver {
    /// Loads `library`, or the system's NVML.
    ///
    /// # Errors
    /// [`GpuError::DriverAbsent`] if the library cannot be loaded or finds no driver.
    pub fn open(library: Option<&Path>) -> Result<Self, GpuError> {
        let library = library.unwrap_or(Path::new(LIBRARY)).to_owned();
        let nvml = Nvml::builder().lib_path(OsStr::new(&library)).init().map_err(|error| {
            GpuError::DriverAbsent { library: library.clone(), detail: cause(&error, &library) }
        })?;
        Ok(Self { nvml, library, newest_sample_us: BTreeMap::new(), traits: BTreeMap::new() })
    }

    fn device(&self, gpu: GpuIndex, operation: &'static str) -> Result<Device<'_>, GpuError> {
        self.nvml.device_by_index(gpu).map_err(|error| match error {
            // NVML returns this code for an index without a GPU.
            NvmlError::InvalidArg => {
                let count = self.nvml.device_count().unwrap_or(0);
                GpuError::Refused { gpu, operation, remedy: format!("this node has {count} GPUs") }
            }
            other => self.error(gpu, operation, other),
        })
    }

    /// Maps an NVML error to the caller's action.
    fn error(&self, gpu: GpuIndex, operation: &'static str, error: NvmlError) -> GpuError {
        match error {
            NvmlError::GpuLost | NvmlError::ResetRequired | NvmlError::IrqIssue => {
                GpuError::Lost { gpu, operation }
            }
            unsupported if is_unsupported(&unsupported) => GpuError::Unsupported { gpu, operation },
            NvmlError::NoPermission => GpuError::Refused {
                gpu,
                operation,
                remedy: "permission denied; run this service as root or with CAP_SYS_ADMIN"
                    .to_owned(),
            },
            NvmlError::InvalidArg => {
                GpuError::Refused { gpu, operation, remedy: "value out of range".to_owned() }
            }
            NvmlError::OperatingSystem => GpuError::Refused {
                gpu,
                operation,
                remedy: "the operating system or a cgroup denies access to the device".to_owned(),
            },
            NvmlError::Uninitialized
            | NvmlError::DriverNotLoaded
            | NvmlError::LibraryNotFound
            | NvmlError::LibRmVersionMismatch => {
                GpuError::DriverAbsent { library: self.library.clone(), detail: error.to_string() }
            }
            other => GpuError::Retry { gpu, operation, detail: other.to_string() },
        }
    }

    /// A quantity that a GPU may lack. Only a lost GPU and an absent driver are errors.
    fn optional<T>(
        &self,
        gpu: GpuIndex,
        operation: &'static str,
        result: Result<T, NvmlError>,
    ) -> Result<Option<T>, GpuError> {
        match result.map_err(|error| self.error(gpu, operation, error)) {
            Ok(value) => Ok(Some(value)),
            Err(fatal @ (GpuError::Lost { .. } | GpuError::DriverAbsent { .. })) => Err(fatal),
            Err(_) => Ok(None),
        }
    }

    /// How a GPU is read.
    fn traits(&mut self, gpu: GpuIndex) -> Result<Traits, GpuError> {
        if let Some(known) = self.traits.get(&gpu) {
            return Ok(*known);
        }
        let operation = "read the device properties";
        let device = self.device(gpu, operation)?;
        let name = device.name().map_err(|error| self.error(gpu, operation, error))?;
        let traits = Traits {
            counts_module: is_superchip(&gpu_type_of(&name)),
            has_power_instant: power_instant(&device).is_some(),
        };
        self.traits.insert(gpu, traits);
        Ok(traits)
    }

    /// Mean GPU share of each process since the sample at `since_us`, and the time of the newest
    /// sample.
    fn process_shares(device: &Device<'_>, since_us: u64) -> (BTreeMap<u32, u8>, u64) {
        // NVML returns `NotFound` if no process has run since then.
        let samples = device.process_utilization_stats(since_us).unwrap_or_default();
        let mut sums: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        let mut newest = since_us;
        // Some drivers also return samples that are older or have no timestamp.
        for sample in samples.iter().filter(|sample| sample.timestamp > since_us) {
            newest = newest.max(sample.timestamp);
            let (sum, count) = sums.entry(sample.pid).or_default();
            *sum += u64::from(sample.sm_util.min(100));
            *count += 1;
        }
        let shares = sums
            .into_iter()
            .filter_map(|(pid, (sum, count))| Some((pid, u8::try_from(sum / count).ok()?)))
            .collect();
        (shares, newest)
    }
}

/// Whether the GPU or its driver has no such function.
const fn is_unsupported(error: &NvmlError) -> bool {
    matches!(
        error,
        NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound
    )
}

/// Power at this instant, of the GPU alone.
fn power_instant(device: &Device<'_>) -> Option<Power> {
    let samples = device.field_values_for(&[FieldId(NVML_FI_DEV_POWER_INSTANT)]).ok()?;
    match samples.into_iter().next()?.ok()?.value.ok()? {
        SampleValue::U32(milliwatts) => Some(Power::from_mw(u64::from(milliwatts))),
        SampleValue::U64(milliwatts) => Some(Power::from_mw(milliwatts)),
        SampleValue::F64(_) | SampleValue::I64(_) => None,
    }
}

/// Row remapping of Ampere and later, else page retirement.
fn memory_repair(device: &Device<'_>) -> Option<MemoryRepair> {
    let fields = [NVML_FI_DEV_REMAPPED_PENDING, NVML_FI_DEV_REMAPPED_FAILURE].map(FieldId);
    let samples = device.field_values_for(&fields).unwrap_or_default();
    let is_set = |sample: Result<FieldValueSample, NvmlError>| match sample.ok()?.value.ok()? {
        SampleValue::U32(value) => Some(value != 0),
        SampleValue::U64(value) => Some(value != 0),
        SampleValue::F64(_) | SampleValue::I64(_) => None,
    };
    let mut samples = samples.into_iter().map(is_set);
    let (pending, failed) = (samples.next().flatten(), samples.next().flatten());
    let retired = || device.are_pages_pending_retired().ok();
    match (pending.or_else(retired), failed) {
        (_, Some(true)) => Some(MemoryRepair::Failed),
        (Some(true), _) => Some(MemoryRepair::Pending),
        (Some(false), _) => Some(MemoryRepair::None),
        (None, _) => None,
    }
}

fn percent(value: u32) -> Option<u8> {
    u8::try_from(value).ok().filter(|value| *value <= 100)
}

impl Driver for NvmlDriver {
    fn count(&self) -> Result<u32, GpuError> {
        self.nvml.device_count().map_err(|error| self.error(0, "count the GPUs", error))
    }

    fn info(&self, gpu: GpuIndex) -> Result<GpuInfo, GpuError> {
        let operation = "read the device properties";
        let device = self.device(gpu, operation)?;
        let fail = |error| self.error(gpu, operation, error);
        let name = device.name().map_err(fail)?;
        let limits = device.power_management_limit_constraints().ok();
        let watts = |milliwatts: u32| Power::from_mw(u64::from(milliwatts));
        // NVML lists SM clocks per memory clock; GPUs under load run at the highest memory clock.
        let memory_clock =
            device.supported_memory_clocks().ok().and_then(|clocks| clocks.into_iter().max());
        let mut clocks: Vec<Frequency> = memory_clock
            .and_then(|clock| device.supported_graphics_clocks(clock).ok())
            .unwrap_or_default()
            .into_iter()
            .map(Frequency::from_mhz)
            .collect();
        clocks.sort_unstable();
        clocks.dedup();
        Ok(GpuInfo {
            uuid: device.uuid().map_err(fail)?,
            gpu_type: gpu_type_of(&name),
            name,
            memory_mib: self
                .optional(gpu, operation, device.memory_info())?
                .map(|memory| memory.total / MIB),
            cap_default: device.power_management_limit_default().ok().map(watts),
            cap_min: limits.as_ref().map(|limits| watts(limits.min_limit)),
            cap_max: limits.as_ref().map(|limits| watts(limits.max_limit)),
            clocks,
        })
    }

    fn read(&mut self, gpu: GpuIndex) -> Result<GpuReading, GpuError> {
        let operation = "read the sensors";
        let Traits { counts_module, has_power_instant } = self.traits(gpu)?;
        let device = self.device(gpu, operation)?;
        // A lost GPU fails each of these calls; one that lacks a quantity fails its own.
        let power = device.power_usage();
        let energy = device.total_energy_consumption();
        let has_no_meter = power.as_ref().is_err_and(is_unsupported)
            && (counts_module || energy.as_ref().is_err_and(is_unsupported));
        let power = self.optional(gpu, operation, power)?;
        let energy = self.optional(gpu, operation, energy)?.map(Energy::from_mj);
        let utilization = self.optional(gpu, operation, device.utilization_rates())?;
        let memory = self.optional(gpu, operation, device.memory_info())?;
        let running = device.running_compute_processes().ok();
        let since_us = self.newest_sample_us.get(&gpu).copied().unwrap_or(0);
        let (shares, newest_us) = match &running {
            Some(running) if !running.is_empty() => Self::process_shares(&device, since_us),
            _ => (BTreeMap::new(), since_us),
        };
        let processes = running.map(|running| {
            let mut processes: Vec<ProcessReading> = running
                .into_iter()
                .map(|process| ProcessReading {
                    pid: process.pid,
                    memory_mib: match process.used_gpu_memory {
                        UsedGpuMemory::Used(bytes) => Some(bytes / MIB),
                        UsedGpuMemory::Unavailable => None,
                    },
                    utilization_gpu_percent: shares.get(&process.pid).copied(),
                })
                .collect();
            processes.sort_unstable_by_key(|process| process.pid);
            processes
        });
        let reading = GpuReading {
            power: power.map(|milliwatts| Power::from_mw(u64::from(milliwatts))),
            power_instant: if has_power_instant { power_instant(&device) } else { None },
            energy_total: energy.filter(|_| !counts_module),
            energy_module: energy.filter(|_| counts_module),
            has_no_meter,
            utilization_gpu_percent: utilization.as_ref().and_then(|u| percent(u.gpu)),
            utilization_memory_percent: utilization.as_ref().and_then(|u| percent(u.memory)),
            memory_used_mib: memory.as_ref().map(|memory| memory.used / MIB),
            memory_free_mib: memory.as_ref().map(|memory| memory.free / MIB),
            clock: device.clock_info(Clock::SM).ok().map(Frequency::from_mhz),
            cap: device.power_management_limit().ok().map(|mw| Power::from_mw(u64::from(mw))),
            cap_enforced: device
                .enforced_power_limit()
                .ok()
                .map(|mw| Power::from_mw(u64::from(mw))),
            temperature_c: device
                .temperature(TemperatureSensor::Gpu)
                .ok()
                .and_then(|celsius| u16::try_from(celsius).ok()),
            throttle_reasons: device.current_throttle_reasons().ok().map(|bits| bits.bits()),
            processes,
        };
        self.newest_sample_us.insert(gpu, newest_us);
        Ok(reading)
    }

    fn health(&self, gpu: GpuIndex) -> Result<GpuHealth, GpuError> {
        let operation = "read the health";
        let device = self.device(gpu, operation)?;
        // Every GPU with a driver reports its persistence mode, so this call detects a lost GPU.
        let persistence_enabled = match device.is_in_persistent_mode() {
            Ok(enabled) => Some(enabled),
            Err(error) => match self.error(gpu, operation, error) {
                fatal @ (GpuError::Lost { .. } | GpuError::DriverAbsent { .. }) => {
                    return Err(fatal);
                }
                _ => None,
            },
        };
        let ecc = device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile);
        Ok(GpuHealth {
            // NVML's 0 and 1: disabled and enabled.
            mig_enabled: device.mig_mode().ok().map(|mode| mode.current == 1),
            persistence_enabled,
            ecc_errors_uncorrected: ecc.ok(),
            memory_repair: memory_repair(&device),
            slowdown: device
                .current_throttle_reasons()
                .ok()
                .map(|reasons| Slowdown::of(reasons.bits())),
        })
    }

    fn cap(&self, gpu: GpuIndex) -> Result<Power, GpuError> {
        let operation = "read the power cap";
        let milliwatts = self
            .device(gpu, operation)?
            .power_management_limit()
            .map_err(|error| self.error(gpu, operation, error))?;
        Ok(Power::from_mw(u64::from(milliwatts)))
    }

    fn set_cap(&mut self, gpu: GpuIndex, cap: Power) -> Result<(), GpuError> {
        let operation = "set the power cap";
        let mut device = self.device(gpu, operation)?;
        let outside = |limits: String| GpuError::Refused {
            gpu,
            operation,
            remedy: format!("{cap} is outside {limits}"),
        };
        let milliwatts =
            u32::try_from(cap.as_mw()).map_err(|_| outside("the range of NVML".to_owned()))?;
        device.set_power_management_limit(milliwatts).map_err(|error| match error {
            NvmlError::InvalidArg => outside(match device.power_management_limit_constraints() {
                Ok(limits) => format!(
                    "{} to {}",
                    Power::from_mw(u64::from(limits.min_limit)),
                    Power::from_mw(u64::from(limits.max_limit))
                ),
                Err(_) => "the limits of the GPU".to_owned(),
            }),
            other => self.error(gpu, operation, other),
        })
    }

    fn set_clock_max(&mut self, gpu: GpuIndex, clock: Option<Frequency>) -> Result<(), GpuError> {
        let operation = "lock the clock";
        // An upper bound: every lower clock stays allowed.
        let lowest = match clock {
            Some(_) => self.info(gpu)?.clocks.first().copied(),
            None => None,
        };
        let mut device = self.device(gpu, operation)?;
        let result = match clock {
            None => device.reset_gpu_locked_clocks(),
            Some(max) => device.set_gpu_locked_clocks(GpuLockedClocksSetting::Numeric {
                min_clock_mhz: lowest.unwrap_or(max).min(max).as_mhz(),
                max_clock_mhz: max.as_mhz(),
            }),
        };
        result.map_err(|error| self.error(gpu, operation, error))
    }
}
