//! The newest attempt of a job, as its nodes report it.

use wattle_common::job::NodeShare;
use wattle_common::messages::{JobRecord, LaunchReport, LaunchState, LaunchedJob};
use wattle_common::{AdmissionId, Timestamp};

use crate::live::lifecycle::exit_reason;

/// One node's part of an attempt.
pub(in crate::live) struct RankRun {
    pub(in crate::live) share: NodeShare,
    pub(in crate::live) log_path: String,
    state: LaunchState,
}

/// The newest attempt of the newest submission of a job.
#[derive(Default)]
pub(in crate::live) struct Newest {
    pub(in crate::live) admission: Option<AdmissionId>,
    pub(in crate::live) attempt: u32,
    pub(in crate::live) since: Timestamp,
    pub(in crate::live) runs: Vec<RankRun>,
    /// Whether another job runs on one of its GPUs.
    pub(in crate::live) is_shared: bool,
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::live) enum End {
    Finished,
    Failed {
        code: Option<i32>,
        error: String,
    },
    /// It was stopped or lost with its node; the job may be started again.
    Interrupted,
}

fn is_live(run: &LaunchedJob) -> bool {
    matches!(run.state, LaunchState::Running)
}

impl Newest {
    /// One attempt of a job, as all nodes report it.
    pub(in crate::live) fn of<'r>(
        record: &JobRecord,
        attempt: u32,
        reports: impl Iterator<Item = &'r LaunchReport>,
    ) -> Self {
        let mut newest = Self::default();
        let is_its = |run: &&LaunchedJob| {
            run.job == record.spec.job && run.attempt == attempt && record.has_run(run)
        };
        for report in reports {
            if let Some(run) = report.jobs.iter().find(is_its) {
                newest.add(run, report);
            }
        }
        newest
    }

    /// Adds a run of a node's report.
    pub(in crate::live) fn add(&mut self, run: &LaunchedJob, report: &LaunchReport) {
        let (new, known) = ((&run.admission, run.attempt), (&self.admission, self.attempt));
        if new < known && !self.runs.is_empty() {
            return;
        }
        if new > known || self.runs.is_empty() {
            let (attempt, since) = (run.attempt, run.since_us.min(report.at_us));
            *self = Self { admission: run.admission.clone(), attempt, since, ..Self::default() };
        }
        self.is_shared |= report.jobs.iter().any(|other| {
            is_live(other)
                && other.job != run.job
                && other.gpus.iter().any(|gpu| run.gpus.contains(gpu))
        });
        self.runs.push(RankRun {
            share: NodeShare { node: report.node.clone(), gpus: run.gpus.clone() },
            log_path: run.log_path.clone(),
            state: run.state.clone(),
        });
    }

    /// Number of its GPUs.
    pub(in crate::live) fn gpus(&self) -> u32 {
        self.runs.iter().map(|run| run.share.gpus.len() as u32).sum()
    }

    /// Its end; `None` while a part of it runs.
    pub(in crate::live) fn end(&self) -> Option<End> {
        let mut interrupted = false;
        for run in &self.runs {
            match &run.state {
                LaunchState::Running | LaunchState::Stopping => return None,
                LaunchState::Stopped { .. }
                | LaunchState::Lost { .. }
                | LaunchState::Refused { node_fault: Some(_), .. } => interrupted = true,
                LaunchState::Exited { .. } | LaunchState::Refused { node_fault: None, .. } => {}
            }
        }
        let failed = self.runs.iter().find_map(|run| match &run.state {
            LaunchState::Exited { code, limit } if *code != 0 => Some(End::Failed {
                code: Some(*code),
                error: exit_reason(*code, *limit, &run.share.node, &run.log_path),
            }),
            LaunchState::Refused { error, node_fault: None } => Some(End::Failed {
                code: None,
                error: format!("it cannot be started on {}: {error}", run.share.node),
            }),
            _ => None,
        });
        Some(failed.unwrap_or(if interrupted { End::Interrupted } else { End::Finished }))
    }
}
