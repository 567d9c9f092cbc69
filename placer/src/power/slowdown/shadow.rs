//! The cluster under the time aim, relative to the actual one: the delay that its jobs accrue
//! ([`super`]).

use std::collections::BTreeMap;

use crate::state::cluster::ClusterState;
use crate::state::gpu_set::GpuSet;
use crate::state::job::Job;
use crate::state::job_forecast::{remaining_work, running_rate};

/// The cluster under the time aim, relative to the actual one.
#[derive(Clone, Debug, Default)]
pub(super) struct Shadow {
    /// How far each job would be ahead, by its arrival number, seconds at its speed under the time aim.
    leads: BTreeMap<u64, f64>,
}

impl Shadow {
    /// Advances by `dt` seconds and returns the delay that all jobs accrue per second.
    pub(super) fn advance(&mut self, state: &ClusterState, dt: f64) -> f64 {
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
