//! The desired states of all nodes, as one order for each job.

use std::collections::BTreeMap;
use std::time::Duration;

use wattle_common::bounds::{OrderRefused, OrderVersion, check_order};
use wattle_common::job::NodeShare;
use wattle_common::messages::{DesiredJob, NodeDesired};
use wattle_common::{AdmissionId, GpuIndex, JobId, NodeId, Timestamp};

/// What the desired states of all nodes order for a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobOrder {
    /// Its newest submission in any of them; absent: an earlier version accepted it.
    pub admission: Option<AdmissionId>,
    /// The newest attempt of the submission.
    pub attempt: u32,
    /// The nodes and GPUs of the attempt.
    pub shares: Vec<NodeShare>,
    /// Whether it must stop.
    pub stop: bool,
    /// Whether the desired states of all its nodes agree.
    pub complete: bool,
}

/// The desired state of each node that is obeyed.
#[derive(Debug, Default)]
pub struct Orders {
    desired: BTreeMap<NodeId, NodeDesired>,
    /// The generation of each node that was refused last.
    refused: BTreeMap<NodeId, u64>,
    has_new: bool,
}

impl Orders {
    /// Keeps a desired state, and its version in `obeyed`, unless it is older than the last one or out of
    /// bounds. Returns whether its generation is new.
    ///
    /// # Errors
    /// If it is out of bounds, once for each generation.
    pub fn obey(
        &mut self,
        now: Timestamp,
        desired: NodeDesired,
        obeyed: &mut BTreeMap<NodeId, OrderVersion>,
        lease_max: Duration,
    ) -> Result<bool, OrderRefused> {
        let node = desired.node.clone();
        let last = obeyed.get(&node).copied();
        if let Err(refused) = check_order(&desired, last, now, lease_max) {
            let is_absurd = matches!(refused, OrderRefused::OutOfBounds(_));
            let known = self.refused.insert(node, desired.generation);
            let is_reported = !is_absurd || known == Some(desired.generation);
            return if is_reported { Ok(false) } else { Err(refused) };
        }
        let version = OrderVersion::of(&desired);
        let is_new = last.is_none_or(|last| last.generation != version.generation);
        self.has_new |= is_new;
        obeyed.insert(node.clone(), version);
        self.desired.insert(node, desired);
        Ok(is_new)
    }

    /// Whether a new generation was obeyed since the last call, so that the versions must be stored.
    pub fn take_new(&mut self) -> bool {
        std::mem::take(&mut self.has_new)
    }

    /// The jobs that a node is ordered to run or to stop.
    #[must_use]
    pub fn on(&self, node: &NodeId) -> &[DesiredJob] {
        self.desired.get(node).map_or(&[], |desired| &desired.jobs)
    }

    /// Whether a GPU is given to a job other than `id`, which is not to stop.
    #[must_use]
    pub fn is_shared(&self, node: &NodeId, gpu: GpuIndex, id: &JobId) -> bool {
        let mut jobs = self.on(node).iter();
        jobs.any(|job| job.job != *id && !job.stop && job.gpus.contains(&gpu))
    }

    /// The order of each job.
    #[must_use]
    pub fn of_jobs(&self) -> BTreeMap<JobId, JobOrder> {
        let mut orders: BTreeMap<JobId, JobOrder> = BTreeMap::new();
        let mut named: BTreeMap<(&JobId, &Option<AdmissionId>, u32), usize> = BTreeMap::new();
        for desired in self.desired.values() {
            for (at, job) in desired.jobs.iter().enumerate() {
                // If a desired state names a job twice, the first counts.
                if desired.jobs[..at].iter().any(|earlier| earlier.job == job.job) {
                    continue;
                }
                let share = NodeShare { node: desired.node.clone(), gpus: job.gpus.clone() };
                let agrees = job.shares.contains(&share);
                *named.entry((&job.job, &job.admission, job.attempt)).or_default() +=
                    usize::from(agrees);
                let new = || JobOrder {
                    admission: job.admission.clone(),
                    attempt: job.attempt,
                    shares: job.shares.clone(),
                    stop: job.stop,
                    complete: true,
                };
                let order = orders.entry(job.job.clone()).or_insert_with(new);
                let (run, known) =
                    ((&job.admission, job.attempt), (&order.admission, order.attempt));
                if run > known {
                    *order = new();
                } else if run == known {
                    order.stop |= job.stop;
                    order.complete &= order.shares == job.shares;
                }
            }
        }
        for (job, order) in &mut orders {
            let count = named.get(&(job, &order.admission, order.attempt)).copied().unwrap_or(0);
            order.complete &= !order.shares.is_empty() && count == order.shares.len();
        }
        orders
    }
}
