//! A cluster for tests of policies: its state, its limits and the policy's cache in one value.

#![allow(dead_code, reason = "each test binary uses some of it")]

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use wattle_common::Power;
use wattle_common::job::{GpuRequest, GpuSetting};
use wattle_placer::{
    ClusterState, GpuPower, JobFacts, JobKey, NodeFacts, NodeWatts, Plan, PlanningInput,
    PlanningLimits, Policy, PolicyCache, State, solve,
};

/// More than ten times the cost of a restart on up to 16 GPUs: every running job may be moved.
pub(crate) const SETTLED: Duration = Duration::from_secs(400);

/// Cluster state, limits and cache without a controller.
#[derive(Clone, Debug, Default)]
pub(crate) struct Site {
    pub(crate) state: ClusterState,
    pub(crate) limits: PlanningLimits,
    pub(crate) cache: Option<PolicyCache>,
}

impl Site {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// The planning input.
    pub(crate) fn input(&self) -> PlanningInput<'_> {
        PlanningInput {
            state: &self.state,
            limits: &self.limits,
            sizes_max: None,
            cache: self.cache.as_ref(),
        }
    }

    /// The plan of a round.
    pub(crate) fn plan(&self, policy: &dyn Policy) -> Plan {
        solve(policy, self.input()).plan
    }

    /// Lets time pass.
    pub(crate) fn pass(&mut self, span: Duration) {
        let then = self.now() + span;
        self.advance_to(then);
    }

    /// The jobs that are stopping and still hold GPUs.
    pub(crate) fn stopping(&self) -> Vec<JobKey> {
        let stops = |job: &wattle_placer::Job| matches!(job.state, State::Stopping { .. });
        self.running().filter(|(_, job)| stops(job)).map(|(key, _)| key).collect()
    }

    /// Completes all stops.
    pub(crate) fn complete_stops(&mut self) {
        self.stopping().into_iter().for_each(|key| self.job_stopped(key));
    }

    /// The number of GPUs and the setting of a job; none if it does not run.
    pub(crate) fn size(&self, key: JobKey) -> (u32, GpuSetting) {
        match &self.job(key).unwrap().state {
            State::Running { on, setting, .. } => (on.gpu_count(), *setting),
            _ => (0, GpuSetting::DEFAULT),
        }
    }

    /// Ends a job, whatever it was doing.
    pub(crate) fn end(&mut self, job: &str) {
        let key = self.job_key(&job.parse().unwrap()).unwrap();
        self.job_ended(key);
    }

    /// Applies a plan, and keeps the policy's cache.
    pub(crate) fn apply(&mut self, plan: &Plan) {
        plan.apply_to(&mut self.state);
        self.cache.clone_from(&plan.cache);
    }
}

impl Deref for Site {
    type Target = ClusterState;

    fn deref(&self) -> &ClusterState {
        &self.state
    }
}

impl DerefMut for Site {
    fn deref_mut(&mut self) -> &mut ClusterState {
        &mut self.state
    }
}

/// A job that can stop, submitted at the start.
pub(crate) fn job_facts(name: &str, request: GpuRequest) -> JobFacts {
    JobFacts { can_stop: true, ..JobFacts::new(name.parse().unwrap(), request) }
}

/// A node of healthy GPUs, without known power.
pub(crate) fn node_facts(id: &str, gpu_type: &str, gpus: u32, memory_mib: u64) -> NodeFacts {
    NodeFacts {
        id: id.parse().unwrap(),
        gpu_type: gpu_type.to_owned(),
        gpus,
        memory_mib: Some(memory_mib),
        healthy: u64::MAX,
        watts: None,
        host: None,
        partitions: Vec::new(),
    }
}

/// The power of a node: one idle GPU, the host and the sleeping node in watts, and seconds to wake.
pub(crate) fn node_watts(gpu_idle: u64, host: u64, asleep: u64, wakes_in_s: u64) -> NodeWatts {
    NodeWatts {
        gpu_idle: Power::from_w(gpu_idle),
        host: Power::from_w(host),
        asleep: Power::from_w(asleep),
        wakes_in: Duration::from_secs(wakes_in_s),
    }
}

/// The power of a GPU type, watts: idle, the most, the lowest cap, and of the host beside each node's GPUs.
pub(crate) fn gpu_power(idle: u64, most: u64, cap_min: u64, host: u64) -> GpuPower {
    GpuPower {
        idle: Power::from_w(idle),
        most: Power::from_w(most),
        cap_min: Some(Power::from_w(cap_min)),
        host: Power::from_w(host),
    }
}
