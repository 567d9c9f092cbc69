//! What surfaces and progress say of a job's future.
//!
//! All reading of surfaces by policies goes through here, so that "nothing is known" is one rule:
//! every answer is an `Option`, and `None` means that nobody has said so, never zero. Expected
//! values are used; an observation corrects what they get wrong.

use std::time::Duration;

use wattle_common::messages::{Surface, SurfacePoint};
use wattle_common::{Timestamp, WorkloadId};

use crate::state::job::{Job, Mark, State};

/// The name of a neighbour whose class is not on a surface's axis (`wattle_common` surface message).
const UNKNOWN: &str = "unknown";

/// What must be known of a job before it may share a card.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Profile {
    /// Busy share alone, per cent.
    pub utilization_percent: f64,
    /// Peak device memory on each GPU, MiB.
    pub memory_mib: u64,
}

/// The profile of `job` on cards of `kind`.
///
/// A surface that rests on windows of the job itself counts; so does a prior for its class, which
/// is history of like jobs. A prior for nothing in particular does not, and nothing does where its
/// owner asks for another kind.
#[must_use]
pub fn profile(job: &Job, kind: &str) -> Option<Profile> {
    let surface = job.surface_on(kind)?;
    if job.facts.gpu_type.as_deref().is_some_and(|asked| asked != kind) {
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

/// Whether `job` must still be looked at as the site sets its cards: nothing was measured of it yet,
/// and what is said of it is not sure.
///
/// What caps and clocks do is only known relative to that. A job that begins at a setting chosen
/// from a guess may stay there for good: nothing it shows there says that another were better.
#[must_use]
pub fn is_unmeasured(job: &Job) -> bool {
    let Some(surface) = &job.surface else { return false };
    let mut alone = surface.points.iter().filter(|point| point.neighbours.is_empty());
    let unsure = |p: &SurfacePoint| p.gpu_power_w.low < p.gpu_power_w.high;
    surface.windows == 0 && alone.any(unsure)
}

/// The expected speed of `job` on so many GPUs of `kind` and nodes beside `neighbours`, relative to
/// running there alone.
#[must_use]
pub fn relative_speed(
    job: &Job,
    kind: &str,
    gpus: u32,
    nodes: u32,
    neighbours: &[&Job],
) -> Option<f64> {
    if neighbours.is_empty() {
        return Some(1.0);
    }
    expected_on(job, kind, gpus, nodes, neighbours).map(|point| point.relative_speed.mean)
}

/// The point of `job`'s own surface that policies read for so many GPUs and nodes beside
/// `neighbours` at default cap and clock. Its GPUs and nodes may differ: it is the closest there is.
#[must_use]
pub fn expected<'a>(
    job: &'a Job,
    gpus: u32,
    nodes: u32,
    neighbours: &[&Job],
) -> Option<&'a SurfacePoint> {
    beside(job.surface.as_ref()?, gpus, nodes, neighbours)
}

/// The same of its surface on GPUs of `kind`.
#[must_use]
pub fn expected_on<'a>(
    job: &'a Job,
    kind: &str,
    gpus: u32,
    nodes: u32,
    neighbours: &[&Job],
) -> Option<&'a SurfacePoint> {
    beside(job.surface_on(kind)?, gpus, nodes, neighbours)
}

fn beside<'a>(
    surface: &'a Surface,
    gpus: u32,
    nodes: u32,
    neighbours: &[&Job],
) -> Option<&'a SurfacePoint> {
    let unknown = WorkloadId::new(UNKNOWN).ok()?;
    let mut classes: Vec<&WorkloadId> =
        neighbours.iter().map(|other| class(other).unwrap_or(&unknown)).collect();
    classes.sort();
    point(surface, gpus, nodes, &classes).or_else(|| {
        // A class that is not on the axis stands under the name of all unknown ones.
        let known = |c: &&WorkloadId| names(surface, c);
        if classes.iter().all(known) {
            return None;
        }
        let mut named: Vec<&WorkloadId> =
            classes.iter().map(|&c| if names(surface, c) { c } else { &unknown }).collect();
        named.sort();
        point(surface, gpus, nodes, &named)
    })
}

fn class(job: &Job) -> Option<&WorkloadId> {
    job.surface.as_ref().and_then(|s| s.class.as_ref()).or(job.facts.workload.as_ref())
}

fn names(surface: &Surface, class: &WorkloadId) -> bool {
    surface.points.iter().any(|p| p.neighbours.contains(class))
}

/// The point for these neighbours at default cap and clock whose GPUs and nodes come closest: how
/// much neighbours slow a job depends on them far more than on how many cards it has.
fn point<'a>(
    surface: &'a Surface,
    gpus: u32,
    nodes: u32,
    classes: &[&WorkloadId],
) -> Option<&'a SurfacePoint> {
    surface
        .points
        .iter()
        .filter(|p| p.cap_mw.is_none() && p.clock_mhz_max.is_none() && p.global_batch.is_none())
        .filter(|p| p.neighbours.iter().eq(classes.iter().copied()))
        .min_by_key(|p| (p.nodes.abs_diff(nodes), p.gpus.abs_diff(gpus)))
}

/// How long `job` would still take alone on so many GPUs and nodes, at `now`.
#[must_use]
pub fn remaining_alone(now: Timestamp, job: &Job, gpus: u32, nodes: u32) -> Option<Duration> {
    let own = job.surface.as_ref();
    let by_surface = own
        .and_then(|surface| point(surface, gpus, nodes, &[]))
        .filter(|p| p.gpus == gpus && p.nodes == nodes)
        .and_then(|p| p.steps_per_s)
        .map(|rate| rate.mean);
    let by_owner = job.facts.duration_alone;
    if let Some((done, total)) = steps(now, job) {
        let left = (total - done).max(0.0);
        let by_owner = by_owner.map(|whole| total / whole.as_secs_f64().max(1e-6));
        let rate = by_surface.or(by_owner).filter(|rate| *rate > 0.0)?;
        return Some(span(left / rate));
    }
    let ran = match &job.state {
        State::Running { since, .. } => now.since(*since),
        State::Queued | State::Stopping { .. } => Duration::ZERO,
    };
    by_owner.map(|whole| whole.saturating_sub(ran))
}

/// Steps done by `now` and steps in all.
fn steps(now: Timestamp, job: &Job) -> Option<(f64, f64)> {
    let total = job.progress?.steps_total? as f64;
    Some((steps_done(now, job)?, total))
}

/// Steps done by `now`, carried on from the last report at its own rate.
#[must_use]
pub fn steps_done(now: Timestamp, job: &Job) -> Option<f64> {
    let progress = job.progress?;
    let running = matches!(job.state, State::Running { .. });
    let since = if running { now.since(progress.at).as_secs_f64() } else { 0.0 };
    Some(progress.step as f64 + since * progress.steps_per_s.unwrap_or(0.0))
}

/// When `job` would end on so many GPUs and nodes, if from `now` on it ran at `speed` relative to
/// running alone.
#[must_use]
pub fn end(now: Timestamp, job: &Job, gpus: u32, nodes: u32, speed: f64) -> Option<Timestamp> {
    let alone = remaining_alone(now, job, gpus, nodes)?;
    Some(if speed > 0.0 { now + span(alone.as_secs_f64() / speed) } else { Timestamp::FOREVER })
}

/// Steps a second that an observed job has made since its observation began.
#[must_use]
pub fn measured_rate(job: &Job, mark: &Mark) -> Option<f64> {
    let progress = job.progress?;
    let (at, step) = mark.from?;
    let time = progress.at.since(at).as_secs_f64();
    (time > 0.0).then(|| progress.step.saturating_sub(step) as f64 / time)
}

/// When an observed job would end at the speed it has shown since its observation began.
#[must_use]
pub fn measured_end(job: &Job, mark: &Mark) -> Option<Timestamp> {
    let progress = job.progress?;
    let left = progress.steps_total?.saturating_sub(progress.step) as f64;
    let rate = measured_rate(job, mark)?;
    Some(if rate > 0.0 { progress.at + span(left / rate) } else { Timestamp::FOREVER })
}

/// A span from a model's seconds, bounded, so that no prediction can overflow.
fn span(seconds: f64) -> Duration {
    /// A hundred years: later than every deadline.
    const LONGEST_S: f64 = 100.0 * 365.25 * 86_400.0;
    Duration::from_secs_f64(if seconds.is_finite() {
        seconds.clamp(0.0, LONGEST_S)
    } else {
        LONGEST_S
    })
}
