//! A job's run time in the twin: its work over its speed at the default setting on the requested GPUs.
//!
//! ```text
//! run time = steps / rate(requested GPUs, default cap and clock)
//! ```
//!
//! The rate is that of the newest surface, which the predictor corrects by measurements. While the job is present the
//! number of steps is what it reported as its total, else an estimate ([`remaining_work`]). When it ends, it is the
//! number of steps done.
//!
//! Without reported steps the work is the integral of the job's predicted speed relative to the default setting on the
//! requested GPUs, 1 where no prediction is known.

use std::time::Duration;

use wattle_common::job::GpuSetting;
use wattle_common::time::span_s;
use wattle_common::{Power, Timestamp};

use crate::state::cluster::ClusterState;
use crate::state::gpu_set::GpuSet;
use crate::state::job::{Job, State};
use crate::state::job_forecast::{co_tenants, relative_speed, remaining_work};
use crate::state::operating_points::{OperatingPoint, OperatingPoints};

/// Longest run time, a hundred years.
const LONGEST_S: f64 = 100.0 * 365.25 * 86_400.0;

/// The work of a job, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Work {
    /// Time at the default setting on the requested GPUs for what it has done, by its predicted speeds, s.
    done_s: f64,
    /// Until when [`Self::done_s`] counts.
    followed_to: Option<Timestamp>,
    /// Its speed now relative to the default setting on the requested GPUs, while it runs.
    relative_speed: Option<f64>,
    /// The run time at the default setting, s.
    run_time_s: Option<f64>,
    /// Predicted power of one GPU at the default setting, W.
    gpu_power_w: Option<f64>,
    /// Power of one idle GPU of its type, W.
    gpu_idle_w: Option<f64>,
}

impl Work {
    /// Follows a job that is present.
    pub(super) fn follow(&mut self, state: &ClusterState, job: &Job) {
        self.count(state, job);
        let default = default_point(job);
        self.gpu_power_w = default.map(|point| point.gpu_power_w).or(self.gpu_power_w);
        self.gpu_idle_w = idle_w(state, job).or(self.gpu_idle_w);
        let (Some(default), Some(unit)) = (default, job.unit_rate()) else {
            self.run_time_s = job.facts.duration_alone.map(|alone| alone.as_secs_f64());
            return;
        };
        let total_s = remaining_work(state, job, unit).total_s;
        self.run_time_s = bounded(total_s * unit / default.steps_per_s);
    }

    /// The job ends now.
    pub(super) fn ended(&mut self, state: &ClusterState, job: &Job) {
        self.follow(state, job);
        let steps = job.progress.map(|progress| progress.step as f64).filter(|steps| *steps > 0.0);
        let by_steps =
            steps.zip(default_point(job)).map(|(steps, point)| steps / point.steps_per_s);
        self.run_time_s = bounded(by_steps.unwrap_or(self.done_s));
        self.relative_speed = None;
    }

    /// Adds what the job has done since the last call at its speed until now.
    fn count(&mut self, state: &ClusterState, job: &Job) {
        let now = state.now();
        let State::Running { on, since, .. } = &job.state else {
            (self.followed_to, self.relative_speed) = (Some(now), None);
            return;
        };
        let from = self.followed_to.map_or(*since, |from| from.max(*since));
        let speed = speed_of(state, job, on);
        // The speed that was in force until now.
        let mean = self.relative_speed.unwrap_or(speed);
        self.done_s += now.since(from).as_secs_f64() * mean;
        (self.followed_to, self.relative_speed) = (Some(now), Some(speed));
    }

    /// The run time in the twin: known once the job has ended, before that an estimate.
    pub(super) fn run_time(&self) -> Option<Duration> {
        self.run_time_s.map(span_s)
    }

    pub(super) const fn relative_speed(&self) -> Option<f64> {
        self.relative_speed
    }

    /// Predicted power of one GPU with the job at the default setting, and its power without jobs, W.
    pub(super) fn gpu_power_w(&self) -> Option<(f64, f64)> {
        self.gpu_power_w.zip(self.gpu_idle_w)
    }
}

fn bounded(seconds: f64) -> Option<f64> {
    seconds.is_finite().then(|| seconds.clamp(0.0, LONGEST_S))
}

/// The operating point at the default setting on the requested GPUs.
fn default_point(job: &Job) -> Option<OperatingPoint> {
    let point = |points: &OperatingPoints| {
        points.point(job.facts.request.min, GpuSetting::DEFAULT).copied()
    };
    job.operating_points.as_ref().and_then(|points| point(points))
}

/// The power of one idle GPU of the type that the job holds, or of its surface, W.
fn idle_w(state: &ClusterState, job: &Job) -> Option<f64> {
    let gpu_type = &job.operating_points.as_ref()?.gpu_type;
    let of_type = state.nodes().iter().filter(|node| node.facts.gpu_type == *gpu_type);
    let of_node = of_type.filter_map(|node| node.facts.watts).map(|watts| watts.gpu_idle).next();
    of_node.or_else(|| state.gpu_power(gpu_type).map(|power| power.idle)).map(Power::as_w)
}

/// The predicted speed of a running job relative to the default setting on the requested GPUs; 1 if unknown.
fn speed_of(state: &ClusterState, job: &Job, on: &GpuSet) -> f64 {
    let speed = || {
        let gpu_type = state.gpu_type_of(job)?;
        let points = job.operating_points_on(gpu_type)?;
        let setting = if state.has_fixed_caps(on) { GpuSetting::DEFAULT } else { job.setting()? };
        let own = points.point(on.gpu_count(), setting)?.steps_per_s;
        let shared = relative_speed(
            job,
            gpu_type,
            on.gpu_count(),
            on.node_count(),
            &co_tenants(state, job),
        )?;
        Some(own * shared / default_point(job)?.steps_per_s)
    };
    speed().filter(|speed| speed.is_finite() && *speed >= 0.0).unwrap_or(1.0)
}
