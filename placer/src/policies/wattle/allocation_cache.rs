//! The last allocation among all jobs, which stays in force for a while.
//!
//! One job more or less among many changes the other jobs' allocation very little, so the policy does not
//! solve from scratch at every event. The cache holds the allocation, its prices and the conditions under
//! which it was made. It travels with the plan as a [`crate::plan::input::PolicyCache`], so the same input
//! still gives the same plan; without it (after a restart) the policy solves from scratch.

use std::collections::BTreeMap;
use std::sync::Arc;

use wattle_common::{Power, Timestamp};

use crate::allocation::transition::Target;
use crate::plan::input::PlanningInput;
use crate::policies::wattle::joint_curve::SharedJointCurves;
use crate::policies::wattle::market::ClearedMarket;
use crate::power::bounds::PowerBounds;
use crate::power::correction::PowerFactors;
use crate::power::promises::Promises;
use crate::state::cluster::ClusterState;
use crate::state::gpu_set::JobKey;
use crate::state::job::Job;

/// An allocation and the conditions under which it was made.
#[derive(Clone, Debug)]
pub(super) struct AllocationCache {
    /// When it was made.
    pub(super) at: Timestamp,
    /// From when on any change leads to a full round.
    pub(super) next_full_round: NextFullRound,
    /// Whether the remaining work of some job was estimated, so that a later round differs in any case.
    pub(super) estimates_work: bool,
    /// Number of jobs that had ever arrived.
    pub(super) arrivals: u64,
    /// Number of jobs present; [`usize::MAX`] once anything else has changed.
    pub(super) jobs: usize,
    pub(super) conditions: Conditions,
    /// [`ClusterState::surface_revision`] when it was made.
    pub(super) surface_revision: u64,
    /// The targets of the full round, then those of later rounds.
    pub(super) grants: Vec<Arc<Grants>>,
    /// The price of power that its plan states, s/J.
    pub(super) power_price: f64,
    /// By GPU type.
    pub(super) markets: BTreeMap<String, ClearedMarket>,
    /// By GPU type.
    pub(super) joint_curves: BTreeMap<String, SharedJointCurves>,
}

/// When the next full round is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NextFullRound {
    pub(super) while_a_job_waits: Timestamp,
    /// Not earlier than that.
    pub(super) while_no_job_waits: Timestamp,
}

impl AllocationCache {
    /// Records that the allocation is no longer the one of the full round.
    pub(super) const fn mark_changed(&mut self) {
        self.jobs = usize::MAX;
    }
}

/// The targets of one round.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Grants {
    targets: Vec<Target>,
    /// The arrival numbers of all jobs of all targets: a key may be given to another job.
    arrivals: Vec<u64>,
}

impl Grants {
    pub(super) fn new(state: &ClusterState, targets: Vec<Target>) -> Arc<Self> {
        let arrival = |&key: &JobKey| state.job(key).map_or(u64::MAX, |job| job.arrival);
        let arrivals = targets.iter().flat_map(|target| &target.jobs).map(arrival).collect();
        Arc::new(Self { targets, arrivals })
    }

    /// Number of targets.
    pub(super) fn len(&self) -> usize {
        self.targets.len()
    }

    /// The targets with their jobs; `None` for jobs that have left.
    pub(super) fn members<'a>(
        &'a self,
        state: &'a ClusterState,
    ) -> impl Iterator<Item = (&'a Target, impl Iterator<Item = (JobKey, Option<&'a Job>)> + Clone)>
    {
        let mut arrivals = self.arrivals.as_slice();
        self.targets.iter().map(move |target| {
            let (here, rest) = arrivals.split_at(target.jobs.len());
            arrivals = rest;
            let member = move |(&key, &arrival): (&JobKey, &u64)| {
                (key, state.job(key).filter(|job| job.arrival == arrival))
            };
            (target, target.jobs.iter().zip(here).map(member))
        })
    }
}

/// Everything apart from jobs that an allocation depends on.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Conditions {
    price: f64,
    price_now: f64,
    power_max: Option<Power>,
    power_bounds: Arc<PowerBounds>,
    power_factors: Arc<PowerFactors>,
    promises: Arc<Promises>,
    tenants_max: u32,
    nodes_sleep: bool,
    allocation_revision: u64,
}

impl Conditions {
    pub(super) fn of(input: PlanningInput<'_>) -> Self {
        Self {
            price: input.limits.price,
            price_now: input.limits.price_now(),
            power_max: input.limits.power_max,
            power_bounds: Arc::clone(&input.limits.power_bounds),
            power_factors: Arc::clone(&input.limits.power_factors),
            promises: Arc::clone(&input.limits.promises),
            tenants_max: input.limits.tenants_max,
            nodes_sleep: input.limits.nodes_sleep,
            allocation_revision: input.state.allocation_revision(),
        }
    }
}
