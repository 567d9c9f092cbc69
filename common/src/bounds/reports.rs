//! Reports of a node's power agent and launcher.

use super::{
    ATTEMPT_MAX, DATE_TOLERANCE, GPU_POWER_W_MAX, JOBS_PER_NODE_MAX, MEMORY_MIB_MAX, OutOfBounds,
    at_most, check_gpus, check_text, invalid, not_ahead,
};
use crate::messages::{AppliedGpu, GpuHealth, LaunchReport, LaunchState, LaunchedJob, PowerReport};
use crate::time::Timestamp;
use crate::topology::GPUS_PER_NODE_MAX;
use crate::units::Power;

/// Largest number of conditions of one GPU: each is reported once.
const CONDITIONS_MAX: usize = 32;

/// Checks a power agent's report.
///
/// # Errors
/// The first field outside its limits.
pub fn check_power_report(report: &PowerReport, now: Timestamp) -> Result<(), OutOfBounds> {
    not_ahead("at_us", report.at_us, now, DATE_TOLERANCE)?;
    at_most("number of gpus", report.gpus.len(), GPUS_PER_NODE_MAX as usize)?;
    report.driver_error.iter().try_for_each(|error| check_text("driver_error", error))?;
    report.gpus.iter().try_for_each(check_gpu)
}

fn check_health(health: &GpuHealth) -> Result<(), OutOfBounds> {
    at_most("number of conditions", health.conditions.len(), CONDITIONS_MAX)?;
    let details = health.conditions.iter().filter_map(|condition| condition.detail.as_ref());
    details.into_iter().try_for_each(|detail| check_text("detail", detail))
}

fn check_gpu(gpu: &AppliedGpu) -> Result<(), OutOfBounds> {
    at_most("gpu", gpu.gpu, GPUS_PER_NODE_MAX - 1)?;
    gpu.memory_mib.map_or(Ok(()), |mib| at_most("memory_mib", mib, MEMORY_MIB_MAX))?;
    let caps = [gpu.cap_mw, gpu.cap_mw_default, gpu.cap_mw_min, gpu.cap_mw_max];
    for cap in caps.into_iter().flatten() {
        if cap > Power::from_w(GPU_POWER_W_MAX) {
            return Err(invalid("cap_mw", cap, format_args!("at most {GPU_POWER_W_MAX} W")));
        }
    }
    check_text("uuid", &gpu.uuid)?;
    check_text("gpu_type", &gpu.gpu_type)?;
    gpu.health.iter().try_for_each(check_health)?;
    gpu.last_error.iter().try_for_each(|error| check_text("last_error", error))
}

/// Checks a launcher's report.
///
/// # Errors
/// The first field outside its limits.
pub fn check_launch_report(report: &LaunchReport, now: Timestamp) -> Result<(), OutOfBounds> {
    not_ahead("at_us", report.at_us, now, DATE_TOLERANCE)?;
    at_most("number of jobs", report.jobs.len(), JOBS_PER_NODE_MAX)?;
    report.fault.iter().try_for_each(|fault| check_text("fault", &fault.error))?;
    report.jobs.iter().try_for_each(check_run)
}

fn check_run(run: &LaunchedJob) -> Result<(), OutOfBounds> {
    check_gpus("gpus of a job", &run.gpus)?;
    at_most("attempt", run.attempt, ATTEMPT_MAX)?;
    check_text("log_path", &run.log_path)?;
    match &run.state {
        LaunchState::Lost { error } | LaunchState::Refused { error, .. } => {
            check_text("error", error)
        }
        LaunchState::Running
        | LaunchState::Stopping
        | LaunchState::Stopped { .. }
        | LaunchState::Exited { .. } => Ok(()),
    }
}
