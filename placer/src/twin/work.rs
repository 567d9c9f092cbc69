//! A job's run time and power in the twin: at the default setting on the requested GPUs.
//!
//! ```text
//! run time = steps / rate(requested GPUs, default cap and clock)
//! ```
//!
//! Rate and power are those of the newest surface, which the predictor corrects by measurements; they are expected
//! values, also of a job without measurements. While the job is present the number of steps is what it reported as its
//! total, else an estimate ([`remaining_work`]). When it ends, it is the number of steps done.
//!
//! Without reported steps the work is the integral of the job's predicted speed relative to the default setting on the
//! requested GPUs, 1 where no prediction is known.

use std::time::Duration;

use wattle_common::job::GpuSetting;
use wattle_common::messages::{Estimate, SurfacePoint, TwinWork};
use wattle_common::time::span_s;
use wattle_common::{Power, Timestamp};

use crate::state::cluster::ClusterState;
use crate::state::gpu_set::GpuSet;
use crate::state::job::{Job, State};
use crate::state::job_forecast::{remaining_work, running_rate};

/// Longest run time, a hundred years.
const LONGEST_S: f64 = 100.0 * 365.25 * 86_400.0;

/// The work of a job, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Work {
    pub(super) known: TwinWork,
    /// Until when the work done and the GPU time count.
    followed_to: Option<Timestamp>,
    /// Its speed now relative to the default setting on the requested GPUs, while it runs.
    relative_speed: Option<f64>,
    /// Number of its GPUs now, each over the number of its jobs.
    gpus: f64,
}

impl Work {
    /// The work of a job that was stored.
    pub(super) fn restored(known: TwinWork) -> Self {
        Self { known, ..Self::default() }
    }

    /// Follows a job that is present.
    pub(super) fn follow(&mut self, state: &ClusterState, job: &Job) {
        self.count(state, job);
        self.known.gpu_idle_w = idle_w(state, job).or(self.known.gpu_idle_w);
        let default = default_point(job);
        if let Some((point, rate)) = default {
            self.known.gpu_w = Some(point.gpu_power_w.mean);
            let error = half_width(&point.gpu_power_w).hypot(half_width(rate));
            self.known.error = Some(error).filter(|error| error.is_finite());
        }
        self.known.run_time_s = match default.zip(job.unit_rate()) {
            Some(((_, rate), unit)) => {
                let total_s = remaining_work(state, job, unit).total_s;
                bounded(total_s * unit / rate.mean)
            }
            None => job.facts.duration_alone.map(|alone| alone.as_secs_f64()),
        };
    }

    /// The job ends now.
    pub(super) fn ended(&mut self, state: &ClusterState, job: &Job) {
        self.follow(state, job);
        let steps = job.progress.map(|progress| progress.step as f64).filter(|steps| *steps > 0.0);
        let by_steps = steps.zip(default_point(job)).map(|(steps, (_, rate))| steps / rate.mean);
        self.known.run_time_s = bounded(by_steps.unwrap_or(self.known.done_s));
        self.relative_speed = None;
    }

    /// Adds what the job has done since the last call, at the speed in force until now.
    fn count(&mut self, state: &ClusterState, job: &Job) {
        let now = state.now();
        let before = self.followed_to.replace(now);
        let State::Running { on, since, .. } = &job.state else {
            (self.relative_speed, self.gpus) = (None, 0.0);
            return;
        };
        let from = before.map_or(*since, |before| before.max(*since));
        let (speed, gpus) = (speed_of(state, job), gpus_of(state, on));
        let span_s = now.since(from).as_secs_f64();
        let in_force = if self.gpus > 0.0 { self.gpus } else { gpus };
        self.known.done_s += span_s * self.relative_speed.unwrap_or(speed);
        self.known.gpu_s += span_s * in_force;
        (self.relative_speed, self.gpus) = (Some(speed), gpus);
    }

    /// The run time in the twin: known once the job has ended, before that an estimate.
    pub(super) fn run_time(&self) -> Option<Duration> {
        self.known.run_time_s.and_then(bounded).map(span_s)
    }

    pub(super) const fn relative_speed(&self) -> Option<f64> {
        self.relative_speed
    }
}

fn bounded(seconds: f64) -> Option<f64> {
    seconds.is_finite().then(|| seconds.clamp(0.0, LONGEST_S))
}

/// Half the width of an interval relative to its mean.
fn half_width(estimate: &Estimate) -> f64 {
    (estimate.high - estimate.low) / (2.0 * estimate.mean)
}

/// The prediction at the default setting on the requested GPUs, exclusive, with its rate.
fn default_point(job: &Job) -> Option<(&SurfacePoint, &Estimate)> {
    let is_default = |point: &&SurfacePoint| {
        let setting = GpuSetting { cap_mw: point.cap_mw, clock_mhz_max: point.clock_mhz_max };
        point.gpus == job.facts.request.min
            && setting.is_default()
            && point.neighbours.is_empty()
            && point.global_batch.is_none()
    };
    let points = job.surface.as_ref()?.points.iter().filter(is_default);
    let point = points.min_by_key(|point| point.nodes)?;
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

/// The predicted speed of a running job relative to the default setting on the requested GPUs; 1 if unknown.
fn speed_of(state: &ClusterState, job: &Job) -> f64 {
    let default = default_point(job).map(|(_, rate)| rate.mean);
    let speed = running_rate(state, job).zip(default).map(|(own, default)| own / default);
    speed.filter(|speed| speed.is_finite() && *speed >= 0.0).unwrap_or(1.0)
}
