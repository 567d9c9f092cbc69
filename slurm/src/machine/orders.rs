//! The desired states of all nodes, as one order for each job.

use std::collections::BTreeMap;

use wattle_common::bounds::{OrderRefused, OrderVersion, check_order};
use wattle_common::job::NodeShare;
use wattle_common::messages::NodeDesired;
use wattle_common::{JobId, Timestamp};

use super::{Action, Alarm, SlurmMachine};

/// What the desired states of all nodes order for a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JobOrder {
    /// Its newest attempt in any of them.
    pub(super) attempt: u32,
    /// The nodes and GPUs of the attempt.
    pub(super) shares: Vec<NodeShare>,
    /// Whether it must stop.
    pub(super) stop: bool,
    /// Whether the desired states of all its nodes agree.
    pub(super) complete: bool,
}

impl SlurmMachine {
    /// Keeps a desired state, unless it is older than the last one or absurd.
    pub(super) fn obey(&mut self, now: Timestamp, desired: NodeDesired, out: &mut Vec<Action>) {
        let node = desired.node.clone();
        let obeyed = self.state.obeyed.get(&node).copied();
        if let Err(refused) = check_order(&desired, obeyed, now, self.settings.lease_max) {
            let is_absurd = matches!(refused, OrderRefused::OutOfBounds(_));
            let known = self.refused_orders.insert(node.clone(), desired.generation);
            if is_absurd && known != Some(desired.generation) {
                self.alarm(now, Alarm::Order { node, error: refused.to_string() }, out);
            }
            return;
        }
        let version = OrderVersion::of(&desired);
        let is_renewed = obeyed.is_some_and(|obeyed| obeyed.generation == version.generation);
        self.state.obeyed.insert(node.clone(), version);
        self.desired.insert(node.clone(), desired);
        if !is_renewed {
            self.has_new_orders = true;
            if let Some(reported) = self.reports.get_mut(&node) {
                reported.due_at = now;
            }
        }
    }

    /// The order of each job.
    pub(super) fn orders(&self) -> BTreeMap<JobId, JobOrder> {
        let mut orders: BTreeMap<JobId, JobOrder> = BTreeMap::new();
        let mut named: BTreeMap<(&JobId, u32), usize> = BTreeMap::new();
        for desired in self.desired.values() {
            for (at, job) in desired.jobs.iter().enumerate() {
                // If a desired state names a job twice, the first counts.
                if desired.jobs[..at].iter().any(|earlier| earlier.job == job.job) {
                    continue;
                }
                let share = NodeShare { node: desired.node.clone(), gpus: job.gpus.clone() };
                let agrees = job.shares.contains(&share);
                *named.entry((&job.job, job.attempt)).or_default() += usize::from(agrees);
                let new = || JobOrder {
                    attempt: job.attempt,
                    shares: job.shares.clone(),
                    stop: job.stop,
                    complete: true,
                };
                let order = orders.entry(job.job.clone()).or_insert_with(new);
                if job.attempt > order.attempt {
                    *order = new();
                } else if job.attempt == order.attempt {
                    order.stop |= job.stop;
                    order.complete &= order.shares == job.shares;
                }
            }
        }
        for (job, order) in &mut orders {
            let count = named.get(&(job, order.attempt)).copied().unwrap_or(0);
            order.complete &= !order.shares.is_empty() && count == order.shares.len();
        }
        orders
    }
}
