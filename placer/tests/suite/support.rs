//! A cluster for tests of policies: its state, its limits and the policy's cache in one value.

#![allow(dead_code, reason = "each test binary uses some of it")]

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use wattle_placer::{ClusterState, Plan, PlanningInput, PlanningLimits, PolicyCache};

/// What a controller holds, without a controller.
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

    /// What a policy plans from.
    pub(crate) fn input(&self) -> PlanningInput<'_> {
        PlanningInput { state: &self.state, limits: &self.limits, cache: self.cache.as_ref() }
    }

    /// Lets time pass.
    pub(crate) fn pass(&mut self, span: Duration) {
        let then = self.now() + span;
        self.advance_to(then);
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
