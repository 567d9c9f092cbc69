//! The reports of all nodes: at each change, and as a heartbeat.

use std::collections::BTreeMap;
use std::time::Duration;

use wattle_common::job::NodeShare;
use wattle_common::messages::{
    DesiredJob, JobProcesses, LaunchReport, LaunchState, LaunchedJob, SiteNode,
};
use wattle_common::{AdmissionId, GpuIndex, JobId, NodeId, Timestamp};

/// The state of a job's newest attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// The submission of its record; absent: an earlier version accepted it.
    pub admission: Option<AdmissionId>,
    /// The attempt.
    pub attempt: u32,
    /// Its state.
    pub state: LaunchState,
    /// How its processes are recognised on its nodes while they run.
    pub processes: JobProcesses,
    /// The GPUs that the job holds on each node, or held until an end that no order follows; empty: those of
    /// its order.
    pub on: Vec<NodeShare>,
    /// When it entered the state.
    pub since: Timestamp,
    /// Where its output is.
    pub log_path: String,
}

impl Status {
    /// Whether the job has processes.
    const fn is_live(&self) -> bool {
        is_live(&self.state)
    }

    /// The GPUs of the attempt on a node; `None` if it is not to be reported there. `order`: of this attempt.
    fn gpus_on(&self, node: &NodeId, order: Option<&DesiredJob>) -> Option<Vec<GpuIndex>> {
        // A job whose processes end may hold its node without GPUs.
        let is_ordered = !self.is_live() || self.on.iter().all(|share| share.gpus.is_empty());
        if let Some(order) = order.filter(|_| is_ordered) {
            return Some(order.gpus.clone());
        }
        let share = self.on.iter().find(|share| share.node == *node)?;
        Some(share.gpus.clone()).filter(|gpus| !gpus.is_empty())
    }
}

/// Whether a job in this state has processes.
#[must_use]
pub const fn is_live(state: &LaunchState) -> bool {
    matches!(state, LaunchState::Running | LaunchState::Stopping)
}

/// Whether an order is of the attempt that a status describes.
fn is_of(order: &DesiredJob, status: &Status) -> bool {
    (&order.admission, order.attempt) == (&status.admission, status.attempt)
}

/// The jobs that a node reports; `ordered`: those of its desired state.
#[must_use]
pub fn launched_on(
    node: &NodeId,
    ordered: &[DesiredJob],
    status: &BTreeMap<JobId, Status>,
) -> Vec<LaunchedJob> {
    let launched = |(id, status): (&JobId, &Status)| {
        let order = ordered.iter().find(|job| job.job == *id);
        let gpus = status.gpus_on(node, order.filter(|order| is_of(order, status)))?;
        Some(LaunchedJob {
            job: id.clone(),
            admission: status.admission.clone(),
            attempt: status.attempt,
            gpus,
            state: status.state.clone(),
            processes: status.is_live().then(|| status.processes.clone()),
            since_us: status.since,
            log_path: status.log_path.clone(),
        })
    };
    status.iter().filter_map(launched).collect()
}

/// The refusal of an order that the site's scheduler cannot carry out; `error` has the remedy.
#[must_use]
pub fn refused(order: &DesiredJob, error: &str) -> LaunchedJob {
    LaunchedJob {
        job: order.job.clone(),
        admission: order.admission.clone(),
        attempt: order.attempt,
        gpus: order.gpus.clone(),
        state: LaunchState::refused(error.to_owned()),
        processes: None,
        since_us: Timestamp::EPOCH,
        log_path: String::new(),
    }
}

/// What a node reports.
#[derive(Clone, Debug)]
pub struct NodeState {
    /// The node.
    pub node: NodeId,
    /// The generation of its desired state that is obeyed; 0 if none is.
    pub observed_generation: u64,
    /// Its jobs.
    pub jobs: Vec<LaunchedJob>,
    /// The node in the site's scheduler.
    pub site: SiteNode,
}

/// The last report of a node.
#[derive(Debug)]
struct Reported {
    jobs: Vec<LaunchedJob>,
    site: SiteNode,
    /// Its time.
    at: Timestamp,
    /// When it is repeated.
    due_at: Timestamp,
}

/// The last report of each node, and when the next one is due.
#[derive(Debug)]
pub struct Reports {
    instance: String,
    heartbeat: Duration,
    nodes: BTreeMap<NodeId, Reported>,
    wake_at: Option<Timestamp>,
}

impl Reports {
    /// Without a report; `instance`: this process, `heartbeat`: the interval while nothing changes.
    #[must_use]
    pub const fn new(instance: String, heartbeat: Duration) -> Self {
        Self { instance, heartbeat, nodes: BTreeMap::new(), wake_at: None }
    }

    /// Has the next update report this node, because a new generation is obeyed.
    pub fn make_due(&mut self, now: Timestamp, node: &NodeId) {
        if let Some(reported) = self.nodes.get_mut(node) {
            reported.due_at = now;
        }
    }

    /// The reports of the nodes that have changed or whose heartbeat is due. `nodes` are all that the site's
    /// scheduler has: others are forgotten.
    pub fn update(&mut self, now: Timestamp, nodes: Vec<NodeState>) -> Vec<LaunchReport> {
        let mut before = std::mem::take(&mut self.nodes);
        let mut reports = Vec::new();
        for NodeState { node, observed_generation, jobs, site } in nodes {
            let last = before.remove(&node);
            let at = now.advanced_past(last.as_ref().map(|last| last.at));
            let last =
                last.filter(|last| last.jobs == jobs && last.site == site && now < last.due_at);
            let reported = last.unwrap_or_else(|| {
                reports.push(LaunchReport {
                    node: node.clone(),
                    instance: self.instance.clone(),
                    at_us: at,
                    observed_generation,
                    jobs: jobs.clone(),
                    has_ended: false,
                    fault: None,
                    site: Some(site.clone()),
                });
                Reported { jobs, site, at, due_at: now + self.heartbeat }
            });
            self.nodes.insert(node, reported);
        }
        self.wake_at = self.nodes.values().map(|reported| reported.due_at).min();
        reports
    }

    /// When the first heartbeat is due, as of the last update.
    #[must_use]
    pub const fn next_wake(&self) -> Option<Timestamp> {
        self.wake_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_reported_when_it_changes_and_as_a_heartbeat() {
        let mut reports = Reports::new("slurm".to_owned(), Duration::from_secs(5));
        let node: NodeId = "n0".parse().unwrap();
        let state = |cpus| NodeState {
            node: node.clone(),
            observed_generation: 3,
            jobs: Vec::new(),
            site: SiteNode {
                unavailable: None,
                asleep: false,
                partitions: Vec::new(),
                cpus,
                memory_mib: 0,
                gpus_taken: Vec::new(),
            },
        };
        let mut count = |s, cpus| reports.update(Timestamp::from_s(s), vec![state(cpus)]).len();
        assert_eq!(
            [count(0, 8), count(4, 8), count(5, 8), count(6, 7), count(7, 7)],
            [1, 0, 1, 1, 0]
        );
        assert_eq!(reports.next_wake(), Some(Timestamp::from_s(11)));
        reports.make_due(Timestamp::from_s(8), &node);
        assert_eq!(
            reports.update(Timestamp::from_s(8), vec![state(7)]).len(),
            1,
            "a new generation"
        );
        // Two reports of one instant have different times.
        let again = reports.update(Timestamp::from_s(8), vec![state(6)]);
        assert!(again[0].at_us > Timestamp::from_s(8), "{again:?}");
        // A node that the scheduler has again is new.
        assert!(reports.update(Timestamp::from_s(9), Vec::new()).is_empty());
        assert_eq!(reports.update(Timestamp::from_s(10), vec![state(7)]).len(), 1);
    }
}
