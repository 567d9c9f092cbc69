//! NVML behind the device trait: the only file that names `nvml_wrapper`.
//!
//! The library is loaded when a driver is opened, so everything builds and starts where there is
//! none. Which library it is (the system's, or one that simulates a node) is the caller's to say and
//! makes no difference here. NVML's dozens of codes become the few things a caller can do about
//! them; a single reading that fails is a missing reading, and only a lost card or driver fails a
//! whole one.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::enums::device::{GpuLockedClocksSetting, UsedGpuMemory};
use nvml_wrapper::error::NvmlError;
use wattle_common::units::Energy;
use wattle_common::{Frequency, GpuIndex, Power};

use crate::{Driver, GpuError, GpuInfo, GpuReading, ProcessReading, kind_of};

/// What is loaded where nothing else is named: the name every NVIDIA driver installs.
const LIBRARY: &str = "libnvidia-ml.so.1";

const MIB: u64 = 1 << 20;

/// The cards that an NVML library shows.
pub struct NvmlDriver {
    nvml: Nvml,
    library: PathBuf,
    /// For each card the driver's timestamp of the newest process sample already seen.
    seen_us: BTreeMap<GpuIndex, u64>,
}

impl NvmlDriver {
    /// Loads `library`, or the system's NVML.
    ///
    /// # Errors
    /// [`GpuError::DriverAbsent`] where there is none or it finds no driver.
    pub fn open(library: Option<&Path>) -> Result<Self, GpuError> {
        let library = library.unwrap_or(Path::new(LIBRARY)).to_owned();
        let nvml = Nvml::builder().lib_path(OsStr::new(&library)).init().map_err(|error| {
            GpuError::DriverAbsent { library: library.clone(), detail: error.to_string() }
        })?;
        Ok(Self { nvml, library, seen_us: BTreeMap::new() })
    }

    fn device(&self, gpu: GpuIndex, what: &'static str) -> Result<Card<'_>, GpuError> {
        self.nvml.device_by_index(gpu).map_err(|error| match error {
            // NVML answers so to an index that no card has.
            NvmlError::InvalidArg => {
                let count = self.nvml.device_count().unwrap_or(0);
                GpuError::Refused { gpu, what, remedy: format!("this node has {count} GPUs") }
            }
            other => self.error(gpu, what, other),
        })
    }

    /// What a caller can do about `error`.
    fn error(&self, gpu: GpuIndex, what: &'static str, error: NvmlError) -> GpuError {
        match error {
            NvmlError::GpuLost | NvmlError::ResetRequired | NvmlError::IrqIssue => {
                GpuError::Gone { gpu, what }
            }
            NvmlError::NotSupported
            | NvmlError::FailedToLoadSymbol(_)
            | NvmlError::FunctionNotFound => GpuError::Unsupported { gpu, what },
            NvmlError::NoPermission => GpuError::Refused {
                gpu,
                what,
                remedy: "no permission; run this service as root or with CAP_SYS_ADMIN".to_owned(),
            },
            NvmlError::InvalidArg => {
                GpuError::Refused { gpu, what, remedy: "the value is out of its range".to_owned() }
            }
            NvmlError::OperatingSystem => GpuError::Refused {
                gpu,
                what,
                remedy: "the operating system or a cgroup denies access to the device".to_owned(),
            },
            NvmlError::Uninitialized
            | NvmlError::DriverNotLoaded
            | NvmlError::LibraryNotFound
            | NvmlError::LibRmVersionMismatch => {
                GpuError::DriverAbsent { library: self.library.clone(), detail: error.to_string() }
            }
            other => GpuError::Retry { gpu, what, detail: other.to_string() },
        }
    }

    /// Per process its mean share of the card since the last call, and the newest sample's time.
    fn process_shares(card: &Card<'_>, seen_us: u64) -> (BTreeMap<u32, u8>, u64) {
        // `NotFound` is NVML's way to say that no process has run since.
        let samples = card.process_utilization_stats(seen_us).unwrap_or_default();
        let mut sums: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        let mut newest = seen_us;
        // Drivers are known to return old samples beside new ones, and ones without a time.
        for sample in samples.iter().filter(|sample| sample.timestamp > seen_us) {
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

type Card<'a> = nvml_wrapper::Device<'a>;

fn percent(value: u32) -> Option<u8> {
    u8::try_from(value).ok().filter(|value| *value <= 100)
}

impl Driver for NvmlDriver {
    fn count(&self) -> Result<u32, GpuError> {
        self.nvml.device_count().map_err(|error| self.error(0, "be counted", error))
    }

    fn info(&self, gpu: GpuIndex) -> Result<GpuInfo, GpuError> {
        let what = "describe itself";
        let card = self.device(gpu, what)?;
        let fail = |error| self.error(gpu, what, error);
        let name = card.name().map_err(fail)?;
        let limits = card.power_management_limit_constraints().ok();
        let watts = |milliwatts: u32| Power::from_mw(u64::from(milliwatts));
        // The SM clocks come with the memory clock they go with; cards run at the highest.
        let memory_clock =
            card.supported_memory_clocks().ok().and_then(|clocks| clocks.into_iter().max());
        let mut clocks: Vec<Frequency> = memory_clock
            .and_then(|clock| card.supported_graphics_clocks(clock).ok())
            .unwrap_or_default()
            .into_iter()
            .map(Frequency::from_mhz)
            .collect();
        clocks.sort_unstable();
        clocks.dedup();
        Ok(GpuInfo {
            uuid: card.uuid().map_err(fail)?,
            kind: kind_of(&name),
            name,
            memory_mib: card.memory_info().map_err(fail)?.total / MIB,
            cap_default: card.power_management_limit_default().ok().map(watts),
            cap_min: limits.as_ref().map(|limits| watts(limits.min_limit)),
            cap_max: limits.as_ref().map(|limits| watts(limits.max_limit)),
            clocks,
        })
    }

    fn read(&mut self, gpu: GpuIndex) -> Result<GpuReading, GpuError> {
        let what = "be read";
        let card = self.device(gpu, what)?;
        // Power is asked first: it is the reading that every card has, so a lost card or driver
        // shows here. Any other failure leaves out that one reading.
        let power = match card.power_usage() {
            Ok(milliwatts) => Some(Power::from_mw(u64::from(milliwatts))),
            Err(error) => match self.error(gpu, what, error) {
                fatal @ (GpuError::Gone { .. } | GpuError::DriverAbsent { .. }) => {
                    return Err(fatal);
                }
                _ => None,
            },
        };
        let utilization = card.utilization_rates().ok();
        let running = card.running_compute_processes().ok();
        let seen_us = self.seen_us.get(&gpu).copied().unwrap_or(0);
        let (shares, newest_us) = match &running {
            Some(running) if !running.is_empty() => Self::process_shares(&card, seen_us),
            _ => (BTreeMap::new(), seen_us),
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
            power,
            energy_total: card.total_energy_consumption().ok().map(Energy::from_mj),
            utilization_gpu_percent: utilization.as_ref().and_then(|u| percent(u.gpu)),
            utilization_memory_percent: utilization.as_ref().and_then(|u| percent(u.memory)),
            memory_used_mib: card.memory_info().ok().map(|memory| memory.used / MIB),
            clock: card.clock_info(Clock::SM).ok().map(Frequency::from_mhz),
            cap: card.power_management_limit().ok().map(|mw| Power::from_mw(u64::from(mw))),
            temperature_c: card
                .temperature(TemperatureSensor::Gpu)
                .ok()
                .and_then(|celsius| u16::try_from(celsius).ok()),
            throttle_reasons: card.current_throttle_reasons().ok().map(|bits| bits.bits()),
            processes,
        };
        self.seen_us.insert(gpu, newest_us);
        Ok(reading)
    }

    fn cap(&self, gpu: GpuIndex) -> Result<Power, GpuError> {
        let what = "tell its power cap";
        let milliwatts = self
            .device(gpu, what)?
            .power_management_limit()
            .map_err(|error| self.error(gpu, what, error))?;
        Ok(Power::from_mw(u64::from(milliwatts)))
    }

    fn set_cap(&mut self, gpu: GpuIndex, cap: Power) -> Result<(), GpuError> {
        let what = "set its power cap";
        let mut card = self.device(gpu, what)?;
        let outside = |limits: String| GpuError::Refused {
            gpu,
            what,
            remedy: format!("{cap} is outside {limits}"),
        };
        let milliwatts =
            u32::try_from(cap.as_mw()).map_err(|_| outside("what any card takes".to_owned()))?;
        card.set_power_management_limit(milliwatts).map_err(|error| match error {
            NvmlError::InvalidArg => outside(match card.power_management_limit_constraints() {
                Ok(limits) => format!(
                    "{} to {}",
                    Power::from_mw(u64::from(limits.min_limit)),
                    Power::from_mw(u64::from(limits.max_limit))
                ),
                Err(_) => "the card's limits".to_owned(),
            }),
            other => self.error(gpu, what, other),
        })
    }

    fn set_clock_max(&mut self, gpu: GpuIndex, clock: Option<Frequency>) -> Result<(), GpuError> {
        let what = "lock its clock";
        // The whole range below stays open: a lock is an upper bound, not a fixed clock.
        let lowest = match clock {
            Some(_) => self.info(gpu)?.clocks.first().copied(),
            None => None,
        };
        let mut card = self.device(gpu, what)?;
        let done = match clock {
            None => card.reset_gpu_locked_clocks(),
            Some(max) => card.set_gpu_locked_clocks(GpuLockedClocksSetting::Numeric {
                min_clock_mhz: lowest.unwrap_or(max).min(max).as_mhz(),
                max_clock_mhz: max.as_mhz(),
            }),
        };
        done.map_err(|error| self.error(gpu, what, error))
    }
}
