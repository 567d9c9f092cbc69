//! What holds a card's power and clocks: caps, locked clocks, and the reasons why it is no faster.
#![allow(non_snake_case, reason = "these are NVML's own names")]

use std::ffi::{c_uint, c_ulonglong};

use wattle_common::{Frequency, Power};

use super::code::Code;
use super::device::{before_volta, mw};
use super::{Device, Seen, answer, answer_list, border, index_of, node, see};
use crate::fault::Reading;
use crate::node::Node;

/// Numbers from here on are names of limits, not megahertz (`NVML_CLOCK_LIMIT_ID_RANGE_START`).
const CLOCK_LIMIT_IDS: c_uint = 0xffff_ff00;
/// `NVML_CLOCK_LIMIT_ID_UNLIMITED`.
const CLOCK_LIMIT_UNLIMITED: c_uint = CLOCK_LIMIT_IDS + 2;

/// Current, highest and locked clocks of one kind: `NVML_CLOCK_GRAPHICS` 0, `SM` 1, `MEM` 2,
/// `VIDEO` 3.
fn clock(
    device: Device,
    kind: c_uint,
    core: impl FnOnce(&Seen) -> Frequency,
) -> Result<c_uint, Code> {
    let seen = see(device, Some(Reading::Clock))?;
    match kind {
        0 | 1 => Ok(core(&seen).as_mhz()),
        2 => Ok(seen.node.gpu().memory_clock.as_mhz()),
        3 => Err(Code::NOT_SUPPORTED),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}

/// A kind's core clocks, highest first, as NVML lists them.
fn clocks(node: &Node) -> Vec<Frequency> {
    let mut clocks = node.gpu().clocks.clone();
    clocks.sort_unstable();
    clocks.reverse();
    clocks
}

fn throttle_reasons(seen: &Seen) -> c_ulonglong {
    let card = seen.card();
    let computing = card.shares.iter().any(|share| share.utilization > 0.0);
    if !computing {
        return GPU_IDLE;
    }
    let locked = card.clock_max.is_some_and(|max| card.clock >= max);
    (if card.power_capped { SW_POWER_CAP } else { 0 })
        | (if locked { APPLICATIONS_CLOCKS_SETTING } else { 0 })
}

const GPU_IDLE: c_ulonglong = 1;
const APPLICATIONS_CLOCKS_SETTING: c_ulonglong = 2;
const SW_POWER_CAP: c_ulonglong = 4;

/// The clock of one kind, in megahertz.
///
/// # Safety
/// `mhz` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetClockInfo(
    device: Device,
    kind: c_uint,
    mhz: *mut c_uint,
) -> c_uint {
    // SAFETY: the caller's promise is the same.
    unsafe { answer(mhz, || clock(device, kind, |seen| seen.card().clock)) }
}

/// The clock of one kind, as [`nvmlDeviceGetClockInfo`]; of its variants only the current (0).
///
/// # Safety
/// `mhz` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetClock(
    device: Device,
    kind: c_uint,
    id: c_uint,
    mhz: *mut c_uint,
) -> c_uint {
    // SAFETY: the caller's promise is the same.
    unsafe {
        answer(mhz, || match id {
            0 => clock(device, kind, |seen| seen.card().clock),
            1..=3 => Err(Code::NOT_SUPPORTED),
            _ => Err(Code::INVALID_ARGUMENT),
        })
    }
}

/// The highest clock of one kind, in megahertz.
///
/// # Safety
/// `mhz` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMaxClockInfo(
    device: Device,
    kind: c_uint,
    mhz: *mut c_uint,
) -> c_uint {
    // SAFETY: the caller's promise is the same.
    unsafe {
        answer(mhz, || {
            clock(device, kind, |seen| clocks(&seen.node).first().copied().unwrap_or_default())
        })
    }
}

/// The memory's clocks: one.
///
/// # Safety
/// `count` is null or may be read and written; `mhz` is null or has room for `*count` items.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetSupportedMemoryClocks(
    device: Device,
    count: *mut c_uint,
    mhz: *mut c_uint,
) -> c_uint {
    // SAFETY: the caller's promise is the same.
    unsafe {
        answer_list(count, mhz, || {
            let seen = see(device, Some(Reading::Clock))?;
            Ok(vec![seen.node.gpu().memory_clock.as_mhz()])
        })
    }
}

/// The core clocks that go with a memory clock, highest first.
///
/// # Safety
/// `count` is null or may be read and written; `mhz` is null or has room for `*count` items.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetSupportedGraphicsClocks(
    device: Device,
    memory_mhz: c_uint,
    count: *mut c_uint,
    mhz: *mut c_uint,
) -> c_uint {
    // SAFETY: the caller's promise is the same.
    unsafe {
        answer_list(count, mhz, || {
            let seen = see(device, Some(Reading::Clock))?;
            if memory_mhz != seen.node.gpu().memory_clock.as_mhz() {
                return Err(Code::NOT_FOUND);
            }
            Ok(clocks(&seen.node).into_iter().map(Frequency::as_mhz).collect())
        })
    }
}

/// The performance state: always the highest (0), as on data-centre cards with a context.
///
/// # Safety
/// `state` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPerformanceState(
    device: Device,
    state: *mut c_uint,
) -> c_uint {
    // SAFETY: the caller's promise is the same.
    unsafe {
        answer(state, || {
            let seen = see(device, None)?;
            let _ = seen;
            Ok(0)
        })
    }
}

/// Whether the driver stays loaded without users: always (1).
///
/// # Safety
/// `mode` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPersistenceMode(device: Device, mode: *mut c_uint) -> c_uint {
    // SAFETY: the caller's promise is the same.
    unsafe {
        answer(mode, || {
            let seen = see(device, None)?;
            let _ = seen;
            Ok(1)
        })
    }
}

/// Whether power can be limited: yes (1).
///
/// # Safety
/// `mode` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPowerManagementMode(
    device: Device,
    mode: *mut c_uint,
) -> c_uint {
    // SAFETY: the caller's promise is the same.
    unsafe {
        answer(mode, || {
            let seen = see(device, Some(Reading::Cap))?;
            let _ = seen;
            Ok(1)
        })
    }
}

/// The power cap in milliwatts.
///
/// # Safety
/// `limit` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPowerManagementLimit(
    device: Device,
    limit: *mut c_uint,
) -> c_uint {
    // SAFETY: the caller's promise is the same.
    unsafe {
        answer(limit, || {
            let seen = see(device, Some(Reading::Cap))?;
            Ok(mw(seen.card().cap))
        })
    }
}

/// The power cap that holds, in milliwatts: nothing but the cap limits power here.
///
/// # Safety
/// `limit` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetEnforcedPowerLimit(
    device: Device,
    limit: *mut c_uint,
) -> c_uint {
    // SAFETY: the caller's promise is the same.
    unsafe {
        answer(limit, || {
            let seen = see(device, Some(Reading::Cap))?;
            Ok(mw(seen.card().cap))
        })
    }
}

/// The power cap a card starts with, in milliwatts.
///
/// # Safety
/// `limit` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPowerManagementDefaultLimit(
    device: Device,
    limit: *mut c_uint,
) -> c_uint {
    // SAFETY: the caller's promise is the same.
    unsafe {
        answer(limit, || {
            let seen = see(device, Some(Reading::Cap))?;
            Ok(mw(seen.node.gpu().cap_default))
        })
    }
}

/// The least and the greatest power cap, in milliwatts.
///
/// # Safety
/// `least` and `greatest` are null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPowerManagementLimitConstraints(
    device: Device,
    least: *mut c_uint,
    greatest: *mut c_uint,
) -> c_uint {
    let limit = |pick: fn(&Node) -> Power| {
        move || see(device, Some(Reading::Cap)).map(|seen| mw(pick(&seen.node)))
    };
    // SAFETY: the caller's promise is the same.
    unsafe {
        match answer(least, limit(|node| node.gpu().cap_min)) {
            0 => answer(greatest, limit(|node| node.gpu().cap_max)),
            failed => failed,
        }
    }
}

/// Sets the power cap, in milliwatts. It holds at once.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceSetPowerManagementLimit(device: Device, limit: c_uint) -> c_uint {
    border(|| {
        let node = node()?;
        let index = index_of(&node, device)?;
        let cap = Power::from_mw(u64::from(limit));
        Ok(node.update(|state, physics, at| state.set_cap(physics, at, index, cap))?)
    })
}

/// Keeps the core clock between two values, in megahertz. The upper one is cut to a clock the card
/// has and holds at once; the lower one is checked and otherwise without effect: a simulated card
/// under load runs as fast as it may.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceSetGpuLockedClocks(
    device: Device,
    least: c_uint,
    greatest: c_uint,
) -> c_uint {
    border(|| {
        let seen = see(device, Some(Reading::LockedClocks))?;
        before_volta(&seen)?;
        if least > greatest || (CLOCK_LIMIT_IDS..CLOCK_LIMIT_UNLIMITED).contains(&greatest) {
            return Err(Code::INVALID_ARGUMENT);
        }
        let fits = |clock: &Frequency| clock.as_mhz() <= greatest;
        let clock = clocks(&seen.node).into_iter().find(fits).ok_or(Code::INVALID_ARGUMENT)?;
        let index = seen.index;
        let set = |state: &mut crate::state::NodeState, physics: crate::state::Physics<'_>, at| {
            state.set_clock_max(physics, at, index, Some(clock))
        };
        Ok(seen.node.update(set)?)
    })
}

/// Frees the core clock.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceResetGpuLockedClocks(device: Device) -> c_uint {
    border(|| {
        let seen = see(device, Some(Reading::LockedClocks))?;
        before_volta(&seen)?;
        let index = seen.index;
        Ok(seen.node.update(|state, physics, at| state.set_clock_max(physics, at, index, None))?)
    })
}

/// What holds the clocks down, as bits: idle 1, a locked clock 2, the power cap 4.
///
/// # Safety
/// `reasons` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCurrentClocksThrottleReasons(
    device: Device,
    reasons: *mut c_ulonglong,
) -> c_uint {
    // SAFETY: the caller's promise is the same.
    unsafe {
        answer(reasons, || {
            let seen = see(device, Some(Reading::ThrottleReasons))?;
            Ok(throttle_reasons(&seen))
        })
    }
}

/// What holds the clocks down, as bits: idle 1, a locked clock 2, the power cap 4.
///
/// # Safety
/// `reasons` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCurrentClocksEventReasons(
    device: Device,
    reasons: *mut c_ulonglong,
) -> c_uint {
    // SAFETY: the caller's promise is the same.
    unsafe {
        answer(reasons, || {
            let seen = see(device, Some(Reading::ThrottleReasons))?;
            Ok(throttle_reasons(&seen))
        })
    }
}

/// Which bits of those can ever be set.
///
/// # Safety
/// `reasons` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetSupportedClocksThrottleReasons(
    device: Device,
    reasons: *mut c_ulonglong,
) -> c_uint {
    // SAFETY: the caller's promise is the same.
    unsafe {
        answer(reasons, || {
            let seen = see(device, Some(Reading::ThrottleReasons))?;
            let _ = seen;
            Ok(GPU_IDLE | APPLICATIONS_CLOCKS_SETTING | SW_POWER_CAP)
        })
    }
}

/// Which bits of those can ever be set.
///
/// # Safety
/// `reasons` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetSupportedClocksEventReasons(
    device: Device,
    reasons: *mut c_ulonglong,
) -> c_uint {
    // SAFETY: the caller's promise is the same.
    unsafe {
        answer(reasons, || {
            let seen = see(device, Some(Reading::ThrottleReasons))?;
            let _ = seen;
            Ok(GPU_IDLE | APPLICATIONS_CLOCKS_SETTING | SW_POWER_CAP)
        })
    }
}
