//! Comparison of the records with the nodes' reports after the store was lost or restored from an older
//! copy.
//!
//! The store is older than the nodes if it has the mark of `wattle restore`, or if a node has obeyed newer
//! orders than the store contains. A node that differs gets no order before the comparison, because an
//! order from old records would stop its jobs. The comparison waits until the other nodes have reported
//! too; with the mark, all nodes are compared, and no job starts before that. A node that is silent at the
//! comparison gets no order until it reports and is compared itself. Then, for each job:
//! * An attempt that runs and that the store does not know is adopted: it keeps its GPUs and continues. Its part on a
//!   node that was silent is added when that node is compared.
//! * An attempt that has ended and that the store does not know is recorded with its end. It is not
//!   started again.
//! * An attempt that the store has as running, and that its node no longer knows, ended with an unknown
//!   result: the job fails with that reason.
//!
//! A run is known by its submission: a run of another submission of the same job id is not the recorded job. If
//! it runs and is of a later submission, the record is outdated and is replaced. If it is of an earlier one, the
//! id was submitted again before the node had reported; the order of its node stops it, with an alarm.
//!
//! A launcher that reads an older order than the one it obeys reports also the ended jobs it remembers.
//!
//! Of a job without a record only its GPUs are known, not its command. So it is never moved, resized,
//! shared with other jobs or restarted; it fails if its node is lost. `wattle cancel` stops it.

pub(super) mod reported;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use wattle_common::bounds::CLOCK_TOLERANCE;
use wattle_common::job::{GpuRequest, JobPhase, JobSpec, Placement};
use wattle_common::messages::{JobRecord, LaunchReport, LaunchState, LaunchedJob, StoreRestored};
use wattle_common::{JobId, NodeId, Timestamp};

use self::reported::{End, Newest};
use crate::config::Config;
use crate::live::job_records::JobRecords;
use crate::live::lifecycle::PLACER;
use crate::live::nodes::Nodes;
use crate::live::outbox::Outbox;
use crate::live::{Action, Turn};
use crate::twin::Departure;

/// Most jobs or nodes named in an alarm.
const NAMED_MAX: usize = 5;

/// What the comparison changed.
#[derive(Default)]
struct Outcome {
    adopted: BTreeSet<JobId>,
    ended: BTreeSet<JobId>,
    unknown: BTreeSet<JobId>,
    nodes: BTreeSet<NodeId>,
}

/// The comparison of the records with the nodes' reports.
pub(super) struct StoreComparison {
    /// When it is due; absent: the store is not older than the nodes.
    at: Option<Timestamp>,
    /// The mark of a restored store, until every node is compared.
    restored: Option<StoreRestored>,
    /// Whether the first comparison with a restored store is due.
    is_first_due: bool,
    /// Whether the mark is to be deleted.
    mark_is_over: bool,
    /// How long it waits for the reports of the nodes.
    patience: Duration,
}

impl StoreComparison {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            at: None,
            restored: None,
            is_first_due: false,
            mark_is_over: false,
            patience: config.node_stale_after(),
        }
    }

    /// When the comparison is due.
    pub(super) const fn at(&self) -> Option<Timestamp> {
        self.at
    }

    /// Whether no job may start, because a restored store was not compared yet.
    pub(super) const fn is_awaited(&self) -> bool {
        self.is_first_due
    }

    /// Compares the records with all nodes before any order: the store was restored from a backup.
    pub(super) fn store_was_restored(
        &mut self,
        now: Timestamp,
        restored: StoreRestored,
        nodes: &mut Nodes,
    ) {
        self.restored = Some(restored);
        self.is_first_due = true;
        nodes.await_comparison_of_all();
        self.at = Some(now + self.patience);
    }

    /// Notes whether a node's stored report, or its first one since the placer's start, shows that the
    /// store is older than the node's state.
    pub(super) fn reported(
        &mut self,
        now: Timestamp,
        node: &NodeId,
        is_new: bool,
        jobs: &JobRecords,
        nodes: &mut Nodes,
        outbox: &mut Outbox,
    ) {
        let Some(report) = nodes.launch_report(node).filter(|_| !nodes.is_compared(node)) else {
            return;
        };
        if is_new {
            for job in replaced(report, jobs) {
                outbox.alarm(format!(
                    "{node} runs an earlier submission of {job}, which the store has lost, and {job} was \
                     submitted again: the earlier one is stopped; its output and checkpoints stay in their folder"
                ));
            }
        }
        let is_ahead = nodes.ordered_generation(node) < report.observed_generation;
        let differs = is_ahead && differs(report, jobs);
        if is_new {
            nodes.note_comparison(node);
        }
        if self.is_awaited() {
            nodes.await_comparison(node);
        } else if differs || nodes.awaits_comparison(node) {
            nodes.await_comparison(node);
            self.at.get_or_insert(now + self.patience);
        }
    }

    /// Compares the records with the nodes that wait for it, and lets them have orders.
    pub(super) fn compare(
        &mut self,
        turn: &mut Turn<'_>,
        jobs: &mut JobRecords,
        nodes: &mut Nodes,
    ) {
        self.at = None;
        // An order from old records would stop the jobs of a node that has not reported since the placer's start.
        let (compared, silent): (BTreeSet<NodeId>, BTreeSet<NodeId>) =
            nodes.awaiting_comparison().cloned().partition(|node| nodes.is_compared(node));
        let newest = self.newest_attempts(&compared, jobs, nodes);
        let vanished = vanished(&compared, &newest, jobs, nodes);
        let superseded: BTreeSet<JobId> = newest
            .iter()
            .filter(|(job, run)| is_superseded(job, run, jobs) || is_outgrown(job, run, jobs))
            .map(|(job, _)| job.clone())
            .collect();
        let is_cancelled = |job: &&JobId| {
            let record = jobs.get(job).filter(|_| !superseded.contains(*job));
            record.is_some_and(|record| record.next_phase == Some(JobPhase::Cancelled))
        };
        let cancelled: BTreeSet<JobId> =
            newest.keys().chain(&vanished).filter(is_cancelled).cloned().collect();
        // First all GPUs of outdated placements are released, because adopted jobs may hold them.
        for job in newest.keys().chain(&vanished) {
            jobs.release(turn, job);
        }
        for job in &superseded {
            jobs.drop_superseded(turn, job);
        }
        let mut outcome = Outcome { nodes: compared, ..Outcome::default() };
        for job in vanished {
            jobs.end_vanished(turn, &job, cancelled.contains(&job));
            outcome.unknown.insert(job);
        }
        for (job, newest) in &newest {
            match newest.end() {
                None => {
                    let reason = "its node runs it and the store has no record of this start";
                    jobs.adopt(turn, job, newest, reason, nodes);
                    outcome.adopted.insert(job.clone());
                    // The store has a request to cancel the job, which holds for this attempt too.
                    if cancelled.contains(job) {
                        jobs.request_stop(turn, job, JobPhase::Cancelled);
                    }
                }
                Some(end) => {
                    let reason = format!(
                        "its node reports the end of attempt {}, which the store does not contain",
                        newest.attempt
                    );
                    jobs.record_end(turn, job, newest, end, reason);
                    outcome.ended.insert(job.clone());
                }
            }
        }
        for node in &outcome.nodes {
            nodes.end_comparison(node);
            nodes.refresh(turn, node, jobs);
        }
        self.raise_alarms(&outcome, turn.outbox);
        self.is_first_due = false;
        if silent.is_empty() {
            self.mark_is_over |= self.restored.take().is_some();
        }
        let awake: BTreeSet<&NodeId> = silent.iter().filter(|node| !nodes.sleeps(node)).collect();
        if !awake.is_empty() {
            turn.outbox.alarm(format!(
                "the store is older than the nodes' states, and {} have not reported since ({} in all): each gets \
                 no order until it reports and is compared",
                named(&awake),
                awake.len(),
            ));
        }
        turn.outbox.plan_soon();
    }

    /// Deletes the mark of a restored store after the comparison.
    pub(super) fn store(&mut self, out: &mut Vec<Action>) {
        if std::mem::take(&mut self.mark_is_over) {
            out.push(Action::ForgetRestoration);
        }
    }

    /// The newest attempts that the nodes report and the store does not know.
    fn newest_attempts(
        &self,
        compared: &BTreeSet<NodeId>,
        jobs: &JobRecords,
        nodes: &Nodes,
    ) -> BTreeMap<JobId, Newest> {
        let mut newest: BTreeMap<JobId, Newest> = BTreeMap::new();
        for report in compared.iter().filter_map(|node| nodes.launch_report(node)) {
            let records = report.jobs.iter().filter_map(|run| Some((run, jobs.get(&run.job)?)));
            for (run, record) in records.filter(|(run, record)| is_added(run, report, record)) {
                let entire = Newest::of(record, run.attempt, nodes.launch_reports());
                newest.insert(run.job.clone(), entire);
            }
            for run in report.jobs.iter().filter(|run| {
                let record = jobs.get(&run.job);
                let is_unknown =
                    record.is_none_or(|record| record.is_before(run.admission.as_ref()));
                is_unrecorded(run, jobs) || (is_unknown && self.is_later(run))
            }) {
                let known = newest.entry(run.job.clone()).or_default();
                known.add(run, report);
            }
        }
        // A job without a record that was preempted cannot be started again.
        newest.retain(|job, newest| {
            let is_recorded = jobs.contains(job) && !is_superseded(job, newest, jobs);
            is_recorded || newest.end() != Some(End::Interrupted)
        });
        newest
    }

    /// Whether a run began or ended after the backup from which the store was restored.
    fn is_later(&self, run: &LaunchedJob) -> bool {
        self.restored.is_some_and(|restored| run.since_us + CLOCK_TOLERANCE > restored.backup_at_us)
    }

    fn raise_alarms(&self, outcome: &Outcome, outbox: &mut Outbox) {
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
            outbox.alarm(format!(
                "the store has lost running jobs of {}: {} ({} in all). They are adopted and continue, but \
                 {advice}; `wattle cancel` stops an adopted job",
                nodes.join(", "),
                named(adopted),
                adopted.len(),
            ));
        }
        if !ended.is_empty() {
            outbox.alarm(format!(
                "the store is older than the nodes' states: {} jobs ended meanwhile: {}. Their ends are \
                 recorded from the nodes' reports",
                ended.len(),
                named(ended),
            ));
        }
        if !unknown.is_empty() {
            outbox.alarm(format!(
                "the store is older than the nodes' states: {} jobs ended meanwhile with an unknown \
                 result and count as failed: {}. Check their output",
                unknown.len(),
                named(unknown),
            ));
        }
    }
}

/// Whether a node's report contradicts the records.
fn differs(report: &LaunchReport, jobs: &JobRecords) -> bool {
    let is_added =
        |run: &LaunchedJob| jobs.get(&run.job).is_some_and(|record| is_added(run, report, record));
    report.jobs.iter().any(|run| is_unrecorded(run, jobs) || is_added(run))
        || jobs
            .on_node(&report.node)
            .any(|job| !report.jobs.iter().any(|run| is_known_run(run, &jobs[job])))
}

/// Whether a run is the recorded attempt or a later one of the same submission.
fn is_known_run(run: &LaunchedJob, record: &JobRecord) -> bool {
    run.job == record.spec.job && run.attempt >= record.attempt && record.has_run(run)
}

/// Whether the newest run of a job id is of a later submission than the record.
fn is_superseded(job: &JobId, newest: &Newest, jobs: &JobRecords) -> bool {
    jobs.get(job).is_some_and(|record| record.is_before(newest.admission.as_ref()))
}

/// Whether a job of which only the runs are known has more GPUs than were known at its adoption.
fn is_outgrown(job: &JobId, newest: &Newest, jobs: &JobRecords) -> bool {
    jobs.get(job).is_some_and(|record| {
        record.spec.command.is_empty()
            && record.spec.site.is_none()
            && record.spec.gpus.max < newest.gpus()
    })
}

/// Whether a run has no record and is live, or is a later attempt than its record.
fn is_unrecorded(run: &LaunchedJob, jobs: &JobRecords) -> bool {
    let is_live = matches!(run.state, LaunchState::Running);
    match jobs.get(&run.job) {
        Some(record) if record.has_run(run) => {
            !record.phase.is_final() && record.attempt < run.attempt
        }
        Some(record) => is_live && record.is_before(run.admission.as_ref()),
        None => is_live,
    }
}

/// Whether a node runs a part of the recorded attempt that the record lacks: the node was silent when the other parts
/// were adopted.
fn is_added(run: &LaunchedJob, report: &LaunchReport, record: &JobRecord) -> bool {
    let shares = record.placement.iter().flat_map(|placed| &placed.shares);
    matches!(run.state, LaunchState::Running)
        && record.phase == JobPhase::Running
        && record.attempt == run.attempt
        && record.has_run(run)
        && shares.into_iter().all(|share| share.node != report.node)
}

/// The running jobs of a node whose ids were submitted again before their records were known.
fn replaced<'r>(report: &'r LaunchReport, jobs: &JobRecords) -> Vec<&'r JobId> {
    let is_replaced = |run: &&LaunchedJob| {
        let is_other =
            |record: &JobRecord| !record.has_run(run) && !record.is_before(run.admission.as_ref());
        matches!(run.state, LaunchState::Running) && jobs.get(&run.job).is_some_and(is_other)
    };
    report.jobs.iter().filter(is_replaced).map(|run| &run.job).collect()
}

/// Jobs that the store has on nodes which have obeyed newer orders and no longer know them.
fn vanished(
    compared: &BTreeSet<NodeId>,
    newest: &BTreeMap<JobId, Newest>,
    jobs: &JobRecords,
    nodes: &Nodes,
) -> Vec<JobId> {
    let is_gone = |node: &NodeId, record: &JobRecord| {
        let report = nodes.launch_report(node).filter(|_| compared.contains(node));
        report.is_some_and(|report| {
            report.has_ended
                && nodes.ordered_generation(node) < report.observed_generation
                && !report.jobs.iter().any(|run| is_known_run(run, record))
        })
    };
    jobs.all()
        .filter(|record| record.phase.has_gpus() && !newest.contains_key(&record.spec.job))
        .filter(|record| {
            let shares = record.placement.iter().flat_map(|placed| &placed.shares);
            let mut nodes = shares.map(|share| &share.node).peekable();
            nodes.peek().is_some() && nodes.all(|node| is_gone(node, record))
        })
        .map(|record| record.spec.job.clone())
        .collect()
}

impl JobRecords {
    /// Records that a job runs where its nodes run it.
    pub(super) fn adopt(
        &mut self,
        turn: &mut Turn<'_>,
        job: &JobId,
        newest: &Newest,
        reason: &str,
        nodes: &mut Nodes,
    ) {
        let shares = newest.runs.iter().map(|run| run.share.clone()).collect();
        let known = self.get(job).cloned().unwrap_or_else(|| unrecorded(job, newest));
        let record = JobRecord {
            phase: JobPhase::Running,
            // Until the phase before began, the record has counted the run time.
            phase_since_us: newest.since.max(known.phase_since_us),
            attempt: newest.attempt,
            placement: Some(Placement { shares }),
            started_at_us: known.started_at_us.or(Some(newest.since)),
            ..known
        };
        self.runs_as(turn, &record);
        Self::restore_placement(&record, nodes, turn.controller);
        let at = record.placement.map(|placement| placement.to_string()).unwrap_or_default();
        self.reason(turn.now, job, PLACER, format!("adopted on {at}"), reason.to_owned());
    }

    /// Records the end of an attempt of which the records do not have the start.
    pub(super) fn record_end(
        &mut self,
        turn: &mut Turn<'_>,
        job: &JobId,
        newest: &Newest,
        end: End,
        reason: String,
    ) {
        if !self.contains(job) {
            self.restore(&unrecorded(job, newest), turn.controller);
        }
        let (phase, what) = match end {
            End::Finished => (JobPhase::Finished, "finished"),
            End::Failed { .. } => (JobPhase::Failed, "failed"),
            End::Interrupted => (JobPhase::Queued, "to be placed again"),
        };
        self.change(job, |record| {
            record.attempt = newest.attempt;
            record.ran_on.extend(newest.runs.iter().map(|run| run.share.node.clone()));
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
            self.close(turn, job, phase);
        }
        self.reason(turn.now, job, PLACER, what.to_owned(), reason);
    }

    /// Removes the record of an earlier submission of a job id, which holds no GPUs: it has ended, because the id
    /// was accepted again.
    fn drop_superseded(&mut self, turn: &mut Turn<'_>, job: &JobId) {
        if let Some(key) = self.remove(job) {
            turn.controller.job_ended(key, Departure::Cancelled);
        }
    }

    /// Ends a job that its nodes no longer know.
    fn end_vanished(&mut self, turn: &mut Turn<'_>, job: &JobId, was_cancelled: bool) {
        let text = "it ended after the store was copied, and its node has no record of the result: check \
                    its output, and submit it again if necessary";
        let phase = if was_cancelled { JobPhase::Cancelled } else { JobPhase::Failed };
        if !was_cancelled {
            self.change(job, |record| record.error = Some(text.to_owned()));
        }
        self.close(turn, job, phase);
        self.reason(turn.now, job, PLACER, phase.to_string(), text.to_owned());
    }
}

/// The first of some ids, for an alarm.
fn named(ids: &BTreeSet<impl ToString>) -> String {
    let mut named: Vec<String> = ids.iter().take(NAMED_MAX).map(ToString::to_string).collect();
    if ids.len() > NAMED_MAX {
        named.push("...".to_owned());
    }
    named.join(", ")
}

/// The record of a job of which only the runs are known.
fn unrecorded(job: &JobId, newest: &Newest) -> JobRecord {
    let gpus = newest.gpus();
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
        flexibility: None,
        priority: 0,
        deadline_at_us: None,
        slack_ms: None,
        duration_ms_estimate: None,
        time_limit_ms: None,
        memory_mib_max: None,
        gpu_type: None,
        checkpoint_signal: None,
        command: Vec::new(),
        environment: Vec::new(),
        working_dir: None,
        site: None,
        submitted_at_us: newest.since,
    };
    let admission = newest.admission.clone();
    JobRecord { admission, ..JobRecord::queued(spec, newest.since) }
}
