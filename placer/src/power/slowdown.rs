//! Control of the energy aim: the highest energy price at which jobs complete on average at most a given
//! share later than under a reference: the site's former scheduler, or the time aim.
//!
//! The mean completion time under the reference is not observable, so it is estimated. By Little's law the sum
//! of completion times equals the integral of the number of jobs in the system. The slowdown is therefore
//!
//! ```text
//! slowdown = integral of d dt / integral of (N - d) dt
//! ```
//!
//! where `N` is the number of jobs and `d` the delay that all jobs accrue per second relative to the reference.
//!
//! # Relative to a baseline
//! The [`Twin`] has the numbers of jobs of the baseline:
//!
//! ```text
//! d = Q - Q' + sum over running jobs of (1 - v / v'),    N - d = Q' + R'
//! ```
//!
//! with `Q` jobs in the queue, `Q'` in the twin's queue and `R'` running in the twin. `v / v'` is the predicted speed of a
//! job relative to its run in the twin. Over the life of a job the sum of `1 - v / v'` is its run time minus that in the
//! twin, so `d` integrates to the difference of completion times; unlike the difference of the numbers of running jobs,
//! it follows a change of speed at once. It is negative while jobs run faster than in the twin.
//!
//! # Relative to the time aim
//! `d` is estimated by a [`Shadow`]:
//!
//! * A running job accrues `1 - v / v0`: its speed over its greatest speed on the same GPUs without
//!   co-tenants, or on more GPUs where free GPUs would allow its request.
//! * The sum of what a job accrued is its **lead** under the time aim. A job whose lead exceeds its remaining
//!   run time would have completed. The GPUs that it still holds would be free. Queued jobs that fit them, and
//!   queued jobs that would have completed, accrue their full waiting time. In this way the estimate includes
//!   queueing delay.
//!
//! Speeds and remaining times are those of the surfaces, which the predictor corrects by measurements.
//! Co-location that shortens the queue counts as a loss of speed only, so the estimate is cautious.
//!
//! The price follows the ratio of accrued to permitted delay by the control law of the budgets
//! ([`PriceController`]), in the opposite direction: too much delay lowers the price. The permitted delay is
//! the bound's share of the time in the system, plus what was not used over the last [`HORIZON`].

use std::collections::BTreeMap;
use std::time::Duration;

use wattle_common::Timestamp;
use wattle_common::aim::AimBound;
use wattle_common::messages::AimStatus;

use crate::plan::capabilities::PriceRange;
use crate::power::budget::PriceController;
use crate::state::cluster::ClusterState;
use crate::state::gpu_set::GpuSet;
use crate::state::job::Job;
use crate::state::job_forecast::{remaining_work, running_rate};
use crate::twin::Twin;

/// Time over which the bound holds: past delay is forgotten with this time constant. The price crosses its
/// range in a twenty-fourth of it.
pub const HORIZON: Duration = Duration::from_secs(86_400);
/// Time between two control steps.
pub const STEP: Duration = Duration::from_secs(60);
/// Highest position of the price. Position 1 is above the range and is left to budgets.
const POSITION_MAX: f64 = 0.999;
/// The part of the policy's price range, on its logarithmic scale, that the aim uses. At its end a job's
/// energy costs about four times its time, so that settings are close to those of least energy. Above it the
/// order of jobs would hardly depend on their completion times.
const RANGE_USED: f64 = 0.65;
/// Smallest bound, as a share, so that the permitted delay is positive.
const SLOWDOWN_LEAST: f64 = 1e-4;

/// Controller of the energy aim.
#[derive(Clone, Debug)]
pub struct SlowdownController {
    bound: AimBound,
    price: PriceController,
    shadow: Shadow,
    stepped_at: Timestamp,
    /// Time that all jobs have spent queued or running, job-seconds. Each second's weight decays
    /// exponentially with the time constant [`HORIZON`].
    present_s: f64,
    /// Estimated delay of these jobs, job-seconds, with the same weights.
    delay_s: f64,
}

impl SlowdownController {
    /// A controller that holds this bound, a share. It continues from a persisted state, or starts at
    /// price 0.
    #[must_use]
    pub fn new(bound: AimBound, persisted: Option<&AimStatus>, now: Timestamp) -> Self {
        let persisted = persisted.filter(|persisted| persisted.baseline == bound.baseline);
        let position = persisted.map_or(0.0, |persisted| persisted.price);
        let job_seconds = |read: fn(&AimStatus) -> f64| {
            persisted.map(read).filter(|value| value.is_finite()).unwrap_or_default()
        };
        Self {
            bound,
            price: PriceController::new(HORIZON, 1.0 - position),
            shadow: Shadow::default(),
            stepped_at: now,
            present_s: job_seconds(|persisted| persisted.present_s).max(0.0),
            delay_s: job_seconds(|persisted| persisted.delay_s),
        }
    }

    /// The state to persist; `policy_price` is the price in force.
    #[must_use]
    pub fn status(&self, policy_price: f64) -> AimStatus {
        AimStatus {
            at_us: self.stepped_at,
            baseline: self.bound.baseline,
            max_slowdown: self.bound.share,
            present_s: self.present_s,
            delay_s: self.delay_s,
            price: self.position(),
            policy_price,
        }
    }

    /// Position of the price in its range, 0 to 1.
    #[must_use]
    pub fn position(&self) -> f64 {
        (1.0 - self.price.position()).min(POSITION_MAX)
    }

    /// When the next step is due.
    #[must_use]
    pub fn next_step(&self) -> Timestamp {
        self.stepped_at + STEP
    }

    /// Performs a control step and returns the price, in the range of the policy's prices. `twin` is the cluster under
    /// the baseline, if the bound refers to one.
    pub fn step(&mut self, state: &ClusterState, twin: Option<&Twin>, prices: PriceRange) -> f64 {
        let range = PriceRange { most: prices.at(RANGE_USED), ..prices };
        let now = state.now();
        let past = now.since(self.stepped_at);
        self.stepped_at = now;
        // No steps are taken while no job is present: the jobs did not wait through all of a longer span.
        let span = past.min(2 * STEP);
        let dt = span.as_secs_f64();
        let twin = twin.filter(|_| self.bound.baseline.is_some());
        let (jobs, accrued) = match twin {
            Some(twin) => relative_to(twin, state),
            None => {
                let jobs = state.queue_len() + state.running().count();
                (jobs as f64, self.shadow.advance(state, dt))
            }
        };
        let kept = (-past.as_secs_f64() / HORIZON.as_secs_f64()).exp();
        self.present_s = self.present_s * kept + jobs * dt;
        self.delay_s = self.delay_s * kept + accrued * dt;
        if jobs <= 0.0 {
            return range.at(self.position());
        }
        // The price rises where little delay accrues: the controller's own position is the price's complement.
        let bound = self.bound.share.max(SLOWDOWN_LEAST);
        let share = bound / (1.0 + bound);
        let unused = (share * self.present_s - self.delay_s) / HORIZON.as_secs_f64();
        let permitted = share * jobs + unused;
        self.price.measured(accrued, span);
        let published = self.price.step(permitted, span, HORIZON, false);
        range.at((1.0 - published).min(POSITION_MAX))
    }
}

/// Number of jobs in the twin plus the delay that all jobs accrue per second relative to it, and that delay.
fn relative_to(twin: &Twin, state: &ClusterState) -> (f64, f64) {
    let (queued, running) = twin.presence();
    let speeds = state.running().map(|(_, job)| twin.relative_speed(&job.facts.id).unwrap_or(1.0));
    let lost: f64 = speeds.map(|speed| 1.0 - speed).sum();
    let accrued = state.queue_len() as f64 - queued as f64 + lost;
    ((queued + running) as f64 + accrued, accrued)
}

/// The cluster under the time aim, relative to the actual one.
#[derive(Clone, Debug, Default)]
struct Shadow {
    /// How far each job would be ahead, by its arrival number, seconds at its speed under the time aim.
    leads: BTreeMap<u64, f64>,
}

impl Shadow {
    /// Advances by `dt` seconds and returns the delay that all jobs accrue per second.
    fn advance(&mut self, state: &ClusterState, dt: f64) -> f64 {
        let before = std::mem::take(&mut self.leads);
        let lead_of = |job: &Job| before.get(&job.arrival).copied().unwrap_or(0.0);
        let mut free = idle_gpus(state);
        let mut released = 0;
        let mut accrued = 0.0;
        for (_, job) in state.running() {
            let loss = loss(state, job, &mut free).unwrap_or(0.0);
            accrued += loss;
            let lead = lead_of(job) + loss * dt;
            self.leads.insert(job.arrival, lead);
            let gpus = job.state.gpus().map_or(0, GpuSet::gpu_count);
            if remaining_s(state, job, gpus).is_some_and(|left_s| left_s <= lead) {
                released += gpus;
            }
        }
        for (_, job) in state.queue() {
            let (requested, mut lead) = (job.facts.request.min, lead_of(job));
            if remaining_s(state, job, requested).is_some_and(|left_s| left_s <= lead) {
                accrued += 1.0;
            } else if requested <= released {
                released -= requested;
                lead += dt;
                accrued += 1.0;
            }
            self.leads.insert(job.arrival, lead);
        }
        accrued
    }
}

/// The remaining run time of a job on this number of GPUs under the time aim, s.
fn remaining_s(state: &ClusterState, job: &Job, gpus: u32) -> Option<f64> {
    let unit = job.unit_rate()?;
    let points = job.operating_points.as_ref()?.with_gpus(gpus);
    let rate = points.iter().map(|point| point.steps_per_s).max_by(f64::total_cmp)?;
    Some(remaining_work(state, job, unit).left_s * unit / rate)
}

/// Healthy GPUs without jobs.
fn idle_gpus(state: &ClusterState) -> u32 {
    state.nodes().iter().map(|node| (node.facts.healthy & !node.occupied).count_ones()).sum()
}

/// The share of its speed that a running job loses relative to the time aim; `None` where speeds are unknown.
/// GPUs that the time aim would add are removed from `free`.
fn loss(state: &ClusterState, job: &Job, free: &mut u32) -> Option<f64> {
    let gpus = job.state.gpus()?.gpu_count();
    let points = job.operating_points_on(state.gpu_type_of(job)?)?;
    let own = running_rate(state, job)?;
    let reachable = points.points().iter().filter(|point| point.gpus <= gpus + *free);
    let best = reachable.max_by(|a, b| a.steps_per_s.total_cmp(&b.steps_per_s))?;
    *free -= best.gpus.saturating_sub(gpus);
    Some((1.0 - own / best.steps_per_s).clamp(0.0, 1.0))
}
