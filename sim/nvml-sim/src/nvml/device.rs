//! One card through NVML: what it is, and what it reads.
#![allow(non_snake_case, reason = "these are NVML's own names")]

use std::ffi::{c_char, c_uint, c_ulonglong};

use wattle_common::Power;
use wattle_common::hash::fnv1a;

use super::code::Code;
use super::{Device, Seen, answer, answer_text, see};
use crate::fault::Reading;
use crate::node::Node;

/// Bytes in a mebibyte.
pub(super) const MIB: u64 = 1 << 20;

/// Kinds of cards older than Volta: they have no energy counter and lock no clocks (NVML's own
/// documentation says so call by call).
const BEFORE_VOLTA: [&str; 6] = ["k80", "m40", "m60", "p4", "p40", "p100"];

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Bytes in all.
    pub total: c_ulonglong,
    /// Bytes free.
    pub free: c_ulonglong,
    /// Bytes in use.
    pub used: c_ulonglong,
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MemoryV2 {
    /// The size of this struct, and 2 in the highest byte.
    pub version: c_uint,
    /// Bytes in all.
    pub total: c_ulonglong,
    /// Bytes the driver keeps; always 0 here.
    pub reserved: c_ulonglong,
    /// Bytes free.
    pub free: c_ulonglong,
    /// Bytes in use.
    pub used: c_ulonglong,
}

/// `nvmlPciInfo_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PciInfo {
    /// As `0000:04:00.0`.
    pub bus_id_legacy: [c_char; 16],
    /// The domain.
    pub domain: c_uint,
    /// The bus.
    pub bus: c_uint,
    /// The device on the bus.
    pub device: c_uint,
    /// Device and vendor; only the vendor is known.
    pub pci_device_id: c_uint,
    /// Subsystem and its vendor; not known.
    pub pci_sub_system_id: c_uint,
    /// As `00000000:04:00.0`.
    pub bus_id: [c_char; 32],
}

/// `nvmlUtilization_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Utilization {
    /// Percent of time the cores were busy.
    pub gpu: c_uint,
    /// Percent of time the memory was busy.
    pub memory: c_uint,
}

/// A share in whole percent.
pub(super) fn percent(share: f64) -> c_uint {
    (share.clamp(0.0, 1.0) * 100.0).round() as c_uint
}

pub(super) fn mw(power: Power) -> c_uint {
    c_uint::try_from(power.as_mw()).unwrap_or(c_uint::MAX)
}

/// A card's UUID: the same for the same node and place, different for every other.
#[must_use]
pub fn uuid_of(node: &Node, index: u32) -> String {
    // FNV-1a over the node's id; 64 bits keep a cluster's nodes apart.
    let hash = fnv1a(node.id().as_str().as_bytes());
    let (high, middle, low) = (hash >> 32, (hash >> 16) & 0xffff, hash & 0xffff);
    format!("GPU-{high:08x}-{middle:04x}-{low:04x}-5741-{index:012x}")
}

/// A card's slot; buses are counted from 4, as cards seldom come first.
pub(super) fn bus_id(index: u32) -> String {
    format!("00000000:{:02X}:00.0", 4 + index)
}

fn chars<const N: usize>(text: &str) -> [c_char; N] {
    let mut chars = [0; N];
    for (place, byte) in chars.iter_mut().take(N - 1).zip(text.bytes()) {
        *place = byte as c_char;
    }
    chars
}

pub(super) fn before_volta(seen: &Seen) -> Result<(), Code> {
    let old = BEFORE_VOLTA.contains(&seen.node.gpu().gpu_type.as_str());
    if old { Err(Code::NOT_SUPPORTED) } else { Ok(()) }
}

fn memory(device: Device) -> Result<Memory, Code> {
    let seen = see(device, Some(Reading::Memory))?;
    let total = seen.node.gpu().memory_mib * MIB;
    let used = (seen.view.state.memory_mib(seen.card()) * MIB).min(total);
    Ok(Memory { total, free: total - used, used })
}

/// The model's name.
///
/// # Safety
/// `text` is null or has room for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetName(
    device: Device,
    text: *mut c_char,
    length: c_uint,
) -> c_uint {
    // SAFETY: the caller's promise is the same.
    unsafe {
        answer_text(text, length, || {
            let seen = see(device, None)?;
            Ok(seen.node.gpu().nvml_name.clone())
        })
    }
}

/// The card's UUID.
///
/// # Safety
/// `text` is null or has room for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUUID(
    device: Device,
    text: *mut c_char,
    length: c_uint,
) -> c_uint {
    // SAFETY: the caller's promise is the same.
    unsafe {
        answer_text(text, length, || {
            let seen = see(device, None)?;
            Ok(uuid_of(&seen.node, seen.index))
        })
    }
}

/// The card's place on its node.
///
/// # Safety
/// `index` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetIndex(device: Device, index: *mut c_uint) -> c_uint {
    // SAFETY: the caller's promise is the same.
    unsafe {
        answer(index, || {
            let seen = see(device, None)?;
            Ok(seen.index)
        })
    }
}

/// The number in the card's device file; its place.
///
/// # Safety
/// `number` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMinorNumber(device: Device, number: *mut c_uint) -> c_uint {
    // SAFETY: the caller's promise is the same.
    unsafe {
        answer(number, || {
            let seen = see(device, None)?;
            Ok(seen.index)
        })
    }
}

/// The product line: Tesla (2).
///
/// # Safety
/// `brand` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetBrand(device: Device, brand: *mut c_uint) -> c_uint {
    // SAFETY: the caller's promise is the same.
    unsafe {
        answer(brand, || {
            let seen = see(device, None)?;
            let _ = seen;
            Ok(2)
        })
    }
}

/// Where the card is plugged in.
///
/// # Safety
/// `pci` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPciInfo_v3(device: Device, pci: *mut PciInfo) -> c_uint {
    // SAFETY: the caller's promise is the same.
    unsafe {
        answer(pci, || {
            let seen = see(device, None)?;
            let id = bus_id(seen.index);
            Ok(PciInfo {
                bus_id_legacy: chars(&id[4..]),
                domain: 0,
                bus: 4 + seen.index,
                device: 0,
                pci_device_id: 0x10de,
                pci_sub_system_id: 0,
                bus_id: chars(&id),
            })
        })
    }
}

/// Device memory: total, free, used.
///
/// # Safety
/// `info` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo(device: Device, info: *mut Memory) -> c_uint {
    // SAFETY: the caller's promise is the same.
    unsafe { answer(info, || memory(device)) }
}

/// Device memory in the second layout.
///
/// # Safety
/// `info` is null or may be read and written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: Device, info: *mut MemoryV2) -> c_uint {
    const VERSION: c_uint = size_of::<MemoryV2>() as c_uint | 2 << 24;
    let read = || {
        let Memory { total, free, used } = memory(device)?;
        if info.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        // SAFETY: it is not null, and the version is the first field of every version.
        if unsafe { (*info).version } != VERSION {
            return Err(Code::ARGUMENT_VERSION_MISMATCH);
        }
        Ok(MemoryV2 { version: VERSION, total, reserved: 0, free, used })
    };
    // SAFETY: the caller's promise is the same.
    unsafe { answer(info, read) }
}

/// How busy the card is.
///
/// # Safety
/// `utilization` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUtilizationRates(
    device: Device,
    utilization: *mut Utilization,
) -> c_uint {
    // SAFETY: the caller's promise is the same.
    unsafe {
        answer(utilization, || {
            let seen = see(device, Some(Reading::Utilization))?;
            let card = seen.card();
            Ok(Utilization {
                gpu: percent(card.utilization_gpu),
                memory: percent(card.utilization_memory),
            })
        })
    }
}

/// Power in milliwatts, at this instant.
///
/// # Safety
/// `power` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPowerUsage(device: Device, power: *mut c_uint) -> c_uint {
    // SAFETY: the caller's promise is the same.
    unsafe {
        answer(power, || {
            let seen = see(device, Some(Reading::Power))?;
            Ok(mw(seen.card().power))
        })
    }
}

/// Energy in millijoules since the node was made.
///
/// # Safety
/// `energy` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTotalEnergyConsumption(
    device: Device,
    energy: *mut c_ulonglong,
) -> c_uint {
    // SAFETY: the caller's promise is the same.
    unsafe {
        answer(energy, || {
            let seen = see(device, Some(Reading::Energy))?;
            before_volta(&seen)?;
            Ok(seen.node.energy_shown(&seen.view, seen.index as usize).as_mj())
        })
    }
}

/// Temperature in degrees Celsius: a straight line over power, 35 at nothing and 80 at the default
/// cap, without inertia. Only the sensor on the chip (0) is there.
///
/// # Safety
/// `celsius` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTemperature(
    device: Device,
    sensor: c_uint,
    celsius: *mut c_uint,
) -> c_uint {
    // SAFETY: the caller's promise is the same.
    unsafe {
        answer(celsius, || {
            let seen = see(device, Some(Reading::Temperature))?;
            if sensor != 0 {
                return Err(Code::INVALID_ARGUMENT);
            }
            let load = seen.card().power.ratio(seen.node.gpu().cap_default);
            Ok((35.0 + 45.0 * load).round() as c_uint)
        })
    }
}
