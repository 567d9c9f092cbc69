//! Jobs that the site's scheduler runs: their starts, GPUs and nodes, as its service reports them.
//!
//! A job placed by the site has no place in the placer's queue. It enters the cluster's state when its nodes
//! report it as running, with the GPUs that it has there.
//!
//! A placed job may run without an order as well: an administrator has released it, or the site's scheduler
//! has started it again. It is adopted where it runs. If the site's scheduler has chosen other GPUs than
//! ordered, those that it has count.

use wattle_common::NodeId;
use wattle_common::job::{JobPhase, JobSpec, NodeShare};
use wattle_common::messages::{JobRecord, LaunchState, LaunchedJob, SiteNode};
use wattle_common::topology::GPUS_PER_NODE_MAX;

use crate::live::Turn;
use crate::live::adoption::reported::Newest;
use crate::live::job_records::JobRecords;
use crate::live::nodes::Nodes;
use crate::state::node::HostCapacity;

/// Whether the site's scheduler chooses the start and the GPUs of a job.
pub(super) fn placed_by_site(spec: &JobSpec) -> bool {
    spec.site.as_ref().is_some_and(|site| site.placed_by_site)
}

/// What a report of the site's scheduler changes about a job.
enum Change {
    /// It runs without an order of this attempt.
    Started,
    /// It has other GPUs than recorded.
    Moved,
}

impl JobRecords {
    /// Takes over the starts and the GPUs that a node of the site's scheduler reports.
    pub(super) fn follow_site(&mut self, turn: &mut Turn<'_>, node: &NodeId, nodes: &mut Nodes) {
        let Some(report) = nodes.launch_report(node) else { return };
        if report.site.is_none() {
            return;
        }
        let followed = |run: &&LaunchedJob| run.state != LaunchState::Stopping;
        let runs: Vec<LaunchedJob> = report.jobs.iter().filter(followed).cloned().collect();
        for run in runs {
            let Some(record) = self.get(&run.job) else {
                continue;
            };
            let Some(site) = record.spec.site.as_ref().filter(|_| !record.phase.is_final()) else {
                continue;
            };
            let width = site.nodes.unwrap_or(1) as usize;
            let newest = Newest::of(record, run.attempt, nodes.launch_reports());
            // The reports of its other nodes follow.
            if newest.runs.len() < width {
                continue;
            }
            if let Some(end) = newest.end() {
                // A short job, or one that ran while the placer was away. The end of a recorded attempt is read
                // from the reports of its nodes.
                let is_unrecorded = site.placed_by_site
                    && record.phase == JobPhase::Queued
                    && newest.attempt > record.attempt;
                if is_unrecorded {
                    let reason = "it ended before its start was recorded";
                    self.record_end(turn, &run.job, &newest, end, reason.to_owned());
                    turn.outbox.plan_soon();
                }
                continue;
            }
            if run.state != LaunchState::Running {
                continue;
            }
            let Some(change) = change(record, &newest) else { continue };
            let requested = record.next_phase;
            let reason = match change {
                Change::Started => "the site's scheduler has started it there",
                Change::Moved => "the site's scheduler has given it these GPUs",
            };
            self.release(turn, &run.job);
            self.adopt(turn, &run.job, &newest, reason, nodes);
            if let Some(next) = requested {
                self.request_stop(turn, &run.job, next);
            }
            turn.outbox.plan_soon();
        }
    }
}

fn change(record: &JobRecord, newest: &Newest) -> Option<Change> {
    if record.phase == JobPhase::Queued {
        return (newest.attempt >= record.attempt).then_some(Change::Started);
    }
    if !record.phase.has_gpus() || newest.attempt < record.attempt {
        return None;
    }
    if newest.attempt > record.attempt {
        return Some(Change::Started);
    }
    let sorted = |shares: &mut Vec<NodeShare>| shares.sort();
    let mut recorded = record.placement.clone().unwrap_or_default().shares;
    let mut reported: Vec<NodeShare> = newest.runs.iter().map(|run| run.share.clone()).collect();
    sorted(&mut recorded);
    sorted(&mut reported);
    (recorded != reported).then_some(Change::Moved)
}

/// The GPUs of a node that may get jobs, of the healthy ones; `occupied` have jobs already.
pub(super) fn usable(site: Option<&SiteNode>, healthy: u64, occupied: u64) -> u64 {
    let Some(site) = site else { return healthy };
    let taken = site.gpus_taken.iter().filter(|gpu| **gpu < GPUS_PER_NODE_MAX);
    let taken = taken.fold(0_u64, |bits, gpu| bits | 1 << gpu);
    // Jobs that run on a drained node continue.
    let closed = if site.unavailable.is_some() { !occupied } else { 0 };
    healthy & !taken & !closed
}

/// CPUs and memory that the jobs of a node may hold.
pub(super) fn host_capacity(site: &SiteNode) -> HostCapacity {
    HostCapacity { cpus: site.cpus, memory_mib: site.memory_mib }
}
