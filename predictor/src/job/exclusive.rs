//! Exclusive busy share and power of one GPU at the default setting.
//!
//! Sources in order of precedence: the job's own windows, its class, a general prior.

use std::collections::BTreeMap;

use wattle_common::id::WorkloadId;
use wattle_common::numerics::median_high;
use wattle_common::observation::{JobShape, Observation, POWER_SD};

use super::power::{ExclusivePower, GpuWork, PowerReading};
use super::{Context, Job, isotonic};
use crate::history::{LEVELS_MAX, PowerLevel, Profile};
use crate::model::cap::{self, GpuSpec};
use crate::model::throughput::Throughput;
use crate::prior;
use crate::statistics::regression::Gaussian;

/// Standard deviation of ln power under a cap well above the power: peaks may be cut, by up to a
/// tenth in the Zeus traces.
const LOW_CAP_SD: f64 = 0.06;
/// Standard deviation of the busy share of repeated windows: NVML counts whole sampling periods.
const BUSY_SD: f64 = 0.03;

/// Exclusive busy share, and whether it was observed: from exclusive windows; else from the class;
/// else the job's own part of shared windows, which is slightly lower; else the prior.
pub(super) fn busy(windows: &[Observation], class: &Profile) -> (Gaussian, bool) {
    let exclusive: Vec<f64> =
        windows.iter().filter(|w| w.is_exclusive()).filter_map(|w| w.busy).collect();
    let colocated: Vec<f64> =
        windows.iter().filter(|w| !w.is_exclusive()).filter_map(|w| w.busy_job).collect();
    let own = |seen: Vec<f64>, between: f64| {
        let n = seen.len() as f64;
        median_high(seen.into_iter())
            .map(|mean| Gaussian { mean, sd: (BUSY_SD * BUSY_SD / n + between * between).sqrt() })
    };
    match own(exclusive, 0.01).or(class.busy).or_else(|| own(colocated, 0.1)) {
        Some(prior) => (prior, true),
        None => (prior::UTILIZATION, false),
    }
}

/// Windows that no cap or clock limited, with the power of one GPU in them, W.
pub(super) fn free<'a>(job: &'a Job, gpu: &GpuSpec) -> Vec<(&'a Observation, f64)> {
    let shifts = isotonic::shifts(job.windows(), gpu, |w| Some((w.gpu_power_w?.ln(), POWER_SD)));
    let mut free: Vec<(&Observation, f64)> = job
        .windows()
        .iter()
        .zip(shifts)
        .filter(|(w, _)| w.is_exclusive())
        .filter_map(|(w, shift)| Some((w, w.gpu_power_w? * shift.exp())))
        .filter(|(w, watts)| cap::is_free(gpu, *watts, w.setting()))
        .collect();
    // A barely binding cap still cuts peaks: windows at the default setting take precedence.
    let default = |(w, _): &(&Observation, f64)| cap::is_default(gpu, w.setting());
    if free.iter().any(default) {
        free.retain(default);
    }
    free
}

/// Observed power of one GPU at the default setting, by number of GPUs.
pub(super) fn powers(job: &Job, gpu: &GpuSpec) -> Vec<PowerLevel> {
    let mut by_count: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    let free = free(job, gpu).into_iter();
    // Windows under a low cap inform the job's own curve, but are no level for other jobs.
    for (window, watts) in free.filter(|(w, _)| cap::is_default(gpu, w.setting())) {
        by_count.entry(window.gpus).or_default().push(watts.ln());
    }
    let level = |(gpus, seen): (u32, Vec<f64>)| {
        let sd = POWER_SD / (seen.len() as f64).sqrt();
        let ln_power = Gaussian { mean: median_high(seen.into_iter())?, sd };
        Some(PowerLevel { gpus, ln_power })
    };
    by_count.into_iter().filter_map(level).take(LEVELS_MAX).collect()
}

/// Exclusive power of one GPU at the default setting, from unlimited windows of the job and of its
/// class. Without any: above the power seen under a limit; else the prior of the kind of network.
/// `throughput` has the step rates as far as they are known.
pub(super) fn power(job: &Job, context: Context<'_>, throughput: &Throughput) -> ExclusivePower {
    let gpu = context.gpu;
    let on =
        |shape: JobShape| GpuWork { gpus: shape.gpus, ln_work: throughput.ln_work_of_gpu(shape) };
    let exclusive = || job.windows().iter().filter(|w| w.is_exclusive());
    let free = free(job, gpu);
    // The class's powers have no number of nodes: the fewest that it was seen on.
    let on_fewest = |gpus: u32| {
        let mut levels = context.class.levels.keys().filter(|shape| shape.gpus == gpus);
        on(levels.next().map_or(JobShape { gpus, nodes: 1, batch: None }, |shape| *shape))
    };
    let from = free.last().map_or_else(|| on_fewest(job.gpus.max), |(w, _)| on(w.shape()));
    let highest = exclusive().filter_map(|w| w.gpu_power_w).max_by(f64::total_cmp);
    let level = match (context.class.ln_power, highest) {
        // The class's powers by number of GPUs are among the rows.
        (Some(class), _) if !context.class.powers.is_empty() => Gaussian { sd: 0.5, ..class },
        (Some(class), _) => class,
        // Between the power seen under a cap and the GPU's maximum.
        (None, Some(highest)) if free.is_empty() => {
            let (low, high) = (highest.ln(), (0.97 * gpu.cap_default_w).max(highest * 1.02).ln());
            Gaussian { mean: (low + high) / 2.0, sd: (high - low).max(0.04) / 3.0 }
        }
        (None, _) => {
            let workload = job.workload.as_ref().map(WorkloadId::as_str);
            let (share, _) = prior::power_share(workload, gpu.power_carried);
            let effect = if gpu.cap_known { 0.0 } else { 0.4 };
            Gaussian { mean: share.mean + gpu.cap_default_w.ln(), sd: f64::hypot(share.sd, effect) }
        }
    };
    let own = free.iter().map(|(w, watts)| {
        let sd = if cap::is_default(gpu, w.setting()) { POWER_SD } else { LOW_CAP_SD };
        PowerReading { on: on(w.shape()), ln_watts: watts.ln(), sd }
    });
    let like = context.class.powers.iter().map(|(gpus, prior)| PowerReading {
        on: on_fewest(*gpus),
        ln_watts: prior.mean,
        sd: prior.sd,
    });
    let rows: Vec<PowerReading> = own.chain(like).collect();
    let is_seen = !rows.is_empty() || context.class.ln_power.is_some();
    ExclusivePower::fit(from, level, &rows, is_seen)
}
