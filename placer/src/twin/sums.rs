//! Sums over the jobs that completed in the cluster and in its twin, by day, user and project.

use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::sync::Arc;

use wattle_common::Timestamp;

use crate::state::job::JobFacts;

/// Most rows of the sums. Further users and projects are counted without a name.
const ROWS_MAX: usize = 20_000;

/// Whose job completed on which day.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    /// The day of its completion in the cluster: days since 1970-01-01, UTC.
    pub day: u64,
    /// Its user, if stated.
    pub user: Option<Arc<str>>,
    /// Its project, if it names one.
    pub project: Option<Arc<str>>,
}

impl Owner {
    pub(super) fn of(facts: &JobFacts, completed_at: Timestamp) -> Self {
        Self {
            day: completed_at.as_us() / 86_400_000_000,
            user: facts.user.clone(),
            project: facts.project.clone(),
        }
    }
}

/// Sums over jobs, each counted equally.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TwinSums {
    /// Number of jobs.
    pub jobs: u64,
    /// Time from submission to completion in the cluster, s.
    pub completion_s: f64,
    /// The same in the twin, s.
    pub completion_s_twin: f64,
    /// Time without GPUs in the cluster, s.
    pub wait_s: f64,
    /// The same in the twin, s.
    pub wait_s_twin: f64,
    /// GPU time in the twin, s.
    pub gpu_s_twin: f64,
    /// The part of it whose power is predicted, s.
    pub gpu_s_twin_predicted: f64,
    /// Energy of that part in the twin, J.
    pub gpu_j_twin: f64,
    /// The energy that its GPUs would have used without jobs, J.
    pub gpu_j_twin_idle: f64,
}

impl TwinSums {
    /// Mean completion time relative to that of the twin, minus 1; `None` without jobs.
    #[must_use]
    pub fn later(&self) -> Option<f64> {
        (self.completion_s_twin > 0.0).then(|| self.completion_s / self.completion_s_twin - 1.0)
    }
}

impl AddAssign for TwinSums {
    fn add_assign(&mut self, other: Self) {
        self.jobs += other.jobs;
        self.completion_s += other.completion_s;
        self.completion_s_twin += other.completion_s_twin;
        self.wait_s += other.wait_s;
        self.wait_s_twin += other.wait_s_twin;
        self.gpu_s_twin += other.gpu_s_twin;
        self.gpu_j_twin += other.gpu_j_twin;
        self.gpu_s_twin_predicted += other.gpu_s_twin_predicted;
        self.gpu_j_twin_idle += other.gpu_j_twin_idle;
    }
}

/// Sums by owner.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sums {
    by_owner: BTreeMap<Owner, TwinSums>,
}

impl Sums {
    /// Adds sums of an owner.
    pub fn add(&mut self, owner: Owner, sums: TwinSums) {
        let is_full = self.by_owner.len() >= ROWS_MAX && !self.by_owner.contains_key(&owner);
        let owner = if is_full { Owner { day: owner.day, ..Owner::default() } } else { owner };
        *self.by_owner.entry(owner).or_default() += sums;
    }

    /// The sums by owner.
    pub fn rows(&self) -> impl Iterator<Item = (&Owner, &TwinSums)> {
        self.by_owner.iter()
    }

    /// The sums over all owners.
    #[must_use]
    pub fn total(&self) -> TwinSums {
        let mut total = TwinSums::default();
        self.by_owner.values().for_each(|sums| total += *sums);
        total
    }
}
