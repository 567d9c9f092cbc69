//! GPUs that Slurm counts as used although no job has them.
//!
//! If slurmctld 22.05 was killed, and a job is cancelled before its nodes have registered with the new process,
//! slurmctld may keep the generic resources of that job. No job starts on such a GPU until slurmctld is
//! restarted, so the GPU is reported as taken.

use wattle_common::{GpuIndex, NodeId, Timestamp};

use super::look::{Look, Round};
use super::{Alarm, SlurmMachine};

impl SlurmMachine {
    /// Notes since when Slurm counts each GPU as used without a job. Jobs are read before nodes, so the GPU of a
    /// job that starts in between is without a job for one view.
    pub(super) fn find_leaks(&mut self, round: &mut Round<'_>) {
        let Look { now, view, .. } = *round.look;
        let has = |node: &NodeId, gpu: GpuIndex| {
            let on = view.jobs.values().filter(|job| !job.state.is_final()).flat_map(|job| &job.on);
            on.into_iter().any(|share| share.node == *node && share.gpus.contains(&gpu))
        };
        let all = view.nodes.iter().flat_map(|(node, slurm_node)| {
            slurm_node.gpus_used.iter().map(move |gpu| (node.clone(), *gpu))
        });
        // Of a job that is not readable neither nodes nor GPUs are known.
        let unused = all.filter(|(node, gpu)| view.unreadable.is_empty() && !has(node, *gpu));
        let before = std::mem::take(&mut self.memory.leaked_since);
        self.memory.leaked_since =
            unused.map(|gpu| (gpu.clone(), before.get(&gpu).copied().unwrap_or(now))).collect();
        let lasting: Vec<(NodeId, GpuIndex)> = self
            .memory
            .leaked_since
            .iter()
            .filter(|(_, since)| self.has_lasted(now, **since))
            .map(|(gpu, _)| gpu.clone())
            .collect();
        for (node, gpu) in lasting {
            self.alarm(now, Alarm::Leaked { node, gpu }, round.out);
        }
    }

    /// The GPUs of a node that are used without a job for longer than a start takes.
    pub(super) fn leaked(&self, now: Timestamp, node: &NodeId) -> impl Iterator<Item = GpuIndex> {
        let on_node = self.memory.leaked_since.iter().filter(move |((other, _), _)| other == node);
        let lasting = on_node.filter(move |(_, since)| self.has_lasted(now, **since));
        lasting.map(|((_, gpu), _)| *gpu).collect::<Vec<_>>().into_iter()
    }

    fn has_lasted(&self, now: Timestamp, since: Timestamp) -> bool {
        now.since(since) >= self.settings.start_patience
    }
}
