//! Placed jobs: starts, ends, stops and losses, from their nodes' reports.

use wattle_common::job::{JobPhase, NodeShare, signal_name};
use wattle_common::messages::{JobRecord, LaunchState, LaunchedJob, ReachedLimit};
use wattle_common::{JobId, NodeId, Timestamp};

use crate::ClusterState;
use crate::live::Turn;
use crate::live::job_records::JobRecords;
use crate::live::nodes::Nodes;
use crate::live::site_jobs::placed_by_site;

/// The name in a record's reasons for decisions that no policy made.
pub(super) const PLACER: &str = "placer";

/// The state of a job's rank on one node, from its report.
enum RankState {
    /// Not reported yet.
    Unknown,
    Running,
    /// It was requested to stop.
    Stopping,
    Ended(LaunchState),
    /// The node is lost, and its processes count as gone.
    NodeLost,
}

impl RankState {
    const fn is_over(&self) -> bool {
        matches!(self, Self::Ended(_) | Self::NodeLost)
    }

    const fn is_lost(&self) -> bool {
        matches!(self, Self::Ended(LaunchState::Lost { .. }) | Self::NodeLost)
            || self.is_prevented()
    }

    /// Whether a fault of the node prevented its start.
    const fn is_prevented(&self) -> bool {
        matches!(self, Self::Ended(LaunchState::Refused { node_fault: Some(_), .. }))
    }

    /// The signal that ended it after a checkpoint was requested.
    const fn killed_by(&self) -> Option<i32> {
        match self {
            Self::Ended(LaunchState::Stopped { killed_by }) => *killed_by,
            _ => None,
        }
    }
}

/// The end of a job that was not requested to stop.
struct UnrequestedEnd {
    next: JobPhase,
    decision: String,
    reason: String,
    exit_code: Option<i32>,
    limit: Option<ReachedLimit>,
}

/// Why a job failed whose program ended by itself.
pub(super) fn exit_reason(
    code: i32,
    limit: Option<ReachedLimit>,
    node: &NodeId,
    log: &str,
) -> String {
    let what = match limit {
        Some(limit) => format!("it {limit} on {node} (exit code {code})"),
        None => format!("its program ended with exit code {code} on {node}"),
    };
    format!("{what}; its output is in {log}")
}

impl UnrequestedEnd {
    /// The program failed by itself.
    fn exited(code: i32, limit: Option<ReachedLimit>, node: &NodeId, log: &str) -> Self {
        Self {
            next: JobPhase::Failed,
            decision: "failed".to_owned(),
            reason: exit_reason(code, limit, node, log),
            exit_code: Some(code),
            limit,
        }
    }
}

impl JobRecords {
    /// Derives a job's phase from its nodes' reports, and records it.
    pub(super) fn reconcile(&mut self, turn: &mut Turn<'_>, job: &JobId, nodes: &mut Nodes) {
        let Some(record) = self.get(job).filter(|r| r.phase.has_gpus()) else { return };
        let Some(shares) = record.placement.as_ref().map(|placement| placement.shares.clone())
        else {
            return;
        };
        let reports: Vec<Option<LaunchedJob>> =
            shares.iter().map(|share| report_of(record, &share.node, nodes)).collect();
        let ranks: Vec<RankState> = shares
            .iter()
            .zip(&reports)
            .map(|(share, report)| rank_state(turn.now, share, report.as_ref(), nodes))
            .collect();
        // The paths are complete when every rank was started.
        if let Some(logs) = reports
            .iter()
            .map(|report| report.as_ref().map(|r| r.log_path.clone()).filter(|p| !p.is_empty()))
            .collect::<Option<Vec<String>>>()
            && record.log_paths != logs
        {
            self.change(job, |record| record.log_paths = logs);
        }
        let succeeded = ranks
            .iter()
            .all(|rank| matches!(rank, RankState::Ended(LaunchState::Exited { code: 0, .. })));
        // This holds for a job that was requested to stop, too: its work is done.
        if succeeded {
            self.end(turn, job, JobPhase::Finished, nodes);
            return;
        }
        let (phase, next) = (self[job].phase, self[job].next_phase);
        let logs: Vec<&str> =
            reports.iter().map(|report| report.as_ref().map_or("", |r| &r.log_path)).collect();
        // Whether a program failed by itself or with its GPU is known from the next reading of the GPUs.
        let awaits = |(share, report): (&NodeShare, &Option<LaunchedJob>)| {
            report.as_ref().is_some_and(|run| awaits_gpus(turn.now, share, run, nodes))
        };
        if phase == JobPhase::Running && shares.iter().zip(&reports).any(awaits) {
            return;
        }
        // The site's scheduler stops the jobs that it places.
        let by_site = placed_by_site(&self[job].spec);
        let all_over = ranks.iter().all(RankState::is_over);
        let ended = unrequested_end(&shares, &ranks, &logs, nodes).filter(|ended| match phase {
            _ if by_site && !all_over => false,
            // It failed before the stop request arrived: starting it again would not help.
            JobPhase::Stopping => next == Some(JobPhase::Queued) && ended.next == JobPhase::Failed,
            _ => true,
        });
        if let Some(ended) = ended {
            self.stop(turn, job, ended);
        } else if phase == JobPhase::Starting
            && ranks.iter().all(|rank| !matches!(rank, RankState::Unknown))
        {
            self.started(turn.now, job);
        }
        let record = &self[job];
        if record.phase == JobPhase::Stopping && ranks.iter().all(RankState::is_over) {
            let next = record.next_phase.unwrap_or(JobPhase::Queued);
            if ranks.iter().any(RankState::is_prevented) {
                self.change(job, |record| record.attempts_prevented += 1);
            }
            let killed = || {
                shares.iter().zip(&ranks).find_map(|(share, rank)| Some((share, rank.killed_by()?)))
            };
            if next == JobPhase::Queued
                && let Some((share, signal)) = killed()
            {
                self.stopped_unsaved(turn, job, &share.node, signal);
            }
            let lost = shares.iter().zip(&ranks).find(|(_, rank)| rank.is_lost());
            if let (JobPhase::Failed, Some((share, _))) = (next, lost) {
                // The other ranks end with an error that is not their own, often before this is known.
                let node = share.node.clone();
                self.lost_with_a_rank(turn, job, &node, nodes);
                return;
            }
            self.end(turn, job, next, nodes);
        }
    }

    /// A job that failed while the processes of another of its nodes were lost is placed again.
    fn lost_with_a_rank(
        &mut self,
        turn: &mut Turn<'_>,
        job: &JobId,
        node: &NodeId,
        nodes: &mut Nodes,
    ) {
        self.change(job, |record| (record.exit_code, record.error) = (None, None));
        let reason = format!("it was lost or not started on {node}, so its other processes failed");
        self.reason(turn.now, job, PLACER, "to be placed again".to_owned(), reason);
        self.end(turn, job, JobPhase::Queued, nodes);
    }

    /// A job that is to continue elsewhere was killed after it was requested to write a checkpoint.
    fn stopped_unsaved(&mut self, turn: &mut Turn<'_>, job: &JobId, node: &NodeId, signal: i32) {
        let signal = signal_name(signal);
        let reason = format!(
            "{signal} ended its program on {node} after the request for a checkpoint: its work since its last \
             checkpoint is lost. A program must handle its checkpoint signal, write a checkpoint and exit in \
             time; a shell script must start it with `exec`"
        );
        turn.outbox.alarm(format!("{job} was stopped without a checkpoint: {reason}"));
        self.change(job, |record| record.stops_unsaved = record.stops_unsaved.saturating_add(1));
        self.reason(turn.now, job, PLACER, "stopped without a checkpoint".to_owned(), reason);
    }

    /// Stops a job on all its nodes.
    fn stop(&mut self, turn: &mut Turn<'_>, job: &JobId, ended: UnrequestedEnd) {
        self.request_stop(turn, job, ended.next);
        self.change(job, |record| {
            record.exit_code = ended.exit_code;
            record.limit = ended.limit;
            if ended.next == JobPhase::Failed {
                record.error = Some(ended.reason.clone());
            }
        });
        self.reason(turn.now, job, PLACER, ended.decision, ended.reason);
    }

    /// Records the first prediction of a job that was placed without one, unless measurements of the
    /// job have entered it.
    pub(super) fn predict_unpredicted(&mut self, job: &JobId, state: &ClusterState) {
        if self.get(job).is_none_or(|record| record.prediction_placed.is_some()) {
            return;
        }
        let first = self.last_prediction(job, state);
        if let Some(first) = first.filter(|prediction| prediction.windows == 0) {
            self.predicted_late(job, first);
        }
    }

    /// All processes of the job are gone.
    pub(super) fn end(
        &mut self,
        turn: &mut Turn<'_>,
        job: &JobId,
        phase: JobPhase,
        nodes: &mut Nodes,
    ) {
        for node in self.ended(turn, job, phase) {
            // A lost node may still run it: its GPUs may have orphans.
            nodes.refresh(turn, &node, self);
        }
        turn.outbox.plan_soon();
    }
}

/// Whether a program has failed after the last reading of the GPUs of its node, and the next one is
/// expected.
fn awaits_gpus(now: Timestamp, share: &NodeShare, run: &LaunchedJob, nodes: &Nodes) -> bool {
    let failed = matches!(run.state, LaunchState::Exited { code, .. } if code != 0);
    let power = nodes.fresh_power_report(now, &share.node);
    // Both times are by the node's clock.
    failed && power.is_some_and(|report| report.read_at_us.unwrap_or(report.at_us) <= run.since_us)
}

/// What a node reports of the recorded attempt.
fn report_of(record: &JobRecord, node: &NodeId, nodes: &Nodes) -> Option<LaunchedJob> {
    let report = nodes.launch_report(node)?;
    let is_its = |run: &&LaunchedJob| {
        run.job == record.spec.job && run.attempt == record.attempt && record.has_run(run)
    };
    report.jobs.iter().find(is_its).cloned()
}

fn rank_state(
    now: Timestamp,
    share: &NodeShare,
    report: Option<&LaunchedJob>,
    nodes: &Nodes,
) -> RankState {
    match report.map(|run| &run.state) {
        Some(LaunchState::Running | LaunchState::Stopping) | None
            if nodes.is_lost(now, &share.node) =>
        {
            RankState::NodeLost
        }
        None => RankState::Unknown,
        Some(LaunchState::Running) => RankState::Running,
        Some(LaunchState::Stopping) => RankState::Stopping,
        Some(state) => RankState::Ended(state.clone()),
    }
}

/// Why a job that was not requested to stop cannot continue. Its own failure takes precedence.
fn unrequested_end(
    shares: &[NodeShare],
    ranks: &[RankState],
    logs: &[&str],
    nodes: &Nodes,
) -> Option<UnrequestedEnd> {
    let (mut exited, mut requeue) = (None, None);
    for ((share, rank), log) in shares.iter().zip(ranks).zip(logs) {
        let node = &share.node;
        let gpu_failed = !nodes.gpus_answer(node, &share.gpus);
        let requeued = |reason: String| UnrequestedEnd {
            next: JobPhase::Queued,
            decision: "to be placed again".to_owned(),
            reason,
            exit_code: None,
            limit: None,
        };
        match rank {
            // A program that loses its GPU ends with an error that is not its own.
            _ if gpu_failed => {
                requeue = Some(requeued(format!("a GPU of {node} does not answer")));
            }
            RankState::Ended(LaunchState::Exited { code, limit }) if *code != 0 => {
                // The end of one rank ends the others: a reached limit is the cause.
                let end = || UnrequestedEnd::exited(*code, *limit, node, log);
                match limit {
                    Some(_) => return Some(end()),
                    None => exited = exited.or_else(|| Some(end())),
                }
            }
            RankState::Ended(LaunchState::Refused { error, node_fault: Some(_) }) => {
                requeue = Some(requeued(format!("{node} could not start it: {error}")));
            }
            RankState::Ended(LaunchState::Refused { error, node_fault: None }) => {
                return Some(UnrequestedEnd {
                    next: JobPhase::Failed,
                    decision: "failed".to_owned(),
                    reason: format!("it cannot be started on {node}: {error}"),
                    exit_code: None,
                    limit: None,
                });
            }
            RankState::Ended(LaunchState::Lost { error }) => {
                requeue = Some(requeued(format!("lost on {node}: {error}")));
            }
            RankState::Ended(LaunchState::Stopped { .. }) => {
                requeue = Some(requeued(format!("the launcher of {node} stopped it")));
            }
            RankState::NodeLost => {
                let silence = nodes.lost_after().as_secs();
                requeue = Some(requeued(format!("{node} has not reported for {silence} s")));
            }
            RankState::Unknown | RankState::Running | RankState::Stopping | RankState::Ended(_) => {
            }
        }
    }
    exited.or(requeue)
}
