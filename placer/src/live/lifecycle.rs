//! Placed jobs: starts, ends, stops and losses, from their nodes' reports.

use wattle_common::job::{JobPhase, NodeShare};
use wattle_common::messages::{LaunchState, LaunchedJob};
use wattle_common::{JobId, NodeId, Timestamp};

use crate::live::{Placer, has_gpus};

/// The name in a record's reasons for decisions that no policy made.
pub(super) const PLACER: &str = "placer";

/// One node's part of a job, from its report.
enum Part {
    /// Not reported yet.
    Unknown,
    Running,
    /// It was requested to stop.
    Stopping,
    Ended(LaunchState),
    /// The node is lost, and its processes count as gone.
    NodeLost,
}

impl Part {
    const fn is_over(&self) -> bool {
        matches!(self, Self::Ended(_) | Self::NodeLost)
    }
}

/// The end of a job that was not requested to stop.
struct UnrequestedEnd {
    next: JobPhase,
    decision: String,
    reason: String,
    exit_code: Option<i32>,
}

impl Placer {
    /// Derives a job's phase from its nodes' reports, and records it.
    pub(super) fn judge(&mut self, now: Timestamp, job: &JobId) {
        let Some(tracked) = self.jobs.get(job).filter(|t| has_gpus(t.record.phase)) else { return };
        let record = &tracked.record;
        let Some(shares) = record.placement.as_ref().map(|placement| placement.shares.clone())
        else {
            return;
        };
        let reports: Vec<Option<LaunchedJob>> =
            shares.iter().map(|share| self.report_of(job, record.attempt, &share.node)).collect();
        let parts: Vec<Part> = shares
            .iter()
            .zip(&reports)
            .map(|(share, report)| self.part(now, share, report.as_ref()))
            .collect();
        if let Some(logs) = reports
            .iter()
            .map(|report| report.as_ref().map(|r| r.log_path.clone()).filter(|p| !p.is_empty()))
            .collect::<Option<Vec<String>>>()
            && record.log_paths != logs
        {
            self.jobs.get_mut(job).expect("found above").record.log_paths = logs;
            self.to_store.insert(job.clone());
        }
        let all_well =
            parts.iter().all(|part| matches!(part, Part::Ended(LaunchState::Exited { code: 0 })));
        if all_well {
            self.end(now, job, JobPhase::Finished);
            return;
        }
        let (phase, next) = (self.jobs[job].record.phase, self.jobs[job].record.next_phase);
        let logs: Vec<&str> =
            reports.iter().map(|report| report.as_ref().map_or("", |r| &r.log_path)).collect();
        let turn = self.turn(&shares, &parts, &logs).filter(|turn| match phase {
            // It failed before the stop request arrived: starting it again would not help.
            JobPhase::Stopping => next == Some(JobPhase::Queued) && turn.next == JobPhase::Failed,
            _ => true,
        });
        if let Some(turn) = turn {
            self.stop(now, job, turn);
        } else if phase == JobPhase::Starting
            && parts.iter().all(|part| !matches!(part, Part::Unknown))
        {
            let record = &mut self.jobs.get_mut(job).expect("found above").record;
            record.phase = JobPhase::Running;
            record.phase_since_us = now;
            record.started_at_us = record.started_at_us.or(Some(now));
            self.to_store.insert(job.clone());
        }
        let record = &self.jobs[job].record;
        if record.phase == JobPhase::Stopping && parts.iter().all(Part::is_over) {
            self.end(now, job, record.next_phase.unwrap_or(JobPhase::Queued));
        }
    }

    fn report_of(&self, job: &JobId, attempt: u32, node: &NodeId) -> Option<LaunchedJob> {
        let (report, _) = self.nodes.get(node)?.launch.as_ref()?;
        report.jobs.iter().find(|run| run.job == *job && run.attempt == attempt).cloned()
    }

    fn part(&self, now: Timestamp, share: &NodeShare, report: Option<&LaunchedJob>) -> Part {
        match report.map(|run| &run.state) {
            Some(LaunchState::Running | LaunchState::Stopping) | None
                if self.is_lost(now, &share.node) =>
            {
                Part::NodeLost
            }
            None => Part::Unknown,
            Some(LaunchState::Running) => Part::Running,
            Some(LaunchState::Stopping) => Part::Stopping,
            Some(ended) => Part::Ended(ended.clone()),
        }
    }

    /// Why a job that was not requested to stop cannot continue. Its own failure takes precedence.
    fn turn(&self, shares: &[NodeShare], parts: &[Part], logs: &[&str]) -> Option<UnrequestedEnd> {
        let mut again = None;
        for ((share, part), log) in shares.iter().zip(parts).zip(logs) {
            let node = &share.node;
            let sick = !self.gpus_answer(node, &share.gpus);
            let back = |reason: String| UnrequestedEnd {
                next: JobPhase::Queued,
                decision: "to be placed again".to_owned(),
                reason,
                exit_code: None,
            };
            match part {
                // A program that loses its GPU ends with an error that is not its own.
                _ if sick => again = Some(back(format!("a GPU of {node} does not answer"))),
                Part::Ended(LaunchState::Exited { code }) if *code != 0 => {
                    return Some(UnrequestedEnd {
                        next: JobPhase::Failed,
                        decision: "failed".to_owned(),
                        reason: format!(
                            "its program ended with exit code {code} on {node}; its output is in {log}"
                        ),
                        exit_code: Some(*code),
                    });
                }
                Part::Ended(LaunchState::Refused { error }) => {
                    return Some(UnrequestedEnd {
                        next: JobPhase::Failed,
                        decision: "failed".to_owned(),
                        reason: format!("it cannot be started on {node}: {error}"),
                        exit_code: None,
                    });
                }
                Part::Ended(LaunchState::Lost { error }) => {
                    again = Some(back(format!("lost on {node}: {error}")));
                }
                Part::Ended(LaunchState::Stopped) => {
                    again = Some(back(format!("the launcher of {node} stopped it")));
                }
                Part::NodeLost => {
                    let silence = self.config.node_lost_after().as_secs();
                    again = Some(back(format!("{node} has not reported for {silence} s")));
                }
                Part::Unknown | Part::Running | Part::Stopping | Part::Ended(_) => {}
            }
        }
        again
    }

    /// Stops a job on all its nodes.
    fn stop(&mut self, now: Timestamp, job: &JobId, turn: UnrequestedEnd) {
        self.request_stop(now, job, turn.next);
        let tracked = self.jobs.get_mut(job).expect("only called for a known job");
        tracked.record.exit_code = turn.exit_code;
        if turn.next == JobPhase::Failed {
            tracked.record.error = Some(turn.reason.clone());
        }
        self.reason(now, job, PLACER, turn.decision, turn.reason);
    }

    /// Records that the job stops, and its phase after that.
    pub(super) fn request_stop(&mut self, now: Timestamp, job: &JobId, next: JobPhase) {
        let Some(tracked) = self.jobs.get_mut(job) else { return };
        let record = &mut tracked.record;
        if record.phase != JobPhase::Stopping {
            record.phase = JobPhase::Stopping;
            record.phase_since_us = now;
        }
        record.next_phase = Some(next);
        record.observing = false;
        if let Some(key) = tracked.key {
            self.controller.events().job_stopping(key);
        }
        for share in tracked.record.placement.iter().flat_map(|placement| &placement.shares) {
            self.to_order.insert(share.node.clone());
        }
        self.to_store.insert(job.clone());
        self.to_reconcile.insert(job.clone());
    }

    /// All processes of the job are gone.
    pub(super) fn end(&mut self, now: Timestamp, job: &JobId, mut phase: JobPhase) {
        let attempts_max = self.config.attempts_max;
        let Some(tracked) = self.jobs.get_mut(job) else { return };
        let record = &mut tracked.record;
        if phase == JobPhase::Queued && record.attempt >= attempts_max {
            phase = JobPhase::Failed;
            record.error = Some(format!(
                "started {} times without completing: see its reasons, or raise the placer's \
                 attempts_max",
                record.attempt
            ));
        }
        let placement = record.placement.take();
        record.phase = phase;
        record.phase_since_us = now;
        record.next_phase = None;
        record.observing = false;
        if phase == JobPhase::Finished {
            record.exit_code = Some(0);
            record.error = None;
        }
        if phase.is_final() {
            record.ended_at_us = Some(now);
            self.ended.insert((now, job.clone()));
            if let Some(key) = tracked.key.take() {
                if phase == JobPhase::Finished {
                    record.work_s = self.controller.job_completed(key);
                } else {
                    self.controller.job_ended(key);
                }
            }
        } else if let Some(key) = tracked.key {
            self.controller.job_stopped(key);
        }
        for share in placement.iter().flat_map(|placement| &placement.shares) {
            self.node_mut(&share.node).jobs.remove(job);
            self.to_order.insert(share.node.clone());
            // A lost node may still run it: its GPUs may have orphans.
            self.refresh(now, &share.node);
        }
        self.to_store.insert(job.clone());
        self.plan_soon(now);
    }
}
