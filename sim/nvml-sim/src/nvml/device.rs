//! Properties and readings of a GPU.
#![allow(non_snake_case, reason = "NVML's names")]

use std::ffi::{c_char, c_uint, c_ulonglong};

use wattle_common::Power;
use wattle_common::hash::fnv1a;

use super::code::Code;
use super::export::{nvml, return_value};
use super::{Device, GpuView};
use crate::fault::Feature;
use crate::node::Node;

/// Bytes per mebibyte.
pub(super) const MIB: u64 = 1 << 20;

/// First PCI bus number; GPUs of real nodes rarely start at 0.
const FIRST_BUS: u32 = 4;

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Total bytes.
    pub total: c_ulonglong,
    /// Free bytes.
    pub free: c_ulonglong,
    /// Bytes in use.
    pub used: c_ulonglong,
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MemoryV2 {
    /// Size of this struct, and 2 in the highest byte.
    pub version: c_uint,
    /// Total bytes.
    pub total: c_ulonglong,
    /// Bytes reserved by the driver; always 0.
    pub reserved: c_ulonglong,
    /// Free bytes.
    pub free: c_ulonglong,
    /// Bytes in use.
    pub used: c_ulonglong,
}

/// `nvmlPciInfo_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PciInfo {
    /// Bus id in the form `0000:04:00.0`.
    pub bus_id_legacy: [c_char; 16],
    /// PCI domain.
    pub domain: c_uint,
    /// PCI bus.
    pub bus: c_uint,
    /// Device on the bus.
    pub device: c_uint,
    /// Device and vendor id; only the vendor id is set.
    pub pci_device_id: c_uint,
    /// Subsystem id; not set.
    pub pci_sub_system_id: c_uint,
    /// Bus id in the form `00000000:04:00.0`.
    pub bus_id: [c_char; 32],
}

/// `nvmlUtilization_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Utilization {
    /// Share of time with a kernel running, percent.
    pub gpu: c_uint,
    /// Share of time with memory accesses, percent.
    pub memory: c_uint,
}

/// A share in whole percent.
pub(super) fn percent(share: f64) -> c_uint {
    (share.clamp(0.0, 1.0) * 100.0).round() as c_uint
}

pub(super) fn mw(power: Power) -> c_uint {
    c_uint::try_from(power.as_mw()).unwrap_or(c_uint::MAX)
}

/// UUID of a GPU, a function of its node's id and its index.
#[must_use]
pub fn uuid_of(node: &Node, index: u32) -> String {
    // 64 bits make collisions in a cluster unlikely.
    let hash = fnv1a(node.id().as_str().as_bytes());
    let (high, middle, low) = (hash >> 32, (hash >> 16) & 0xffff, hash & 0xffff);
    format!("GPU-{high:08x}-{middle:04x}-{low:04x}-5741-{index:012x}")
}

/// PCI bus id of a GPU.
pub(super) fn bus_id(index: u32) -> String {
    format!("00000000:{:02X}:00.0", FIRST_BUS + index)
}

/// NUL-padded characters.
fn chars<const N: usize>(text: &str) -> [c_char; N] {
    let mut chars = [0; N];
    for (char, byte) in chars.iter_mut().take(N - 1).zip(text.bytes()) {
        *char = byte as c_char;
    }
    chars
}

/// Fails with `NOT_SUPPORTED` unless the GPU model supports a function.
pub(super) fn require(supported: bool) -> Result<(), Code> {
    if supported { Ok(()) } else { Err(Code::NOT_SUPPORTED) }
}

fn memory(device: Device) -> Result<Memory, Code> {
    let view = GpuView::observe(device, Some(Feature::Memory))?;
    let total = view.model().memory_mib * MIB;
    let used = (view.snapshot.state.memory_mib(view.state()) * MIB).min(total);
    Ok(Memory { total, free: total - used, used })
}

nvml! {
    /// Name of the GPU model.
    text nvmlDeviceGetName(device: Device) {
        Ok(GpuView::observe(device, None)?.model().nvml_name.clone())
    }

    /// UUID of the GPU.
    text nvmlDeviceGetUUID(device: Device) {
        let view = GpuView::observe(device, None)?;
        Ok(uuid_of(&view.node, view.index))
    }

    /// Index of the GPU in its node.
    value nvmlDeviceGetIndex(device: Device) -> c_uint {
        Ok(GpuView::observe(device, None)?.index)
    }

    /// Minor number of the GPU's device file: its index.
    value nvmlDeviceGetMinorNumber(device: Device) -> c_uint {
        Ok(GpuView::observe(device, None)?.index)
    }

    /// Product line: Tesla (2).
    value nvmlDeviceGetBrand(device: Device) -> c_uint {
        GpuView::observe(device, None).map(|_| 2)
    }

    /// PCI location of the GPU.
    value nvmlDeviceGetPciInfo_v3(device: Device) -> PciInfo {
        let index = GpuView::observe(device, None)?.index;
        let id = bus_id(index);
        Ok(PciInfo {
            bus_id_legacy: chars(&id[4..]),
            domain: 0,
            bus: FIRST_BUS + index,
            device: 0,
            pci_device_id: 0x10de,
            pci_sub_system_id: 0,
            bus_id: chars(&id),
        })
    }

    /// Device memory: total, free, in use.
    value nvmlDeviceGetMemoryInfo(device: Device) -> Memory { memory(device) }

    /// GPU and memory utilisation.
    value nvmlDeviceGetUtilizationRates(device: Device) -> Utilization {
        let view = GpuView::observe(device, Some(Feature::Utilization))?;
        let gpu = view.state();
        // As in NVIDIA's driver.
        require(!gpu.health.mig)?;
        Ok(Utilization {
            gpu: percent(gpu.utilization_gpu),
            memory: percent(gpu.utilization_memory),
        })
    }

    /// Instantaneous power in milliwatts.
    value nvmlDeviceGetPowerUsage(device: Device) -> c_uint {
        Ok(mw(GpuView::observe(device, Some(Feature::Power))?.state().power))
    }

    /// Energy in millijoules since the node was created.
    value nvmlDeviceGetTotalEnergyConsumption(device: Device) -> c_ulonglong {
        let view = GpuView::observe(device, Some(Feature::Energy))?;
        require(view.model().energy_counter)?;
        Ok(view.node.energy_counter(&view.snapshot, view.index as usize).as_mj())
    }

    /// Temperature in degrees Celsius: linear in power, 35 at 0 W and 80 at the default cap, without
    /// inertia. The only sensor is that of the die (0).
    value nvmlDeviceGetTemperature(device: Device, sensor: c_uint) -> c_uint {
        let view = GpuView::observe(device, Some(Feature::Temperature))?;
        if sensor != 0 {
            return Err(Code::INVALID_ARGUMENT);
        }
        let load = view.state().power.ratio(view.model().cap_default);
        Ok((35.0 + 45.0 * load).round() as c_uint)
    }
}

/// Device memory in the layout of version 2.
///
/// # Safety
/// `info` is null or valid for a read of its version and a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: Device, info: *mut MemoryV2) -> c_uint {
    const VERSION: c_uint = size_of::<MemoryV2>() as c_uint | 2 << 24;
    let run = || {
        let Memory { total, free, used } = memory(device)?;
        if info.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        // SAFETY: `info` is not null, so the caller guarantees that its version, the first field in
        // every version of the struct, is valid for a read.
        if unsafe { (*info).version } != VERSION {
            return Err(Code::ARGUMENT_VERSION_MISMATCH);
        }
        Ok(MemoryV2 { version: VERSION, total, reserved: 0, free, used })
    };
    // SAFETY: the caller guarantees that `info` is null or valid for a write.
    unsafe { return_value(info, run) }
}
