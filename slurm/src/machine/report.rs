//! The states of all nodes, for their reports.

use std::collections::{BTreeMap, BTreeSet};

use wattle_common::messages::{LaunchedJob, SiteNode};
use wattle_common::{GpuIndex, JobId, NodeId, Timestamp};
use wattle_site::report::{is_live, launched_on, refused};
use wattle_site::{NodeState, Status};

use super::{Action, Found, SlurmMachine};
use crate::intake;
use crate::view::{SlurmNode, SlurmState, SlurmView};

/// Why an order for a job that Slurm does not have is refused.
const NOT_SLURMS: &str = "Slurm starts the jobs of this node: submit it with sbatch";

impl SlurmMachine {
    /// Reports every node that has changed, or whose heartbeat is due.
    ///
    /// Nothing is reported without a view of Slurm. While Slurm does not answer, the last state is repeated:
    /// slurmd and the jobs continue without slurmctld.
    pub(super) fn report(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        let Some(Found { view, status }) = &self.found else { return };
        let state = |(node, slurm_node): (&NodeId, &SlurmNode)| {
            let jobs = self.jobs_on(node, status);
            NodeState {
                node: node.clone(),
                observed_generation: self
                    .state
                    .obeyed
                    .get(node)
                    .map_or(0, |order| order.generation),
                site: self.site_node(now, view, node, slurm_node, &jobs),
                jobs,
            }
        };
        let nodes = view.nodes.iter().map(state).collect();
        out.extend(self.reports.update(now, nodes).into_iter().map(Action::Report));
    }

    fn jobs_on(&self, node: &NodeId, status: &BTreeMap<JobId, Status>) -> Vec<LaunchedJob> {
        let ordered = self.orders.on(node);
        let mut jobs = launched_on(node, ordered, status);
        let foreign = ordered.iter().filter(|order| {
            let known = self.records.get(&order.job);
            known.is_some_and(|known| !known.is_site)
        });
        jobs.extend(foreign.map(|order| refused(order, NOT_SLURMS)));
        jobs
    }

    fn site_node(
        &self,
        now: Timestamp,
        view: &SlurmView,
        node: &NodeId,
        slurm_node: &SlurmNode,
        reported: &[LaunchedJob],
    ) -> SiteNode {
        let is_reported = |id: u32| {
            reported.iter().any(|job| is_live(&job.state) && intake::slurm_id(&job.job) == Some(id))
        };
        // A job that boots its nodes is not reported, and its GPUs are those of its order.
        let is_expected = |id: u32| {
            let mut ordered = self.orders.on(node).iter();
            ordered.any(|order| intake::slurm_id(&order.job) == Some(id))
        };
        let (mut cpus, mut memory_mib) = (0_u32, 0_u32);
        let mut taken: BTreeSet<GpuIndex> = BTreeSet::new();
        for job in view.jobs.values().filter(|job| !job.state.is_final()) {
            let Some(share) = job.on.iter().find(|share| share.node == *node) else { continue };
            let is_known = is_reported(job.id)
                || (job.state == SlurmState::Configuring && is_expected(job.id));
            if is_known {
                let gpus = share.gpus.len() as u32;
                cpus = cpus.saturating_add(job.needs.cpus_with(gpus));
                memory_mib = memory_mib.saturating_add(job.needs.memory_mib_with(gpus));
            } else {
                taken.extend(&share.gpus);
            }
        }
        // A GPU that a reported job holds is not taken, although a foreign job shares it.
        for job in reported {
            if is_live(&job.state) {
                job.gpus.iter().for_each(|gpu| {
                    taken.remove(gpu);
                });
            }
        }
        taken.extend(self.leaked(now, node));
        let foreign = |allocated: u32, own: u32| allocated.saturating_sub(own);
        SiteNode {
            unavailable: slurm_node.unavailable.clone(),
            asleep: slurm_node.asleep,
            partitions: slurm_node.partitions.clone(),
            cpus: slurm_node.cpus.saturating_sub(foreign(slurm_node.cpus_allocated, cpus)),
            memory_mib: slurm_node
                .memory_mib
                .saturating_sub(foreign(slurm_node.memory_mib_allocated, memory_mib)),
            gpus_taken: taken.into_iter().collect(),
        }
    }
}
