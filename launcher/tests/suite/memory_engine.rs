//! An engine whose jobs exist in memory only.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};

use wattle_common::Timestamp;
use wattle_common::messages::JobProcesses;
use wattle_launcher::engine::{Engine, StatusSender};
use wattle_launcher::{Found, Handle, Outcome, Run, RunSpec, Status, StopStage};

/// The jobs of a cluster in memory, which outlive the engines that serve it.
///
/// A job's command is one of `["exit", CODE]`, `["missing"]`, `["until-stopped"]`; any other
/// command runs and ends when the test calls [`Cluster::running`] and [`Cluster::ended`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Cluster(Arc<Mutex<BTreeMap<Run, Found>>>);

impl Cluster {
    pub(crate) fn runs(&self) -> MutexGuard<'_, BTreeMap<Run, Found>> {
        self.0.lock().unwrap()
    }

    /// Every run that was started and has not ended.
    pub(crate) fn live(&self) -> Vec<Run> {
        let live = |found: &Found| !matches!(found.status, None | Some(Status::Ended(_)));
        self.runs().iter().filter(|(_, found)| live(found)).map(|(run, _)| run.clone()).collect()
    }

    pub(crate) fn running(&self, run: &Run) -> Status {
        let handle = Handle {
            id: format!("memory job {}", run.job),
            processes: JobProcesses::Cgroup(format!("job_{}", run.job)),
            log_path: format!("memory logs {}", run.job),
        };
        self.set(run, Status::Running(handle))
    }

    pub(crate) fn ended(&self, run: &Run, outcome: Outcome) -> Status {
        self.set(run, Status::Ended(outcome))
    }

    fn set(&self, run: &Run, status: Status) -> Status {
        self.runs().get_mut(run).expect("a known run").status = Some(status.clone());
        status
    }
}

/// Serves a [`Cluster`].
#[derive(Debug)]
pub(crate) struct MemoryEngine {
    cluster: Cluster,
    changes: StatusSender,
}

impl MemoryEngine {
    pub(crate) fn new(cluster: Cluster, changes: StatusSender) -> Self {
        Self { cluster, changes }
    }

    fn report(&self, run: Run, statuses: Vec<Status>) {
        let changes = self.changes.clone();
        tokio::spawn(async move {
            for status in statuses {
                changes.send(run.clone(), status).await;
            }
        });
    }
}

impl Engine for MemoryEngine {
    type Error = Infallible;

    async fn resume(&mut self) -> Result<Vec<Found>, Infallible> {
        Ok(self.cluster.runs().values().cloned().collect())
    }

    fn start(&mut self, spec: &RunSpec) {
        let run = spec.run();
        let found = Found { spec: spec.clone(), status: None, stop: None, since: Timestamp::EPOCH };
        self.cluster.runs().entry(run.clone()).or_insert(found);
        let command: Vec<&str> = spec.command.iter().map(String::as_str).collect();
        let statuses = match command[..] {
            ["exit", code] => {
                let code = Outcome::Code(code.parse().unwrap());
                vec![self.cluster.running(&run), self.cluster.ended(&run, code)]
            }
            ["missing"] => {
                vec![self.cluster.ended(&run, Outcome::Refused("no such program".to_owned()))]
            }
            ["until-stopped"] => vec![self.cluster.running(&run)],
            _ => {
                self.cluster.running(&run);
                return;
            }
        };
        self.report(run, statuses);
    }

    fn stop(&mut self, run: &Run, stage: StopStage) {
        let until_stopped = match self.cluster.runs().get_mut(run) {
            Some(found) if matches!(found.status, Some(Status::Running(_))) => {
                found.stop = Some(stage);
                found.spec.command == ["until-stopped"]
            }
            _ => return,
        };
        if until_stopped {
            self.report(run.clone(), vec![self.cluster.ended(run, Outcome::Code(0))]);
        }
    }

    fn test(&mut self) {
        let changes = self.changes.clone();
        tokio::spawn(async move { changes.tested(Ok(())).await });
    }

    fn forget(&mut self, run: &Run) {
        self.cluster.runs().remove(run);
    }
}
