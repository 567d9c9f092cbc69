//! The reports of all nodes.

use std::collections::BTreeSet;

use wattle_common::messages::{
    DesiredJob, JobProcesses, LaunchReport, LaunchState, LaunchedJob, SiteNode,
};
use wattle_common::{GpuIndex, JobId, NodeId, Timestamp};

use super::{Action, SlurmMachine, Status};
use crate::intake;
use crate::view::{SlurmNode, SlurmState, SlurmView};

/// The last report of a node.
#[derive(Clone, Debug)]
pub(super) struct Reported {
    content: (Vec<LaunchedJob>, SiteNode),
    /// When it is repeated.
    pub(super) due_at: Timestamp,
}

impl SlurmMachine {
    /// Reports every node that has changed, or whose heartbeat is due.
    ///
    /// Nothing is reported without a view of Slurm. While Slurm does not answer, the last state is repeated:
    /// slurmd and the jobs continue without slurmctld.
    pub(super) fn report(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        let Some(view) = self.view.take() else { return };
        self.reports.retain(|node, _| view.nodes.contains_key(node));
        for (node, slurm_node) in &view.nodes {
            let jobs = self.jobs_on(node);
            let site = self.site_node(now, &view, node, slurm_node, &jobs);
            let content = (jobs, site);
            let known = self.reports.get(node);
            if known.is_some_and(|known| known.content == content && now < known.due_at) {
                continue;
            }
            out.push(Action::Report(LaunchReport {
                node: node.clone(),
                instance: self.instance.clone(),
                at_us: now,
                observed_generation: self
                    .state
                    .obeyed
                    .get(node)
                    .map_or(0, |order| order.generation),
                jobs: content.0.clone(),
                has_ended: false,
                site: Some(content.1.clone()),
            }));
            let due_at = now + self.settings.heartbeat;
            self.reports.insert(node.clone(), Reported { content, due_at });
        }
        self.wake_at = self.reports.values().map(|reported| reported.due_at).min();
        self.view = Some(view);
    }

    fn jobs_on(&self, node: &NodeId) -> Vec<LaunchedJob> {
        let ordered = self.desired.get(node).map_or(&[][..], |desired| &desired.jobs);
        let mut jobs = Vec::new();
        for (id, status) in &self.status {
            let order = ordered.iter().find(|job| job.job == *id);
            let order = order.filter(|job| job.attempt == status.attempt);
            if let Some(gpus) = gpus_on(node, status, order) {
                jobs.push(launched(id, status, gpus));
            }
        }
        let is_foreign = |job: &&DesiredJob| {
            let known = self.records.get(&job.job);
            known.is_some_and(|known| !known.is_site)
        };
        jobs.extend(ordered.iter().filter(is_foreign).map(|job| LaunchedJob {
            job: job.job.clone(),
            attempt: job.attempt,
            gpus: job.gpus.clone(),
            state: LaunchState::Refused {
                error: "Slurm starts the jobs of this node: submit it with sbatch".to_owned(),
            },
            processes: None,
            since_us: Timestamp::EPOCH,
            log_path: String::new(),
        }));
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
            reported.iter().any(|job| {
                let is_live = matches!(job.state, LaunchState::Running | LaunchState::Stopping);
                is_live && intake::slurm_id(&job.job) == Some(id)
            })
        };
        // A job that boots its nodes is not reported, and its GPUs are those of its order.
        let is_expected = |id: u32| {
            let desired = self.desired.get(node);
            desired.is_some_and(|desired| {
                desired.jobs.iter().any(|job| intake::slurm_id(&job.job) == Some(id))
            })
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
            if matches!(job.state, LaunchState::Running | LaunchState::Stopping) {
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

/// The GPUs of a job's newest attempt on a node; `None` if it is not to be reported there.
fn gpus_on(node: &NodeId, status: &Status, order: Option<&DesiredJob>) -> Option<Vec<GpuIndex>> {
    let ordered = || order.map(|order| order.gpus.clone());
    let is_live = matches!(status.state, LaunchState::Running | LaunchState::Stopping);
    // A job whose processes end may hold its node without GPUs.
    if !is_live || status.on.iter().all(|share| share.gpus.is_empty()) {
        return ordered();
    }
    let share = status.on.iter().find(|share| share.node == *node)?;
    Some(share.gpus.clone()).filter(|gpus| !gpus.is_empty())
}

fn launched(id: &JobId, status: &Status, gpus: Vec<GpuIndex>) -> LaunchedJob {
    let is_live = matches!(status.state, LaunchState::Running | LaunchState::Stopping);
    LaunchedJob {
        job: id.clone(),
        attempt: status.attempt,
        gpus,
        state: status.state.clone(),
        processes: is_live.then_some(JobProcesses::Slurm { job: status.slurm_id, uid: status.uid }),
        since_us: status.since,
        log_path: status.log_path.clone(),
    }
}
