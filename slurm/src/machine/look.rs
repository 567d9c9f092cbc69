//! One look at Slurm: what is known at its start, and what it has decided so far.

use std::collections::{BTreeMap, BTreeSet};

use wattle_common::{GpuIndex, JobId, NodeId, Timestamp};
use wattle_site::{JobOrder, Status};

use super::Action;
use crate::view::{SlurmJob, SlurmState, SlurmView};

/// What is known when a look begins.
pub(super) struct Look<'a> {
    pub(super) now: Timestamp,
    pub(super) view: &'a SlurmView,
    /// The jobs of the view that are, or may become, Wattle's.
    pub(super) jobs: BTreeMap<JobId, &'a SlurmJob>,
    pub(super) orders: BTreeMap<JobId, JobOrder>,
}

/// A job of the look.
#[derive(Clone, Copy)]
pub(super) struct Case<'a> {
    pub(super) id: &'a JobId,
    pub(super) job: &'a SlurmJob,
    pub(super) order: Option<&'a JobOrder>,
}

impl Case<'_> {
    /// Whether it is ordered to stop.
    pub(super) fn stops(&self) -> bool {
        self.order.is_some_and(|order| order.stop)
    }
}

/// What the look has decided so far.
pub(super) struct Round<'a> {
    pub(super) look: &'a Look<'a>,
    pub(super) out: &'a mut Vec<Action>,
    /// Number of commands that count against the limit of a round.
    pub(super) commands: usize,
    /// Number of pending jobs that may get commands.
    pub(super) pending: usize,
    /// GPUs that jobs were given.
    pub(super) given: BTreeSet<(NodeId, GpuIndex)>,
    pub(super) to_hold: Vec<u32>,
    /// Jobs whose runs are requested, with the earliest time of one.
    pub(super) to_look_up: BTreeMap<JobId, Timestamp>,
    pub(super) status: BTreeMap<JobId, Status>,
}

impl<'a> Round<'a> {
    pub(super) fn new(look: &'a Look<'a>, out: &'a mut Vec<Action>) -> Self {
        let pending = look.jobs.values().filter(|job| job.state == SlurmState::Pending).count();
        Self {
            look,
            out,
            commands: 0,
            pending,
            given: BTreeSet::new(),
            to_hold: Vec::new(),
            to_look_up: BTreeMap::new(),
            status: BTreeMap::new(),
        }
    }
}
