//! Who is on a card: NVML's lists of processes and what each one uses.
#![allow(non_snake_case, reason = "these are NVML's own names")]

use std::ffi::{c_uint, c_ulonglong};

use super::code::Code;
use super::device::{MIB, percent};
use super::{Device, Seen, answer_list, see};
use crate::fault::Reading;
use crate::state::Claim;

/// `nvmlProcessInfo_v1_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ProcessInfoV1 {
    /// The process.
    pub pid: c_uint,
    /// Its device memory in bytes.
    pub used_gpu_memory: c_ulonglong,
}

/// `nvmlProcessInfo_t` of versions 2 and 3.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ProcessInfo {
    /// The process.
    pub pid: c_uint,
    /// Its device memory in bytes.
    pub used_gpu_memory: c_ulonglong,
    /// All ones: the card is not divided.
    pub gpu_instance_id: c_uint,
    /// All ones: the card is not divided.
    pub compute_instance_id: c_uint,
}

/// `nvmlProcessUtilizationSample_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ProcessUtilizationSample {
    /// The process.
    pub pid: c_uint,
    /// When, in microseconds since the Unix epoch (the system's time).
    pub time_stamp: c_ulonglong,
    /// Its part of the card's utilisation, in percent.
    pub sm_util: c_uint,
    /// Its part of the memory's utilisation, in percent.
    pub mem_util: c_uint,
    /// Always 0: no encoder is simulated.
    pub enc_util: c_uint,
    /// Always 0: no decoder is simulated.
    pub dec_util: c_uint,
}

/// Each tenant of a card with its part of the utilisation.
fn tenants(seen: &Seen) -> impl Iterator<Item = (&Claim, f64)> {
    seen.card().shares.iter().filter_map(|share| {
        let claim = seen.view.state.claims.get(share.claim)?.as_ref()?;
        Some((claim, share.utilization))
    })
}

fn processes(device: Device) -> Result<Vec<ProcessInfo>, Code> {
    let seen = see(device, Some(Reading::Processes))?;
    let info = |claim: &Claim| ProcessInfo {
        pid: claim.request.pid,
        used_gpu_memory: claim.memory_mib * MIB,
        gpu_instance_id: c_uint::MAX,
        compute_instance_id: c_uint::MAX,
    };
    Ok(tenants(&seen).map(|(claim, _)| info(claim)).collect())
}

/// The processes that compute on a card.
///
/// # Safety
/// `count` is null or may be read and written; `infos` is null or has room for `*count` items.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: Device,
    count: *mut c_uint,
    infos: *mut ProcessInfo,
) -> c_uint {
    // SAFETY: the caller's promise is the same.
    unsafe { answer_list(count, infos, || processes(device)) }
}

/// As [`nvmlDeviceGetComputeRunningProcesses_v3`]: the layout is the same.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v2(
    device: Device,
    count: *mut c_uint,
    infos: *mut ProcessInfo,
) -> c_uint {
    // SAFETY: the caller's promise is the same.
    unsafe { answer_list(count, infos, || processes(device)) }
}

/// The processes that compute on a card, in the first layout.
///
/// # Safety
/// `count` is null or may be read and written; `infos` is null or has room for `*count` items.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses(
    device: Device,
    count: *mut c_uint,
    infos: *mut ProcessInfoV1,
) -> c_uint {
    let first =
        |info: ProcessInfo| ProcessInfoV1 { pid: info.pid, used_gpu_memory: info.used_gpu_memory };
    // SAFETY: the caller's promise is the same.
    unsafe { answer_list(count, infos, || Ok(processes(device)?.into_iter().map(first).collect())) }
}

/// The processes that draw on a card: none ever does.
///
/// # Safety
/// `count` is null or may be read and written; `infos` is null or has room for `*count` items.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGraphicsRunningProcesses_v3(
    device: Device,
    count: *mut c_uint,
    infos: *mut ProcessInfo,
) -> c_uint {
    // SAFETY: the caller's promise is the same.
    unsafe {
        answer_list(count, infos, || see(device, Some(Reading::Processes)).map(|_| Vec::new()))
    }
}

/// What each process uses of a card. One sample for each, taken now: the driver's history of
/// samples is not simulated. Without a process, or where `last_seen` is not before now, nothing is
/// found, as NVIDIA's driver says it.
///
/// # Safety
/// `count` is null or may be read and written; `samples` is null or has room for `*count` items.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetProcessUtilization(
    device: Device,
    samples: *mut ProcessUtilizationSample,
    count: *mut c_uint,
    last_seen: c_ulonglong,
) -> c_uint {
    let list = || {
        let seen = see(device, Some(Reading::ProcessUtilization))?;
        let at = seen.view.at.as_us();
        let card = seen.card();
        let sample = |(claim, utilization): (&Claim, f64)| {
            // Memory traffic of one tenant is not known apart; it is taken in proportion.
            let part =
                if card.utilization_gpu > 0.0 { utilization / card.utilization_gpu } else { 0.0 };
            ProcessUtilizationSample {
                pid: claim.request.pid,
                time_stamp: at,
                sm_util: percent(utilization),
                mem_util: percent(card.utilization_memory * part),
                enc_util: 0,
                dec_util: 0,
            }
        };
        let found: Vec<_> =
            if at > last_seen { tenants(&seen).map(sample).collect() } else { Vec::new() };
        if found.is_empty() { Err(Code::NOT_FOUND) } else { Ok(found) }
    };
    // SAFETY: the caller's promise is the same.
    unsafe { answer_list(count, samples, list) }
}
