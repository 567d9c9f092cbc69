//! Forecasts of a job's speed, remaining time and completion, from its surface and its progress.
//!
//! Each forecast is an `Option`: `None` means that it is unknown, never zero. Forecasts use expected
//! values; early observation corrects their errors.

use std::time::Duration;

use wattle_common::job::GpuSetting;
use wattle_common::messages::{Surface, SurfacePoint};
use wattle_common::observation::UNKNOWN;
use wattle_common::{Timestamp, WorkloadId};

use crate::state::cluster::ClusterState;
use crate::state::gpu_set::{GpuSet, JobKey};
use crate::state::job::{Job, Mark, State};
use crate::state::surface_index::SurfaceIndex;
use wattle_common::time::span_s;

/// The least remaining work, s.
const WORK_MIN_S: f64 = 1.0;
/// The remaining work of a job of unknown length before any job has completed, s.
const WORK_PRIOR_S: f64 = 3_600.0;

/// The measurements that a job needs before it may share a GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Profile {
    /// GPU utilization without co-tenants, per cent.
    pub utilization_percent: f64,
    /// Peak device memory on each GPU, MiB.
    pub memory_mib: u64,
}

/// The profile of `job` on GPUs of this type.
///
/// It requires a surface from windows of the job itself or from the history of its class. A generic
/// prior gives no profile, and neither does a GPU type other than the requested one.
#[must_use]
pub fn profile(job: &Job, gpu_type: &str) -> Option<Profile> {
    let surface = job.surface_on(gpu_type)?;
    if job.facts.gpu_type.as_deref().is_some_and(|requested| requested != gpu_type) {
        return None;
    }
    if surface.windows == 0 && surface.class.is_none() {
        return None;
    }
    Some(Profile {
        utilization_percent: surface.utilization_gpu_percent?,
        memory_mib: job.memory_mib_max()?,
    })
}

/// Whether `job` must first run at the default cap and clock: it has no measured window, and its
/// predicted power is uncertain.
///
/// The effect of caps and clocks is estimated relative to the default. A job that starts at a setting
/// from a prior could stay there, since measurements at one setting do not correct the others.
#[must_use]
pub fn is_unmeasured(job: &Job) -> bool {
    let Some(surface) = &job.surface else { return false };
    let mut alone = surface.points.iter().filter(|point| point.neighbours.is_empty());
    let unsure = |p: &SurfacePoint| p.gpu_power_w.low < p.gpu_power_w.high;
    surface.windows == 0 && alone.any(unsure)
}

/// The jobs that share GPUs with `job`.
fn co_tenants<'a>(state: &'a ClusterState, job: &Job) -> Vec<&'a Job> {
    let gpus = job.state.gpus().into_iter().flat_map(GpuSet::gpus);
    let mut others: Vec<JobKey> =
        gpus.flat_map(|(node, gpu)| state.node(node).tenants(gpu).iter().copied()).collect();
    others.sort_unstable();
    others.dedup();
    let others = others.into_iter().filter_map(|key| state.job(key));
    others.filter(|other| other.facts.id != job.facts.id).collect()
}

/// The expected speed of `job` with these co-tenants, relative to the same placement without them.
#[must_use]
pub fn relative_speed(
    job: &Job,
    gpu_type: &str,
    gpus: u32,
    nodes: u32,
    neighbours: &[&Job],
) -> Option<f64> {
    if neighbours.is_empty() {
        return Some(1.0);
    }
    expected_on(job, gpu_type, gpus, nodes, neighbours).map(|point| point.relative_speed.mean)
}

/// The point of `job`'s main surface for these co-tenants at default cap and clock that is closest
/// to this number of GPUs and nodes.
#[must_use]
pub fn expected<'a>(
    job: &'a Job,
    gpus: u32,
    nodes: u32,
    neighbours: &[&Job],
) -> Option<&'a SurfacePoint> {
    let (surface, index) = job.indexed_surface()?;
    closest_point(surface, index, gpus, nodes, neighbours)
}

/// As [`expected`], on its surface for this GPU type.
#[must_use]
pub fn expected_on<'a>(
    job: &'a Job,
    gpu_type: &str,
    gpus: u32,
    nodes: u32,
    neighbours: &[&Job],
) -> Option<&'a SurfacePoint> {
    if let Some((surface, index)) = job.indexed_surface()
        && surface.gpu_type == gpu_type
    {
        return closest_point(surface, index, gpus, nodes, neighbours);
    }
    let surface = job.surface_on(gpu_type)?;
    closest_point(surface, &SurfaceIndex::new(surface), gpus, nodes, neighbours)
}

/// The predicted steps per second of a running job on its GPUs, at their setting and with its co-tenants.
#[must_use]
pub fn running_rate(state: &ClusterState, job: &Job) -> Option<f64> {
    let State::Running { on, setting, .. } = &job.state else { return None };
    let gpu_type = state.gpu_type_of(job)?;
    let in_force = if state.has_fixed_caps(on) { GpuSetting::DEFAULT } else { *setting };
    let (gpus, nodes) = (on.gpu_count(), on.node_count());
    let alone = job.operating_points_on(gpu_type)?.point(gpus, in_force)?.steps_per_s;
    let shared = relative_speed(job, gpu_type, gpus, nodes, &co_tenants(state, job))?;
    Some(alone * shared)
}

/// Half the width of the 90 % interval of a running job's speed relative to the default setting on its GPUs without
/// co-tenants, as a share of it.
#[must_use]
pub fn running_speed_error(state: &ClusterState, job: &Job) -> Option<f64> {
    let State::Running { on, setting, .. } = &job.state else { return None };
    let gpu_type = state.gpu_type_of(job)?;
    let in_force = if state.has_fixed_caps(on) { GpuSetting::DEFAULT } else { *setting };
    let (gpus, nodes) = (on.gpu_count(), on.node_count());
    let others = co_tenants(state, job);
    let by_others = match others.is_empty() {
        true => 0.0,
        false => expected_on(job, gpu_type, gpus, nodes, &others)?.relative_speed.error(),
    };
    if in_force.is_default() {
        return Some(by_others);
    }
    let is_here = |point: &&SurfacePoint| {
        let setting = GpuSetting { cap_mw: point.cap_mw, clock_mhz_max: point.clock_mhz_max };
        (point.gpus, point.nodes) == (gpus, nodes)
            && setting == in_force
            && point.neighbours.is_empty()
            && point.global_batch.is_none()
    };
    let point = job.surface_on(gpu_type)?.points.iter().find(is_here)?;
    Some(by_others.hypot(point.relative_speed.error()))
}

/// An upper bound of [`relative_speed`] with one co-tenant on this GPU type.
pub(crate) fn relative_speed_max(job: &Job, gpu_type: &str) -> f64 {
    let known = job.indexed_surface().filter(|(surface, _)| surface.gpu_type == gpu_type);
    known.map_or(f64::INFINITY, |(_, index)| index.relative_speed_max)
}

fn closest_point<'a>(
    surface: &'a Surface,
    index: &SurfaceIndex,
    gpus: u32,
    nodes: u32,
    neighbours: &[&Job],
) -> Option<&'a SurfacePoint> {
    if let [one] = neighbours
        && let Some(class) = class(one)
        && let Some(found) = point(surface, index, gpus, nodes, &[class])
    {
        return Some(found);
    }
    let unknown = WorkloadId::new(UNKNOWN).ok()?;
    let mut classes: Vec<&WorkloadId> =
        neighbours.iter().map(|other| class(other).unwrap_or(&unknown)).collect();
    classes.sort();
    point(surface, index, gpus, nodes, &classes).or_else(|| {
        // The surface has one common class for all neighbours that it does not name.
        let known = |c: &&WorkloadId| names(surface, c);
        if classes.iter().all(known) {
            return None;
        }
        let mut named: Vec<&WorkloadId> =
            classes.iter().map(|&c| if names(surface, c) { c } else { &unknown }).collect();
        named.sort();
        point(surface, index, gpus, nodes, &named)
    })
}

fn class(job: &Job) -> Option<&WorkloadId> {
    job.surface.as_ref().and_then(|s| s.class.as_ref()).or(job.facts.workload.as_ref())
}

fn names(surface: &Surface, class: &WorkloadId) -> bool {
    surface.points.iter().any(|p| p.neighbours.contains(class))
}

/// The point for these neighbour classes at default cap and clock with the closest number of nodes and
/// GPUs. Interference depends on the neighbours far more than on the number of GPUs.
fn point<'a>(
    surface: &'a Surface,
    index: &SurfaceIndex,
    gpus: u32,
    nodes: u32,
    classes: &[&WorkloadId],
) -> Option<&'a SurfacePoint> {
    let mut closest: Option<(u32, u32, &SurfacePoint)> = None;
    index.for_each(surface, classes, |p| {
        let (by_nodes, by_gpus) = (p.nodes.abs_diff(nodes), p.gpus.abs_diff(gpus));
        if closest.is_none_or(|(n, g, _)| (by_nodes, by_gpus) < (n, g)) {
            closest = Some((by_nodes, by_gpus, p));
        }
    });
    closest.map(|(_, _, p)| p)
}

/// The remaining run time of `job` at `now` on this number of GPUs and nodes without co-tenants.
#[must_use]
pub fn remaining_alone(now: Timestamp, job: &Job, gpus: u32, nodes: u32) -> Option<Duration> {
    let own = job.indexed_surface();
    let by_surface = own
        .and_then(|(surface, index)| point(surface, index, gpus, nodes, &[]))
        .filter(|p| p.gpus == gpus && p.nodes == nodes)
        .and_then(|p| p.steps_per_s)
        .map(|rate| rate.mean);
    let by_owner = job.facts.duration_alone;
    if let Some((done, total)) = steps(now, job) {
        let left = (total - done).max(0.0);
        let by_owner = by_owner.map(|duration| total / duration.as_secs_f64().max(1e-6));
        let rate = by_surface.or(by_owner).filter(|rate| *rate > 0.0)?;
        return Some(span(left / rate));
    }
    let ran = match &job.state {
        State::Running { since, .. } => now.since(*since),
        State::Queued | State::Stopping { .. } => Duration::ZERO,
    };
    by_owner.map(|duration| duration.saturating_sub(ran))
}

/// Completed steps by `now`, and total steps.
fn steps(now: Timestamp, job: &Job) -> Option<(f64, f64)> {
    let total = job.progress?.steps_total? as f64;
    Some((steps_done(now, job)?, total))
}

/// Completed steps by `now`, extrapolated from the last report at its rate.
#[must_use]
pub fn steps_done(now: Timestamp, job: &Job) -> Option<f64> {
    let progress = job.progress?;
    let running = matches!(job.state, State::Running { .. });
    let since = if running { now.since(progress.at).as_secs_f64() } else { 0.0 };
    Some(progress.step as f64 + since * progress.steps_per_s.unwrap_or(0.0))
}

/// The completion time of `job` on this number of GPUs and nodes at `speed` relative to running without
/// co-tenants.
#[must_use]
pub fn end(now: Timestamp, job: &Job, gpus: u32, nodes: u32, speed: f64) -> Option<Timestamp> {
    let alone = remaining_alone(now, job, gpus, nodes)?;
    Some(if speed > 0.0 { now + span(alone.as_secs_f64() / speed) } else { Timestamp::FOREVER })
}

/// The work of a job, in seconds on one GPU.
pub(crate) struct Work {
    /// The rest.
    pub(crate) left_s: f64,
    /// All of it.
    pub(crate) total_s: f64,
    /// Whether the job or its owner states its length.
    pub(crate) is_known: bool,
}

/// The remaining work of a job whose work unit is `unit` steps per second and GPU. Where neither the job nor
/// its owner states its length, it is estimated from completed jobs.
pub(crate) fn remaining_work(state: &ClusterState, job: &Job, unit: f64) -> Work {
    let done = steps_done(state.now(), job).unwrap_or(0.0) / unit;
    if let Some(steps) = job.progress.and_then(|progress| progress.steps_total) {
        let total_s = steps as f64 / unit;
        return Work { left_s: (total_s - done).max(WORK_MIN_S), total_s, is_known: true };
    }
    if let Some(alone) = job.facts.duration_alone {
        // An estimate of the owner that has run out does not mean that the job is at its end.
        let total_s = alone.as_secs_f64() * f64::from(job.facts.request.min);
        let left_s = (total_s - done).max(0.05 * total_s).max(WORK_MIN_S);
        return Work { left_s, total_s, is_known: true };
    }
    let estimate = state.work_history().remaining_s(done);
    let left_s = estimate.unwrap_or(WORK_PRIOR_S).max(WORK_MIN_S);
    Work { left_s, total_s: done + left_s, is_known: false }
}

/// Steps per second of a job since its observation began.
#[must_use]
pub fn measured_rate(job: &Job, mark: &Mark) -> Option<f64> {
    let progress = job.progress?;
    let (at, step) = mark.from?;
    let time = progress.at.since(at).as_secs_f64();
    (time > 0.0).then(|| progress.step.saturating_sub(step) as f64 / time)
}

/// The completion time of a job at its rate since its observation began.
#[must_use]
pub fn measured_end(job: &Job, mark: &Mark) -> Option<Timestamp> {
    let progress = job.progress?;
    let left = progress.steps_total?.saturating_sub(progress.step) as f64;
    let rate = measured_rate(job, mark)?;
    Some(if rate > 0.0 { progress.at + span(left / rate) } else { Timestamp::FOREVER })
}

/// A duration from predicted seconds, bounded against overflow.
fn span(seconds: f64) -> Duration {
    /// A hundred years, later than every deadline.
    const LONGEST_S: f64 = 100.0 * 365.25 * 86_400.0;
    span_s(if seconds.is_finite() { seconds.clamp(0.0, LONGEST_S) } else { LONGEST_S })
}
