//! Adoption of running jobs that the store has no record of.
//!
//! A node that has obeyed newer orders than the store contains shows that the store was lost or
//! restored from an older copy. Its running jobs without a current record are adopted: they keep
//! their GPUs and continue. The node gets no order before that, because an order without them would
//! stop them. Adoption waits until the other nodes of a job have reported too.
//!
//! Of an adopted job only its GPUs are known, not its command. So it is never moved, resized, shared
//! with other jobs or restarted; it fails if its node is lost. `wattle cancel` stops it.

use std::collections::{BTreeMap, BTreeSet};

use wattle_common::job::{GpuRequest, JobPhase, JobSpec, NodeShare, Placement};
use wattle_common::messages::{JobRecord, LaunchReport, LaunchState, LaunchedJob};
use wattle_common::{JobId, NodeId, Timestamp};

use crate::live::Placer;
use crate::live::lifecycle::PLACER;

/// Most jobs named in the alarm.
const NAMED_MAX: usize = 5;

/// An attempt that runs without a record.
struct Unrecorded {
    attempt: u32,
    since: Timestamp,
    shares: Vec<NodeShare>,
    /// Whether another job runs on one of its GPUs.
    is_shared: bool,
}

fn is_live(run: &LaunchedJob) -> bool {
    matches!(run.state, LaunchState::Running)
}

impl Placer {
    /// Notes whether the first report of a node has running jobs that the store has lost.
    pub(super) fn compare_with_store(&mut self, now: Timestamp, report: &LaunchReport) {
        let Some(state) = self.nodes.get(&report.node) else { return };
        let generation = state.desired.as_ref().map_or(0, |desired| desired.generation);
        if state.launch.is_some()
            || generation >= report.observed_generation
            || !report.jobs.iter().any(|run| self.is_unrecorded(run))
        {
            return;
        }
        let node = report.node.clone();
        self.node_mut(&node).adopts = true;
        self.adopt_at.get_or_insert(now + self.config.node_stale_after());
    }

    /// Whether a run has no record, or one of an earlier attempt.
    fn is_unrecorded(&self, run: &LaunchedJob) -> bool {
        is_live(run)
            && self.jobs.get(&run.job).is_none_or(|tracked| {
                tracked.record.phase == JobPhase::Queued && tracked.record.attempt < run.attempt
            })
    }

    /// Adopts the jobs of all nodes that wait for it.
    pub(super) fn adopt(&mut self, now: Timestamp) {
        self.adopt_at = None;
        let mut jobs: BTreeMap<JobId, Unrecorded> = BTreeMap::new();
        let nodes: Vec<NodeId> =
            self.nodes.iter().filter(|(_, state)| state.adopts).map(|(id, _)| id.clone()).collect();
        for node in &nodes {
            let Some((report, _)) = self.nodes.get(node).and_then(|state| state.launch.as_ref())
            else {
                continue;
            };
            for run in report.jobs.iter().filter(|run| self.is_unrecorded(run)) {
                let share = NodeShare { node: node.clone(), gpus: run.gpus.clone() };
                let is_shared = report.jobs.iter().any(|other| {
                    is_live(other)
                        && other.job != run.job
                        && other.gpus.iter().any(|gpu| run.gpus.contains(gpu))
                });
                let known = jobs.entry(run.job.clone()).or_insert_with(|| Unrecorded {
                    attempt: run.attempt,
                    since: run.since_us.min(now),
                    shares: Vec::new(),
                    is_shared: false,
                });
                if run.attempt > known.attempt {
                    (known.attempt, known.shares) = (run.attempt, Vec::new());
                }
                if run.attempt == known.attempt {
                    known.is_shared |= is_shared;
                    known.shares.push(share);
                }
            }
        }
        for (job, unrecorded) in &jobs {
            self.adopt_job(now, job, unrecorded);
        }
        for node in nodes {
            self.node_mut(&node).adopts = false;
            self.refresh(now, &node);
            self.to_order.insert(node);
        }
        self.alarm_adopted(&jobs);
        self.plan_soon(now);
    }

    fn adopt_job(&mut self, now: Timestamp, job: &JobId, unrecorded: &Unrecorded) {
        let known = self.jobs.get(job).map(|tracked| tracked.record.clone());
        let is_known = known.is_some();
        let record = JobRecord {
            phase: JobPhase::Running,
            phase_since_us: unrecorded.since,
            attempt: unrecorded.attempt,
            placement: Some(Placement { shares: unrecorded.shares.clone() }),
            started_at_us: Some(unrecorded.since),
            ..known.unwrap_or_else(|| adopted(job, unrecorded))
        };
        if is_known {
            if let Some(tracked) = self.jobs.get_mut(job) {
                tracked.record = record.clone();
            }
        } else {
            self.restore_job(&record);
        }
        self.restore_placement(&record);
        let reason = "its node runs it and the store has no record of this start".to_owned();
        let at = record.placement.map(|placement| placement.to_string()).unwrap_or_default();
        self.reason(now, job, PLACER, format!("adopted on {at}"), reason);
        self.to_reconcile.insert(job.clone());
    }

    fn alarm_adopted(&mut self, jobs: &BTreeMap<JobId, Unrecorded>) {
        if jobs.is_empty() {
            return;
        }
        let nodes: BTreeSet<&NodeId> =
            jobs.values().flat_map(|job| &job.shares).map(|share| &share.node).collect();
        let nodes: Vec<&str> = nodes.into_iter().map(NodeId::as_str).collect();
        let mut named: Vec<&str> = jobs.keys().take(NAMED_MAX).map(JobId::as_str).collect();
        if jobs.len() > NAMED_MAX {
            named.push("...");
        }
        self.alarms.push(format!(
            "the store has lost {} running jobs of {}: {}. They are adopted and continue, but queued \
             jobs, budgets and the commands of these jobs are lost: check the storage of the NATS \
             server; `wattle cancel` stops an adopted job",
            jobs.len(),
            nodes.join(", "),
            named.join(", "),
        ));
    }
}

/// The record of a job of which only the runs are known.
fn adopted(job: &JobId, unrecorded: &Unrecorded) -> JobRecord {
    let gpus = unrecorded.shares.iter().map(|share| share.gpus.len() as u32).sum();
    let spec = JobSpec {
        job: job.clone(),
        name: job.to_string(),
        user: None,
        project: None,
        workload: None,
        gpus: GpuRequest { min: gpus, max: gpus },
        exclusive: !unrecorded.is_shared,
        consents_to_sharing: unrecorded.is_shared,
        max_slowdown_permille: None,
        priority: 0,
        deadline_at_us: None,
        slack_ms: None,
        duration_ms_estimate: None,
        memory_mib_max: None,
        gpu_type: None,
        checkpoint_signal: None,
        command: Vec::new(),
        environment: Vec::new(),
        working_dir: None,
        submitted_at_us: unrecorded.since,
    };
    JobRecord::queued(spec, unrecorded.since)
}
