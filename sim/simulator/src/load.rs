//! Offered load of a scenario, and changes of its arrivals.
//!
//! The offered load is the GPU time of the jobs on the requested GPUs without co-tenants, as a
//! share of the cluster's GPU time from the first arrival to the last. Setting a load scales the
//! arrival times; every job keeps its work and the time from its arrival to its deadline.

use std::time::Duration;

use wattle_common::rng::Stream;
use wattle_world::World;

use crate::scenario::{Scenario, SimJob, Work};

/// Why a load cannot be set.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum LoadError {
    /// The load is invalid.
    #[error("invalid load {load}; give a number above 0, as in 0.8")]
    NoLoad {
        /// The given load.
        load: f64,
    },
    /// The arrivals have no extent.
    #[error("all jobs arrive at once or have no run time, so no load can be set; leave it out")]
    AllAtOnce,
    /// The last arrival would be too late.
    #[error("at a load of {load} the last job would arrive after more than a thousand years")]
    TooLong {
        /// The given load.
        load: f64,
    },
}

impl Scenario {
    /// The GPU time of the jobs on the requested GPUs without co-tenants, as a share of the
    /// cluster's GPU time from the first arrival to the last. `None` where all arrive at once. Jobs
    /// with more GPUs than the cluster has of one type are rejected by every policy and do not
    /// count.
    ///
    /// Work in steps is timed on the cluster's first GPU type, on as few nodes as possible.
    #[must_use]
    pub fn offered_load(&self, world: &World) -> Option<f64> {
        let gpu_s: f64 = (self.jobs.iter().filter(|job| self.can_hold(job)))
            .filter_map(|job| self.gpu_seconds(world, job))
            .sum();
        let span_s = self.arrivals()?.as_secs_f64();
        Some(gpu_s / (self.cluster.gpu_count() as f64 * span_s))
    }

    /// Whether the cluster has enough GPUs of one type, of the required type where the job has one.
    fn can_hold(&self, job: &SimJob) -> bool {
        let groups = self.cluster.groups();
        let of_kind = |kind: &str| -> u64 {
            let own = groups.iter().filter(|group| group.gpu_type == kind);
            own.map(|group| u64::from(group.nodes) * u64::from(group.gpus_per_node)).sum()
        };
        let mut kinds = groups.iter().map(|group| group.gpu_type.as_str());
        let own = |kind: &str| job.gpu_type.as_deref().is_none_or(|own| own == kind);
        kinds.any(|kind| own(kind) && of_kind(kind) >= u64::from(job.gpus.min))
    }

    /// GPU time of one job without co-tenants, seconds; `None` where the catalog lacks its workload
    /// or GPU type.
    fn gpu_seconds(&self, world: &World, job: &SimJob) -> Option<f64> {
        Some(f64::from(job.gpus.min) * self.run_time_s(world, job)?)
    }

    /// Run time of one job on the requested GPUs without co-tenants, seconds; `None` where the catalog lacks its
    /// workload or GPU type.
    pub(crate) fn run_time_s(&self, world: &World, job: &SimJob) -> Option<f64> {
        match job.work {
            Work::Lasts(span) => Some(span.as_secs_f64()),
            Work::Steps(steps) => {
                let group = self.cluster.groups().first()?;
                let gpu = world.gpu(&group.gpu_type)?;
                let nodes = job.gpus.min.div_ceil(group.gpus_per_node.max(1));
                let workload = world.workload(job.workload.as_str())?;
                Some(steps as f64 / workload.steps_per_s(gpu, job.gpus.min, nodes))
            }
        }
    }

    /// Time from the first arrival to the last; `None` where zero.
    pub(crate) fn arrivals(&self) -> Option<Duration> {
        let first = self.jobs.iter().map(|job| job.submit).min()?;
        let last = self.jobs.iter().map(|job| job.submit).max()?;
        Some(last - first).filter(|span| !span.is_zero())
    }

    /// Scales the arrival times to this offered load.
    ///
    /// # Errors
    /// Where `load` is invalid, or all jobs arrive at once.
    pub fn set_load(&mut self, world: &World, load: f64) -> Result<(), LoadError> {
        if !(load.is_finite() && load > 0.0) {
            return Err(LoadError::NoLoad { load });
        }
        let natural = self.offered_load(world).filter(|natural| *natural > 0.0);
        let stretch = natural.ok_or(LoadError::AllAtOnce)? / load;
        let first = self.jobs.iter().map(|job| job.submit).min().unwrap_or_default();
        /// A thousand years, as for a trace's own times.
        const SECONDS_MAX: f64 = 3.2e10;
        let span_s = self.arrivals().ok_or(LoadError::AllAtOnce)?.as_secs_f64() * stretch;
        if span_s > SECONDS_MAX {
            return Err(LoadError::TooLong { load });
        }
        for job in &mut self.jobs {
            let since = (job.submit - first).as_micros() as f64 * stretch;
            job.arrives(first + Duration::from_micros(since.round() as u64));
        }
        self.load = self.offered_load(world);
        Ok(())
    }

    /// Gives the arrivals to the jobs in another order, which follows from `order` alone; order 0
    /// is the trace's own.
    ///
    /// The times of arrival stay, each job is whole, and its deadline stays as far from its
    /// arrival. The load is unchanged, which shows the effect of the order of arrivals.
    pub fn set_order(&mut self, order: u64) {
        if order == 0 {
            return;
        }
        let times: Vec<Duration> = self.jobs.iter().map(|job| job.submit).collect();
        let mut stream = Stream::new(order, "order");
        // Every order is as likely (Fisher and Yates).
        for i in (1..self.jobs.len()).rev() {
            self.jobs.swap(i, stream.below(i as u64 + 1) as usize);
        }
        for (job, at) in self.jobs.iter_mut().zip(times) {
            job.arrives(at);
        }
    }
}

impl SimJob {
    /// Moves its arrival, and its deadline with it.
    fn arrives(&mut self, at: Duration) {
        let before = std::mem::replace(&mut self.submit, at);
        // A trace may hold a deadline before the arrival: it stays as long past.
        self.deadline = self.deadline.map(|deadline| (deadline + at).saturating_sub(before));
    }
}
