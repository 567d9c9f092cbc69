//! Comparison of the records with the nodes' reports after the store was lost or restored from an older
//! copy.
//!
//! The store is older than the nodes if it has the mark of `wattle restore`, or if a node has obeyed newer
//! orders than the store contains. A node that differs gets no order before the comparison, because an
//! order from old records would stop its jobs. The comparison waits until the other nodes have reported
//! too; with the mark, all nodes are compared, and no job starts before that. Then, for each job:
//! * An attempt that runs and that the store does not know is adopted: it keeps its GPUs and continues.
//! * An attempt that has ended and that the store does not know is recorded with its end. It is not
//!   started again.
//! * An attempt that the store has as running, and that its node no longer knows, ended with an unknown
//!   result: the job fails with that reason.
//!
//! A launcher that reads an older order than the one it obeys reports also the ended jobs it remembers.
//!
//! Of a job without a record only its GPUs are known, not its command. So it is never moved, resized,
//! shared with other jobs or restarted; it fails if its node is lost. `wattle cancel` stops it.

pub(super) mod reported;

use std::collections::{BTreeMap, BTreeSet};

use wattle_common::bounds::CLOCK_TOLERANCE;
use wattle_common::job::{GpuRequest, JobPhase, JobSpec, Placement};
use wattle_common::messages::{JobRecord, LaunchReport, LaunchState, LaunchedJob, StoreRestored};
use wattle_common::{JobId, NodeId, Timestamp};

use self::reported::{End, Newest};
use crate::live::lifecycle::PLACER;
use crate::live::{Placer, has_gpus};

/// Most jobs named in an alarm.
const NAMED_MAX: usize = 5;

/// What the comparison changed.
#[derive(Default)]
struct Outcome {
    adopted: BTreeSet<JobId>,
    ended: BTreeSet<JobId>,
    unknown: BTreeSet<JobId>,
    nodes: BTreeSet<NodeId>,
}

impl Placer {
    /// Compares the records with all nodes before any order: the store was restored from a backup.
    pub(super) fn compare_all(&mut self, restored: Option<StoreRestored>, now: Timestamp) {
        let Some(restored) = restored else { return };
        self.restored = Some(restored);
        self.nodes.await_comparison_of_all();
        self.adopt_at = Some(now + self.config.node_stale_after());
    }

    /// Notes whether a node's stored report, or its first one since the placer's start, shows that the
    /// store is older than the node's state.
    pub(super) fn compare_with_store(&mut self, now: Timestamp, node: &NodeId, is_new: bool) {
        let Some(report) = self.nodes.launch_report(node).filter(|_| !self.nodes.is_compared(node))
        else {
            return;
        };
        let is_older = self.nodes.ordered_generation(node) < report.observed_generation
            && self.differs(report);
        if is_new {
            self.nodes.note_comparison(node);
        }
        if self.restored.is_some() {
            self.nodes.await_comparison(node);
            return;
        }
        if !is_older {
            return;
        }
        self.nodes.await_comparison(node);
        self.adopt_at.get_or_insert(now + self.config.node_stale_after());
    }

    /// Whether a node's report contradicts the records.
    fn differs(&self, report: &LaunchReport) -> bool {
        report.jobs.iter().any(|run| self.is_unrecorded(run))
            || self.jobs.on_node(&report.node).any(|job| {
                let attempt = self.jobs[job].attempt;
                !report.jobs.iter().any(|run| run.job == *job && run.attempt >= attempt)
            })
    }

    /// Whether a run has no record and is live, or is a later attempt than its record.
    fn is_unrecorded(&self, run: &LaunchedJob) -> bool {
        match self.jobs.get(&run.job) {
            None => matches!(run.state, LaunchState::Running),
            Some(record) => !record.phase.is_final() && record.attempt < run.attempt,
        }
    }

    /// Compares the records with the nodes that wait for it, and lets them have orders.
    pub(super) fn adopt(&mut self, now: Timestamp) {
        self.adopt_at = None;
        let waiting: Vec<NodeId> = self.nodes.awaiting_comparison().cloned().collect();
        // Only those that have reported since the placer's start.
        let has_reported = |node: &&NodeId| self.nodes.is_compared(node);
        let nodes: Vec<NodeId> = waiting.iter().filter(has_reported).cloned().collect();
        let newest = self.newest_attempts(&nodes);
        let mut outcome = Outcome { nodes: nodes.iter().cloned().collect(), ..Outcome::default() };
        // First all GPUs of outdated placements are released, because adopted jobs may hold them.
        let vanished = self.vanished(&nodes, &newest);
        let cancelled: BTreeSet<JobId> = newest
            .keys()
            .chain(&vanished)
            .filter(|job| {
                let record = self.jobs.get(job);
                record.is_some_and(|record| record.next_phase == Some(JobPhase::Cancelled))
            })
            .cloned()
            .collect();
        for job in newest.keys().chain(&vanished) {
            self.jobs.release(now, job, &mut self.controller);
        }
        for job in vanished {
            self.end_vanished(now, &job, cancelled.contains(&job));
            outcome.unknown.insert(job);
        }
        for (job, newest) in &newest {
            match newest.end() {
                None => {
                    let reason =
                        "its node runs it and the store has no record of this start".to_owned();
                    self.adopt_job(now, job, newest, reason);
                    outcome.adopted.insert(job.clone());
                    if cancelled.contains(job) {
                        self.jobs.request_stop(now, job, JobPhase::Cancelled, &mut self.controller);
                    }
                }
                Some(end) => {
                    self.record_end(now, job, newest, end);
                    outcome.ended.insert(job.clone());
                }
            }
        }
        for node in waiting {
            self.nodes.end_comparison(&node);
            self.refresh(now, &node);
        }
        self.alarm_outcome(&outcome);
        self.store_compared |= self.restored.take().is_some();
        self.outbox.plan_soon();
    }

    /// The newest attempts that the nodes report and the store does not know.
    fn newest_attempts(&self, nodes: &[NodeId]) -> BTreeMap<JobId, Newest> {
        let mut newest: BTreeMap<JobId, Newest> = BTreeMap::new();
        for node in nodes {
            let Some(report) = self.nodes.launch_report(node) else { continue };
            for run in report.jobs.iter().filter(|run| {
                self.is_unrecorded(run) || (!self.jobs.contains(&run.job) && self.is_later(run))
            }) {
                let known = newest.entry(run.job.clone()).or_default();
                known.add(run, report);
            }
        }
        // A job without a record that was preempted cannot be started again.
        newest.retain(|job, newest| {
            self.jobs.contains(job) || newest.end() != Some(End::Interrupted)
        });
        newest
    }

    /// Whether a run began or ended after the backup from which the store was restored.
    fn is_later(&self, run: &LaunchedJob) -> bool {
        self.restored.is_some_and(|restored| run.since_us + CLOCK_TOLERANCE > restored.backup_at_us)
    }

    /// Jobs that the store has on nodes which have obeyed newer orders and no longer know them.
    fn vanished(&self, nodes: &[NodeId], newest: &BTreeMap<JobId, Newest>) -> Vec<JobId> {
        let is_gone = |node: &NodeId, record: &JobRecord| {
            let report = self.nodes.launch_report(node).filter(|_| nodes.contains(node));
            report.is_some_and(|report| {
                let mut runs = report.jobs.iter();
                report.has_ended
                    && self.nodes.ordered_generation(node) < report.observed_generation
                    && !runs.any(|run| run.job == record.spec.job && run.attempt >= record.attempt)
            })
        };
        self.jobs
            .all()
            .filter(|record| has_gpus(record.phase) && !newest.contains_key(&record.spec.job))
            .filter(|record| {
                let shares = record.placement.iter().flat_map(|placed| &placed.shares);
                let mut nodes = shares.map(|share| &share.node).peekable();
                nodes.peek().is_some() && nodes.all(|node| is_gone(node, record))
            })
            .map(|record| record.spec.job.clone())
            .collect()
    }

    pub(super) fn adopt_job(
        &mut self,
        now: Timestamp,
        job: &JobId,
        newest: &Newest,
        reason: String,
    ) {
        let shares = newest.runs.iter().map(|run| run.share.clone()).collect();
        let known = self.jobs.get(job).cloned();
        let record = JobRecord {
            phase: JobPhase::Running,
            phase_since_us: newest.since,
            attempt: newest.attempt,
            placement: Some(Placement { shares }),
            started_at_us: Some(newest.since),
            ..known.unwrap_or_else(|| unrecorded(job, newest))
        };
        self.jobs.adopt(&record, &mut self.controller);
        self.restore_placement(&record);
        let at = record.placement.map(|placement| placement.to_string()).unwrap_or_default();
        self.jobs.reason(now, job, PLACER, format!("adopted on {at}"), reason);
    }

    /// Records the end of an attempt that began after the store was copied.
    fn record_end(&mut self, now: Timestamp, job: &JobId, newest: &Newest, end: End) {
        if !self.jobs.contains(job) {
            self.jobs.restore(&unrecorded(job, newest), &mut self.controller);
        }
        let (phase, what) = match end {
            End::Finished => (JobPhase::Finished, "finished"),
            End::Failed { .. } => (JobPhase::Failed, "failed"),
            End::Interrupted => (JobPhase::Queued, "to be placed again"),
        };
        self.jobs.change(job, |record| {
            record.attempt = newest.attempt;
            record.log_paths = newest.runs.iter().map(|run| run.log_path.clone()).collect();
            match end {
                End::Finished => record.exit_code = Some(0),
                End::Failed { code, error } => {
                    (record.exit_code, record.error) = (code, Some(error));
                }
                End::Interrupted => {}
            }
        });
        if phase.is_final() {
            self.jobs.close(now, job, phase, &mut self.controller);
        }
        let reason = format!(
            "its node reports the end of attempt {}, which the store does not contain",
            newest.attempt
        );
        self.jobs.reason(now, job, PLACER, what.to_owned(), reason);
    }

    /// Ends a job that its nodes no longer know.
    fn end_vanished(&mut self, now: Timestamp, job: &JobId, was_cancelled: bool) {
        let text = "it ended after the store was copied, and its node has no record of the result: check \
                    its output, and submit it again if necessary";
        let phase = if was_cancelled { JobPhase::Cancelled } else { JobPhase::Failed };
        if !was_cancelled {
            self.jobs.change(job, |record| record.error = Some(text.to_owned()));
        }
        self.jobs.close(now, job, phase, &mut self.controller);
        self.jobs.reason(now, job, PLACER, phase.to_string(), text.to_owned());
    }

    fn alarm_outcome(&mut self, outcome: &Outcome) {
        let nodes: Vec<&str> = outcome.nodes.iter().map(NodeId::as_str).collect();
        let Outcome { adopted, ended, unknown, .. } = outcome;
        if !adopted.is_empty() {
            let advice = match self.restored {
                Some(_) => "submissions, cancellations and budgets after the backup are lost",
                None => {
                    "queued jobs, budgets and the commands of these jobs are lost: check the storage of \
                     the NATS server"
                }
            };
            self.outbox.alarm(format!(
                "the store has lost running jobs of {}: {} ({} in all). They are adopted and continue, but \
                 {advice}; `wattle cancel` stops an adopted job",
                nodes.join(", "),
                named(adopted),
                adopted.len(),
            ));
        }
        if !ended.is_empty() {
            self.outbox.alarm(format!(
                "the store is older than the nodes' states: {} jobs ended meanwhile: {}. Their ends are \
                 recorded from the nodes' reports",
                ended.len(),
                named(ended),
            ));
        }
        if !unknown.is_empty() {
            self.outbox.alarm(format!(
                "the store is older than the nodes' states: {} jobs ended meanwhile with an unknown \
                 result and count as failed: {}. Check their output",
                unknown.len(),
                named(unknown),
            ));
        }
    }

    /// Whether no job may start, because a restored store was not compared yet.
    pub(super) const fn waits_for_comparison(&self) -> bool {
        self.restored.is_some()
    }
}

/// The first jobs, for an alarm.
fn named(jobs: &BTreeSet<JobId>) -> String {
    let mut named: Vec<&str> = jobs.iter().take(NAMED_MAX).map(JobId::as_str).collect();
    if jobs.len() > NAMED_MAX {
        named.push("...");
    }
    named.join(", ")
}

/// The record of a job of which only the runs are known.
fn unrecorded(job: &JobId, newest: &Newest) -> JobRecord {
    let gpus = newest.runs.iter().map(|run| run.share.gpus.len() as u32).sum();
    let spec = JobSpec {
        job: job.clone(),
        name: job.to_string(),
        user: None,
        project: None,
        workload: None,
        gpus: GpuRequest { min: gpus, max: gpus },
        exclusive: !newest.is_shared,
        consents_to_sharing: newest.is_shared,
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
        site: None,
        submitted_at_us: newest.since,
    };
    JobRecord::queued(spec, newest.since)
}
