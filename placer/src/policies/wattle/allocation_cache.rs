//! The last allocation among all jobs, which stays valid for a while.
//!
//! One job more or less among many changes the other jobs' allocation very little, so the policy does
//! not solve from scratch at every event. The cache holds the allocation, its prices and the
//! conditions under which it was made. It travels with the plan as a
//! [`crate::plan::input::PolicyCache`], so the same input still gives the same plan; without it (after
//! a restart) the policy solves from scratch.

use std::collections::BTreeMap;
use std::sync::Arc;

use wattle_common::Timestamp;

use crate::allocation::transition::Target;
use crate::plan::input::PlanningInput;
use crate::state::cluster::ClusterState;
use crate::state::gpu_set::JobKey;
use crate::state::job::Job;

/// What was last shared out.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct AllocationCache {
    /// When.
    pub at: Timestamp,
    /// When it is to be weighed anew, if anything happens to anybody.
    pub until: Timestamp,
    /// Whether it is to be looked at again some time, even if nothing happens.
    pub(crate) look_again: bool,
    /// How many jobs had ever come.
    pub(crate) arrivals: u64,
    /// How many jobs there were, if nothing has changed since but they.
    pub(crate) jobs: usize,
    pub(crate) under: Under,
    /// [`ClusterState::surface_revision`] when it was made.
    pub(crate) surface_revision: u64,
    /// Who was given GPUs, then and since.
    pub(crate) given: Vec<Arc<Given>>,
    /// By kind of GPU.
    pub(crate) cleared: BTreeMap<String, Cleared>,
}

impl AllocationCache {
    /// It is not any more as it was when everybody was weighed.
    pub(crate) const fn something_changed(&mut self) {
        self.jobs = usize::MAX;
    }
}

/// Targets given at one time.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Given {
    targets: Vec<Target>,
    /// The places in the queue of all jobs of all targets: a key may be given to another job.
    places: Vec<u64>,
}

impl Given {
    pub(crate) fn new(state: &ClusterState, targets: Vec<Target>) -> Arc<Self> {
        let place = |&key: &JobKey| state.job(key).map_or(u64::MAX, |job| job.arrival);
        let places = targets.iter().flat_map(|target| &target.jobs).map(place).collect();
        Arc::new(Self { targets, places })
    }

    /// How many targets.
    pub(crate) fn len(&self) -> usize {
        self.targets.len()
    }

    /// The targets with their jobs, `None` for those that are there no more.
    pub(crate) fn members<'a>(
        &'a self,
        state: &'a ClusterState,
    ) -> impl Iterator<Item = (&'a Target, impl Iterator<Item = (JobKey, Option<&'a Job>)> + Clone)>
    {
        let mut places = self.places.as_slice();
        self.targets.iter().map(move |target| {
            let (here, rest) = places.split_at(target.jobs.len());
            places = rest;
            let member = move |(&key, &place): (&JobKey, &u64)| {
                (key, state.job(key).filter(|job| job.arrival == place))
            };
            (target, target.jobs.iter().zip(here).map(member))
        })
    }
}

/// The market of one kind of GPU as it cleared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cleared {
    /// What a GPU-second is worth, s.
    pub(crate) price: f64,
    /// For how long that is remembered, s.
    pub(crate) tau_s: f64,
    /// The largest set that one job could have.
    pub(crate) most: u32,
}

/// Everything but jobs that weighs on what is shared out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Under {
    price: f64,
    price_now: f64,
    tenants_max: u32,
    nodes_sleep: bool,
    allocation_revision: u64,
}

impl Under {
    pub(crate) fn of(input: PlanningInput<'_>) -> Self {
        Self {
            price: input.limits.price,
            price_now: input.limits.price_now(),
            tenants_max: input.limits.tenants_max,
            nodes_sleep: input.limits.nodes_sleep,
            allocation_revision: input.state.allocation_revision(),
        }
    }
}
