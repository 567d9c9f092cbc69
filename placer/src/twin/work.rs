//! A job's run time and power in the twin: at the default setting on the requested GPUs.
//!
//! Two estimates of the time for what a job has done are combined, each with the weight of its inverse squared error:
//!
//! ```text
//! by rate    steps / rate(requested GPUs, default cap and clock)
//! by speed   integral of speed relative to the default setting on the requested GPUs
//! ```
//!
//! The first has the error of the predicted rate. The second is measured while the job runs alone at the default setting;
//! otherwise it has the error of the predicted relative speed, and each start adds [`START_S`] to its error, because a
//! job that starts makes no steps.
//!
//! Rate, relative speed and power are those of the newest surface, which the predictor corrects by measurements; they are
//! expected values, also of a job without measurements. While the job is present its number of steps is what it reported
//! as its total, else an estimate ([`remaining_work`]). When it ends, it is the number of steps done. Without reported
//! steps the time is that by speed.

use std::collections::BTreeMap;
use std::time::Duration;

use wattle_common::job::GpuSetting;
use wattle_common::messages::{Estimate, SurfacePoint, TwinWork};
use wattle_common::time::span_s;
use wattle_common::{Power, Timestamp};

use crate::state::cluster::ClusterState;
use crate::state::gpu_set::GpuSet;
use crate::state::job::{Job, State};
use crate::state::job_forecast::{remaining_work, running_rate, running_speed_error, steps_done};

/// Longest run time, a hundred years.
const LONGEST_S: f64 = 100.0 * 365.25 * 86_400.0;
/// Time at a start without steps, s: an error of the time by speed.
const START_S: f64 = 60.0;
/// Error of the relative speed where it is not predicted, and bounds of all errors, shares.
const ERROR_UNKNOWN: f64 = 1.0;
const ERROR_LEAST: f64 = 1e-6;

/// The work of a job, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Work {
    pub(super) known: TwinWork,
    /// Until when the work done and the GPU time count.
    followed_to: Option<Timestamp>,
    /// Its speed now relative to the default setting on the requested GPUs, with half the width of its 90 % interval as
    /// a share, while it runs.
    relative_speed: Option<(f64, f64)>,
    /// Number of its GPUs now, each over the number of its jobs.
    gpus: f64,
    /// Whether it shares them.
    shared: bool,
    /// Whether their number differs from the requested one.
    resized: bool,
}

impl Work {
    /// The work of a job that was stored at this instant.
    pub(super) fn restored(known: TwinWork, at: Timestamp) -> Self {
        Self { known, followed_to: Some(at), ..Self::default() }
    }

    /// Follows a job that is present.
    pub(super) fn follow(&mut self, state: &ClusterState, sizes: &NodeSizes<'_>, job: &Job) {
        self.count(state, sizes, job);
        self.known.gpu_idle_w = idle_w(state, job).or(self.known.gpu_idle_w);
        let steps = steps_done(state.now(), job);
        let done = self.follow_point(sizes, job, steps);
        self.known.run_time_s = match sizes.default_point(job).zip(job.unit_rate()) {
            Some(((_, rate), unit)) => {
                let total_s = remaining_work(state, job, unit).total_s * unit / rate.mean;
                // What it has done took more or less time than by rate; the rest will too.
                let by_rate = steps.map(|steps| steps / rate.mean).filter(|by_rate| *by_rate > 0.0);
                let ratio = done.zip(by_rate).map_or(1.0, |(done, by_rate)| done / by_rate);
                bounded(total_s * ratio)
            }
            None => job.facts.duration_alone.map(|alone| alone.as_secs_f64()),
        };
    }

    /// The job ends now.
    pub(super) fn ended(&mut self, state: &ClusterState, sizes: &NodeSizes<'_>, job: &Job) {
        self.follow(state, sizes, job);
        let steps = job.progress.map(|progress| progress.step as f64);
        let done = self.follow_point(sizes, job, steps);
        self.known.run_time_s = bounded(done.unwrap_or(self.known.done_s));
        self.relative_speed = None;
    }

    /// Power, error and time of what the job has done, at the default setting, s; `None` without steps.
    fn follow_point(
        &mut self,
        sizes: &NodeSizes<'_>,
        job: &Job,
        steps: Option<f64>,
    ) -> Option<f64> {
        let (point, rate) = sizes.default_point(job)?;
        let by_rate = steps.filter(|steps| *steps > 0.0).map(|steps| steps / rate.mean);
        let by_speed = (self.known.done_s, self.known.done_error_s / self.known.done_s);
        let (done, error) = match by_rate {
            Some(by_rate) => combined((by_rate, rate.error()), by_speed),
            None => (0.0, rate.error()),
        };
        // The interval is that of energy above idle, as a share of all energy.
        let (watts, idle_w) = (&point.gpu_power_w, self.known.gpu_idle_w.unwrap_or_default());
        let error = watts.error().hypot(error * (1.0 - idle_w / watts.mean));
        self.known.gpu_w = Some(watts.mean);
        self.known.error = Some(error).filter(|error| error.is_finite());
        by_rate.map(|_| done)
    }

    /// Adds what the job has done since the last call, at the speed in force until now.
    fn count(&mut self, state: &ClusterState, sizes: &NodeSizes<'_>, job: &Job) {
        let now = state.now();
        let before = self.followed_to.replace(now);
        let State::Running { on, since, .. } = &job.state else {
            (self.relative_speed, self.gpus) = (None, 0.0);
            return;
        };
        let from = before.map_or(*since, |before| before.max(*since));
        let (own, gpus) = (speed_of(state, sizes, job), gpus_of(state, on));
        let span_s = now.since(from).as_secs_f64();
        // Each shared GPU counts in part.
        let shared = gpus < f64::from(on.gpu_count()) - 1e-6;
        let resized = on.gpu_count() != job.facts.request.min;
        if self.gpus <= 0.0 {
            (self.gpus, self.shared, self.resized) = (gpus, shared, resized);
        }
        let (speed, error) = self.relative_speed.unwrap_or(own);
        self.known.done_s += span_s * speed;
        self.known.done_error_s += span_s * speed * error;
        if before.is_none_or(|before| before < *since) {
            self.known.done_error_s += START_S;
        }
        let gpu_s = span_s * self.gpus;
        self.known.gpu_s += gpu_s;
        if self.shared {
            self.known.gpu_s_shared += gpu_s;
        } else if self.resized {
            self.known.gpu_s_resized += gpu_s;
        }
        self.relative_speed = Some(own);
        (self.gpus, self.shared, self.resized) = (gpus, shared, resized);
    }

    /// The run time in the twin: known once the job has ended, before that an estimate.
    pub(super) fn run_time(&self) -> Option<Duration> {
        self.known.run_time_s.and_then(bounded).map(span_s)
    }

    pub(super) const fn relative_speed(&self) -> Option<f64> {
        match self.relative_speed {
            Some((speed, _)) => Some(speed),
            None => None,
        }
    }
}

fn bounded(seconds: f64) -> Option<f64> {
    seconds.is_finite().then(|| seconds.clamp(0.0, LONGEST_S))
}

/// Two independent estimates of one quantity with their errors as shares, and the same of their combination.
fn combined(first: (f64, f64), second: (f64, f64)) -> (f64, f64) {
    let weight = |(value, error): (f64, f64)| {
        let is_usable = value > 0.0 && value.is_finite() && error.is_finite();
        if is_usable { error.max(ERROR_LEAST).powi(-2) } else { 0.0 }
    };
    let (of_first, of_second) = (weight(first), weight(second));
    let sum = of_first + of_second;
    if sum <= 0.0 {
        return (first.0, ERROR_UNKNOWN);
    }
    // An unusable value may be infinite.
    let part = |weight: f64, value: f64| if weight > 0.0 { weight * value } else { 0.0 };
    ((part(of_first, first.0) + part(of_second, second.0)) / sum, sum.powf(-0.5))
}

/// The most GPUs of a node, by GPU type.
#[derive(Debug)]
pub(super) struct NodeSizes<'s>(BTreeMap<&'s str, u32>);

impl<'s> NodeSizes<'s> {
    pub(super) fn of(state: &'s ClusterState) -> Self {
        let mut most = BTreeMap::new();
        for node in state.nodes() {
            let known = most.entry(&*node.facts.gpu_type).or_default();
            *known = node.facts.gpus.max(*known);
        }
        Self(most)
    }

    /// The prediction at the default setting on the requested GPUs, exclusive and on the fewest nodes that can hold them,
    /// with its rate.
    fn default_point<'j>(&self, job: &'j Job) -> Option<(&'j SurfacePoint, &'j Estimate)> {
        let of_node = self.0.get(&*job.surface.as_ref()?.gpu_type).copied();
        let gpus = job.facts.request.min;
        default_point(job, of_node.map_or(1, |of_node| gpus.div_ceil(of_node.max(1))))
    }
}

/// The prediction at the default setting on the requested GPUs, exclusive and on this number of nodes, else on the next
/// larger one, with its rate.
fn default_point(job: &Job, nodes: u32) -> Option<(&SurfacePoint, &Estimate)> {
    let is_default = |point: &&SurfacePoint| {
        let setting = GpuSetting { cap_mw: point.cap_mw, clock_mhz_max: point.clock_mhz_max };
        point.gpus == job.facts.request.min
            && setting.is_default()
            && point.neighbours.is_empty()
            && point.global_batch.is_none()
    };
    let points = job.surface.as_ref()?.points.iter().filter(is_default);
    let point = points.min_by_key(|point| (point.nodes < nodes, point.nodes.abs_diff(nodes)))?;
    let rate =
        point.steps_per_s.as_ref().filter(|rate| rate.mean.is_finite() && rate.mean > 0.0)?;
    Some((point, rate))
}

/// The power of one idle GPU of the type of the job's surface, W.
fn idle_w(state: &ClusterState, job: &Job) -> Option<f64> {
    let gpu_type = job.surface.as_ref()?.gpu_type.as_str();
    let mut of_type = state.nodes().iter().filter(|node| node.facts.gpu_type == gpu_type);
    let of_node = of_type.find_map(|node| node.facts.watts).map(|watts| watts.gpu_idle);
    of_node.or_else(|| state.gpu_power(gpu_type).map(|power| power.idle)).map(Power::as_w)
}

/// The number of GPUs, each over the number of its jobs: shared GPUs count for each job in part.
fn gpus_of(state: &ClusterState, on: &GpuSet) -> f64 {
    let tenants = on.gpus().map(|(node, gpu)| state.node(node).tenants(gpu).len().max(1));
    tenants.map(|tenants| 1.0 / tenants as f64).sum()
}

/// The predicted speed of a running job relative to the default setting on the requested GPUs, and half the width of its
/// 90 % interval as a share; 1 if unknown.
fn speed_of(state: &ClusterState, sizes: &NodeSizes<'_>, job: &Job) -> (f64, f64) {
    // Operating points are those on the fewest nodes; relative speed hardly depends on the number of nodes.
    let rate = default_point(job, 1).map(|(_, rate)| rate.mean);
    let speed = running_rate(state, job).zip(rate).map(|(own, default)| own / default);
    let Some(speed) = speed.filter(|speed| speed.is_finite() && *speed >= 0.0) else {
        return (1.0, ERROR_UNKNOWN);
    };
    let is_placed_so = |(point, _): &(&SurfacePoint, &Estimate)| {
        let on = job.state.gpus();
        on.is_some_and(|on| (on.gpu_count(), on.node_count()) == (point.gpus, point.nodes))
    };
    let error =
        sizes.default_point(job).filter(is_placed_so).and_then(|_| running_speed_error(state, job));
    (speed, error.filter(|error| error.is_finite()).unwrap_or(ERROR_UNKNOWN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_with_the_smaller_error_counts_more() {
        let near = |(value, error): (f64, f64), expected: (f64, f64)| {
            assert!((value - expected.0).abs() < 1e-9 && (error - expected.1).abs() < 1e-9);
        };
        near(combined((100.0, 0.1), (110.0, 0.1)), (105.0, 0.1 / 2.0_f64.sqrt()));
        near(combined((100.0, 0.0), (110.0, 0.1)), (100.000_000_001, 1e-6));
        near(combined((100.0, 0.2), (0.0, f64::NAN)), (100.0, 0.2));
        near(combined((100.0, f64::INFINITY), (110.0, 0.1)), (110.0, 0.1));
        near(combined((f64::INFINITY, 0.1), (110.0, 0.1)), (110.0, 0.1));
        near(combined((100.0, f64::NAN), (0.0, f64::NAN)), (100.0, ERROR_UNKNOWN));
    }
}
