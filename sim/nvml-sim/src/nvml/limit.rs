//! Power caps, clocks, locked clocks and throttle reasons of a GPU.
#![allow(non_snake_case, reason = "NVML's names")]

use std::ffi::{c_uint, c_ulonglong};

use wattle_common::{Frequency, Power};
use wattle_world::GpuModel;

use super::code::Code;
use super::device::{mw, require};
use super::export::{nvml, return_value};
use super::{Device, GpuView, index_of, node};
use crate::fault::{Feature, SLOWDOWNS, SlowdownCause};

/// Values from here on name clock limits instead of MHz (`NVML_CLOCK_LIMIT_ID_RANGE_START`).
const CLOCK_LIMIT_IDS: c_uint = 0xffff_ff00;
/// `NVML_CLOCK_LIMIT_ID_UNLIMITED`.
const CLOCK_LIMIT_UNLIMITED: c_uint = CLOCK_LIMIT_IDS + 2;

const GPU_IDLE: c_ulonglong = 1;
const APPLICATIONS_CLOCKS_SETTING: c_ulonglong = 2;
const SW_POWER_CAP: c_ulonglong = 4;

/// A clock of one domain: `NVML_CLOCK_GRAPHICS` 0, `SM` 1, `MEM` 2, `VIDEO` 3.
fn clock(
    device: Device,
    domain: c_uint,
    core: impl FnOnce(&GpuView) -> Frequency,
) -> Result<c_uint, Code> {
    let view = GpuView::observe(device, Some(Feature::Clock))?;
    match domain {
        0 | 1 => Ok(core(&view).as_mhz()),
        2 => Ok(view.model().memory_clock.as_mhz()),
        3 => Err(Code::NOT_SUPPORTED),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}

/// Core clocks of a model, highest first, in NVML's order.
fn descending_clocks(model: &GpuModel) -> Vec<Frequency> {
    let mut clocks = model.clocks.clone();
    clocks.sort_unstable();
    clocks.reverse();
    clocks
}

fn power_limit(device: Device, pick: impl FnOnce(&GpuView) -> Power) -> Result<c_uint, Code> {
    Ok(mw(pick(&GpuView::observe(device, Some(Feature::Cap))?)))
}

fn throttle_reasons(device: Device) -> Result<c_ulonglong, Code> {
    let view = GpuView::observe(device, Some(Feature::ThrottleReasons))?;
    let gpu = view.state();
    let slowdown = gpu.health.slowdown.map_or(0, SlowdownCause::bits);
    let computing = gpu.shares.iter().any(|share| share.utilization > 0.0);
    if !computing {
        return Ok(GPU_IDLE | slowdown);
    }
    let locked = gpu.clock_max.is_some_and(|max| gpu.clock >= max);
    Ok(slowdown
        | (if gpu.power_capped { SW_POWER_CAP } else { 0 })
        | (if locked { APPLICATIONS_CLOCKS_SETTING } else { 0 }))
}

fn supported_throttle_reasons(device: Device) -> Result<c_ulonglong, Code> {
    GpuView::observe(device, Some(Feature::ThrottleReasons))?;
    let slowdowns = SLOWDOWNS.iter().fold(0, |bits, (cause, _)| bits | cause.bits());
    Ok(GPU_IDLE | APPLICATIONS_CLOCKS_SETTING | SW_POWER_CAP | slowdowns)
}

/// Locks or unlocks the clock of an observed GPU.
fn set_clock_max(view: &GpuView, clock: Option<Frequency>) -> Result<(), Code> {
    let index = view.index;
    Ok(view.node.update(|state, hardware, at| state.set_clock_max(hardware, at, index, clock))?)
}

nvml! {
    /// Clock of a domain in MHz.
    value nvmlDeviceGetClockInfo(device: Device, domain: c_uint) -> c_uint {
        clock(device, domain, |view| view.state().clock)
    }

    /// Clock of a domain in MHz; only the current clock (id 0) is supported.
    value nvmlDeviceGetClock(device: Device, domain: c_uint, id: c_uint) -> c_uint {
        match id {
            0 => clock(device, domain, |view| view.state().clock),
            1..=3 => Err(Code::NOT_SUPPORTED),
            _ => Err(Code::INVALID_ARGUMENT),
        }
    }

    /// Highest clock of a domain in MHz.
    value nvmlDeviceGetMaxClockInfo(device: Device, domain: c_uint) -> c_uint {
        clock(device, domain, |view| view.model().clock_max())
    }

    /// The single memory clock in MHz.
    list nvmlDeviceGetSupportedMemoryClocks(device: Device) -> c_uint {
        let view = GpuView::observe(device, Some(Feature::Clock))?;
        Ok(vec![view.model().memory_clock.as_mhz()])
    }

    /// Core clocks in MHz at a memory clock, highest first.
    list nvmlDeviceGetSupportedGraphicsClocks(device: Device, memory_mhz: c_uint) -> c_uint {
        let model = GpuView::observe(device, Some(Feature::Clock))?.model();
        if memory_mhz != model.memory_clock.as_mhz() {
            return Err(Code::NOT_FOUND);
        }
        Ok(descending_clocks(model).into_iter().map(Frequency::as_mhz).collect())
    }

    /// Performance state: always the highest (0), as on data-centre GPUs with a CUDA context.
    value nvmlDeviceGetPerformanceState(device: Device) -> c_uint {
        GpuView::observe(device, None).map(|_| 0)
    }

    /// Support of power caps: always on (1).
    value nvmlDeviceGetPowerManagementMode(device: Device) -> c_uint {
        GpuView::observe(device, Some(Feature::Cap)).map(|_| 1)
    }

    /// Power cap in milliwatts.
    value nvmlDeviceGetPowerManagementLimit(device: Device) -> c_uint {
        power_limit(device, |view| view.state().cap)
    }

    /// Enforced power limit in milliwatts: equal to the cap, the only limit in the simulation.
    value nvmlDeviceGetEnforcedPowerLimit(device: Device) -> c_uint {
        power_limit(device, |view| view.state().cap)
    }

    /// Default power cap in milliwatts.
    value nvmlDeviceGetPowerManagementDefaultLimit(device: Device) -> c_uint {
        power_limit(device, |view| view.model().cap_default)
    }

    /// Sets the power cap in milliwatts, with immediate effect.
    action nvmlDeviceSetPowerManagementLimit(device: Device, limit: c_uint) {
        let node = node()?;
        let index = index_of(&node, device)?;
        let cap = Power::from_mw(u64::from(limit));
        Ok(node.update(|state, hardware, at| state.set_cap(hardware, at, index, cap))?)
    }

    /// Locks the core clock to a range in MHz, with immediate effect. The upper bound is rounded
    /// down to a supported clock. The lower bound is validated only: a GPU under load always runs
    /// at the upper bound.
    action nvmlDeviceSetGpuLockedClocks(device: Device, min: c_uint, max: c_uint) {
        let view = GpuView::observe(device, Some(Feature::LockedClocks))?;
        require(view.model().locked_clocks)?;
        if min > max || (CLOCK_LIMIT_IDS..CLOCK_LIMIT_UNLIMITED).contains(&max) {
            return Err(Code::INVALID_ARGUMENT);
        }
        let fits = |clock: &Frequency| clock.as_mhz() <= max;
        let clock = descending_clocks(view.model()).into_iter().find(fits);
        set_clock_max(&view, Some(clock.ok_or(Code::INVALID_ARGUMENT)?))
    }

    /// Unlocks the core clock.
    action nvmlDeviceResetGpuLockedClocks(device: Device) {
        let view = GpuView::observe(device, Some(Feature::LockedClocks))?;
        require(view.model().locked_clocks)?;
        set_clock_max(&view, None)
    }

    /// Throttle reasons, a bit set: idle 1, locked clock 2, power cap 4, slowdowns.
    value nvmlDeviceGetCurrentClocksThrottleReasons(device: Device) -> c_ulonglong {
        throttle_reasons(device)
    }

    /// The newer name of [`nvmlDeviceGetCurrentClocksThrottleReasons`].
    value nvmlDeviceGetCurrentClocksEventReasons(device: Device) -> c_ulonglong {
        throttle_reasons(device)
    }

    /// Bits of [`nvmlDeviceGetCurrentClocksThrottleReasons`] that can be set.
    value nvmlDeviceGetSupportedClocksThrottleReasons(device: Device) -> c_ulonglong {
        supported_throttle_reasons(device)
    }

    /// The newer name of [`nvmlDeviceGetSupportedClocksThrottleReasons`].
    value nvmlDeviceGetSupportedClocksEventReasons(device: Device) -> c_ulonglong {
        supported_throttle_reasons(device)
    }
}

/// Lowest and highest power cap in milliwatts.
///
/// # Safety
/// `min` and `max` are null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPowerManagementLimitConstraints(
    device: Device,
    min: *mut c_uint,
    max: *mut c_uint,
) -> c_uint {
    // SAFETY: the caller guarantees that `min` is null or valid for a write.
    let code = unsafe { return_value(min, || power_limit(device, |view| view.model().cap_min)) };
    if code != Code::SUCCESS.0 {
        return code;
    }
    // SAFETY: the caller guarantees that `max` is null or valid for a write.
    unsafe { return_value(max, || power_limit(device, |view| view.model().cap_max)) }
}
