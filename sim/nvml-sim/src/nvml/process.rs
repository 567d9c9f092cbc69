//! Processes on a GPU and their utilisation.
#![allow(non_snake_case, reason = "NVML's names")]

use std::ffi::{c_uint, c_ulonglong};

use super::code::Code;
use super::device::{MIB, percent};
use super::export::{nvml, return_list};
use super::{Device, GpuView};
use crate::fault::Feature;
use crate::state::Claim;

/// `nvmlProcessInfo_v1_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ProcessInfoV1 {
    /// Process id.
    pub pid: c_uint,
    /// Device memory in use, bytes.
    pub used_gpu_memory: c_ulonglong,
}

/// `nvmlProcessInfo_t` of versions 2 and 3.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ProcessInfo {
    /// Process id.
    pub pid: c_uint,
    /// Device memory in use, bytes.
    pub used_gpu_memory: c_ulonglong,
    /// All ones: the GPU is not partitioned.
    pub gpu_instance_id: c_uint,
    /// All ones: the GPU is not partitioned.
    pub compute_instance_id: c_uint,
}

/// `nvmlProcessUtilizationSample_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ProcessUtilizationSample {
    /// Process id.
    pub pid: c_uint,
    /// Time of the sample (system time), microseconds since the Unix epoch.
    pub time_stamp: c_ulonglong,
    /// Share of the GPU's time, percent.
    pub sm_util: c_uint,
    /// Share of the memory's time, percent.
    pub mem_util: c_uint,
    /// Always 0: encoders are not simulated.
    pub enc_util: c_uint,
    /// Always 0: decoders are not simulated.
    pub dec_util: c_uint,
}

/// Tenants of a GPU with their utilisation.
fn tenants(view: &GpuView) -> impl Iterator<Item = (&Claim, f64)> {
    view.state().shares.iter().filter_map(|share| {
        let claim = view.snapshot.state.claims.get(share.claim)?.as_ref()?;
        Some((claim, share.utilization))
    })
}

fn processes(device: Device) -> Result<Vec<ProcessInfo>, Code> {
    let view = GpuView::observe(device, Some(Feature::Processes))?;
    let info = |claim: &Claim| ProcessInfo {
        pid: claim.request.pid,
        used_gpu_memory: claim.memory_mib * MIB,
        gpu_instance_id: c_uint::MAX,
        compute_instance_id: c_uint::MAX,
    };
    Ok(tenants(&view).map(|(claim, _)| info(claim)).collect())
}

fn utilization(device: Device, since_us: u64) -> Result<Vec<ProcessUtilizationSample>, Code> {
    let view = GpuView::observe(device, Some(Feature::ProcessUtilization))?;
    let at_us = view.snapshot.at.as_us();
    let gpu = view.state();
    let sample = |(claim, utilization): (&Claim, f64)| {
        // Memory utilisation is known per GPU only; it is split in proportion to GPU time.
        let part = if gpu.utilization_gpu > 0.0 { utilization / gpu.utilization_gpu } else { 0.0 };
        ProcessUtilizationSample {
            pid: claim.request.pid,
            time_stamp: at_us,
            sm_util: percent(utilization),
            mem_util: percent(gpu.utilization_memory * part),
            enc_util: 0,
            dec_util: 0,
        }
    };
    let samples: Vec<_> =
        if at_us > since_us { tenants(&view).map(sample).collect() } else { Vec::new() };
    if samples.is_empty() { Err(Code::NOT_FOUND) } else { Ok(samples) }
}

nvml! {
    /// Compute processes on a GPU.
    list nvmlDeviceGetComputeRunningProcesses_v3(device: Device) -> ProcessInfo {
        processes(device)
    }

    /// Compute processes on a GPU; the layout equals that of version 3.
    list nvmlDeviceGetComputeRunningProcesses_v2(device: Device) -> ProcessInfo {
        processes(device)
    }

    /// Compute processes on a GPU, in the layout of version 1.
    list nvmlDeviceGetComputeRunningProcesses(device: Device) -> ProcessInfoV1 {
        let v1 = |info: ProcessInfo| ProcessInfoV1 {
            pid: info.pid,
            used_gpu_memory: info.used_gpu_memory,
        };
        Ok(processes(device)?.into_iter().map(v1).collect())
    }

    /// Graphics processes on a GPU: always none.
    list nvmlDeviceGetGraphicsRunningProcesses_v3(device: Device) -> ProcessInfo {
        GpuView::observe(device, Some(Feature::Processes)).map(|_| Vec::new())
    }
}

/// Utilisation of each process on a GPU: one current sample per process; the driver's history of
/// samples is not simulated. Like NVIDIA's driver it returns `NOT_FOUND` without a process, or if
/// `last_seen` is not in the past.
///
/// # Safety
/// `count` is null or valid for a read and a write; `samples` is null or valid for writes of
/// `*count` items.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetProcessUtilization(
    device: Device,
    samples: *mut ProcessUtilizationSample,
    count: *mut c_uint,
    last_seen: c_ulonglong,
) -> c_uint {
    // SAFETY: the caller guarantees that `count` is null or valid, and that `samples` is null or
    // valid for `*count` items.
    unsafe { return_list(count, samples, || utilization(device, last_seen)) }
}
