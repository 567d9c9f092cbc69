//! Modes and faults of a GPU: MIG, persistence mode, memory errors and repairs; fields, which clients read
//! by number.
#![allow(non_snake_case, reason = "NVML's names")]

use std::ffi::{c_int, c_longlong, c_uint, c_ulonglong};

use super::code::Code;
use super::device::{mw, require};
use super::export::{call, nvml, return_value};
use super::{Device, GpuView};
use crate::fault::Feature;
use crate::health::{Health, has_mig, remaps_rows};

/// `NVML_FI_DEV_POWER_INSTANT`.
const POWER_INSTANT: c_uint = 186;
/// `NVML_FI_DEV_REMAPPED_PENDING`.
const REMAPPED_PENDING: c_uint = 144;
/// `NVML_FI_DEV_REMAPPED_FAILURE`.
const REMAPPED_FAILURE: c_uint = 145;
/// `NVML_VALUE_TYPE_UNSIGNED_INT`.
const UNSIGNED_INT: c_uint = 1;
/// Largest number of fields of one call: beyond every id of `nvml.h`.
const FIELDS_MAX: c_int = 1_024;

/// `nvmlFieldValue_t`. The value is the union's unsigned 64-bit member; the others overlap its low bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FieldValue {
    /// Field id.
    pub field_id: c_uint,
    /// Scope of the field; not used.
    pub scope_id: c_uint,
    /// Time of the value, microseconds since the Unix epoch.
    pub timestamp: c_longlong,
    /// Duration of the reading, microseconds; always 0.
    pub latency_us: c_longlong,
    /// Type of the value.
    pub value_type: c_uint,
    /// Return code of this field.
    pub result: c_uint,
    /// Value.
    pub value: c_ulonglong,
}

fn health(device: Device, feature: Feature) -> Result<(GpuView, Health), Code> {
    let view = GpuView::observe(device, Some(feature))?;
    let health = view.state().health;
    Ok((view, health))
}

fn mig_mode(device: Device) -> Result<c_uint, Code> {
    let (view, health) = health(device, Feature::Mig)?;
    require(has_mig(view.model()))?;
    Ok(c_uint::from(health.mig))
}

/// The value of a field.
fn field(device: Device, field: c_uint) -> Result<c_ulonglong, Code> {
    match field {
        POWER_INSTANT => {
            Ok(mw(GpuView::observe(device, Some(Feature::Power))?.state().power).into())
        }
        _ => remapped(device, field).map(c_ulonglong::from),
    }
}

fn remapped(device: Device, field: c_uint) -> Result<bool, Code> {
    let (view, health) = health(device, Feature::MemoryRepair)?;
    require(remaps_rows(view.model()))?;
    match field {
        REMAPPED_PENDING => Ok(health.repair_pending),
        REMAPPED_FAILURE => Ok(health.repair_failed),
        _ => Err(Code::NOT_SUPPORTED),
    }
}

nvml! {
    /// Persistence mode: on (1) unless a fault or a load of the driver has switched it off.
    value nvmlDeviceGetPersistenceMode(device: Device) -> c_uint {
        Ok(c_uint::from(!health(device, Feature::Persistence)?.1.persistence_off))
    }

    /// Memory errors of a GPU. Only uncorrected (1) volatile (0) ones are simulated.
    value nvmlDeviceGetTotalEccErrors(device: Device, kind: c_uint, counter: c_uint) -> c_ulonglong {
        let (_, health) = health(device, Feature::Ecc)?;
        match (kind, counter) {
            (1, 0) => Ok(health.ecc_errors),
            (0 | 1, 0 | 1) => Ok(0),
            _ => Err(Code::INVALID_ARGUMENT),
        }
    }

    /// Whether pages are retired at the next load of the driver. GPUs from Ampere on remap rows instead.
    value nvmlDeviceGetRetiredPagesPendingStatus(device: Device) -> c_uint {
        let (view, health) = health(device, Feature::MemoryRepair)?;
        require(!remaps_rows(view.model()))?;
        Ok(c_uint::from(health.repair_pending))
    }
}

/// MIG mode now and after the next reset, which are equal.
///
/// # Safety
/// `current` and `pending` are null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMigMode(
    device: Device,
    current: *mut c_uint,
    pending: *mut c_uint,
) -> c_uint {
    // SAFETY: the caller guarantees that `current` is null or valid for a write.
    let code = unsafe { return_value(current, || mig_mode(device)) };
    if code != Code::SUCCESS.0 {
        return code;
    }
    // SAFETY: the caller guarantees that `pending` is null or valid for a write.
    unsafe { return_value(pending, || mig_mode(device)) }
}

/// Values of fields; only power and those of row remapping are simulated.
///
/// # Safety
/// `values` is null or valid for reads and writes of `count` items.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetFieldValues(
    device: Device,
    count: c_int,
    values: *mut FieldValue,
) -> c_uint {
    call(|| {
        let at_us = GpuView::observe(device, None)?.snapshot.at.as_us();
        if values.is_null() || !(1..=FIELDS_MAX).contains(&count) {
            return Err(Code::INVALID_ARGUMENT);
        }
        for index in 0..count as usize {
            // SAFETY: `values` is not null and `index` is below `count`, for which the caller guarantees
            // that it is valid.
            let item = unsafe { values.add(index) };
            // SAFETY: as above.
            let requested = unsafe { item.read() };
            let (result, value) = match field(device, requested.field_id) {
                Ok(value) => (Code::SUCCESS, value),
                Err(code) => (code, 0),
            };
            let filled = FieldValue {
                timestamp: c_longlong::try_from(at_us).unwrap_or(c_longlong::MAX),
                latency_us: 0,
                value_type: UNSIGNED_INT,
                result: result.0,
                value,
                ..requested
            };
            // SAFETY: as above.
            unsafe { item.write(filled) };
        }
        Ok(())
    })
}
