//! Metrics of the launcher: the jobs of the node by state, their starts and ends.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use wattle_common::JobId;
use wattle_common::messages::{LaunchReport, LaunchState};
use wattle_runtime::metrics::{Counter, Counters, Gauge, Gauges, Metrics};

use crate::Action;

/// The states of a job's processes, as in a launch report.
const STATES: [&str; 6] = ["running", "stopping", "stopped", "exited", "lost", "refused"];
/// The results of an attempt.
const RESULTS: [&str; 7] =
    ["completed", "failed", "stopped", "unsaved", "lost", "refused", "prevented"];

/// Attempts of jobs.
type Runs = BTreeSet<(JobId, u32)>;

/// The metrics of one launcher. Clones share them.
#[derive(Clone)]
pub struct LauncherMetrics {
    jobs: Gauges<1>,
    generation: Gauge,
    starts: Counters<1>,
    stops: Counter,
    ends: Counters<1>,
    fault: Gauge,
    orders_refused: Counter,
    /// The ended attempts of the last report; absent before the first.
    ended: Arc<Mutex<Option<Runs>>>,
}

fn state(state: &LaunchState) -> &'static str {
    match state {
        LaunchState::Running => "running",
        LaunchState::Stopping => "stopping",
        LaunchState::Stopped { .. } => "stopped",
        LaunchState::Exited { .. } => "exited",
        LaunchState::Lost { .. } => "lost",
        LaunchState::Refused { .. } => "refused",
    }
}

/// The result of an attempt; `None` while its processes run.
fn result(state: &LaunchState) -> Option<&'static str> {
    match state {
        LaunchState::Running | LaunchState::Stopping => None,
        LaunchState::Stopped { killed_by: None } => Some("stopped"),
        LaunchState::Stopped { killed_by: Some(_) } => Some("unsaved"),
        LaunchState::Exited { code: 0, .. } => Some("completed"),
        LaunchState::Exited { .. } => Some("failed"),
        LaunchState::Lost { .. } => Some("lost"),
        LaunchState::Refused { node_fault: None, .. } => Some("refused"),
        LaunchState::Refused { node_fault: Some(_), .. } => Some("prevented"),
    }
}

impl LauncherMetrics {
    /// Registers the metrics.
    #[must_use]
    pub fn new(metrics: &Metrics) -> Self {
        let starts = metrics.counters(
            "wattle_launcher_starts_total",
            "Started attempts of jobs: the first one of a job, or a restart",
            ["attempt"],
        );
        starts.begin([["first"], ["restart"]]);
        let ends = metrics.counters(
            "wattle_launcher_ends_total",
            "Ended attempts on this node: completed, failed, stopped on request, unsaved (stopped without \
             a checkpoint), lost, refused or prevented by the node",
            ["result"],
        );
        ends.begin(RESULTS.map(|result| [result]));
        Self {
            jobs: metrics.gauges(
                "wattle_launcher_jobs",
                "Jobs in the launcher's report by the state of their processes",
                ["state"],
            ),
            generation: metrics.gauge(
                "wattle_launcher_order_generation",
                "Newest generation of the desired state that was received",
            ),
            starts,
            stops: metrics.counter(
                "wattle_launcher_stops_total",
                "Signals to stop an attempt: checkpoint, terminate or kill",
            ),
            ends,
            fault: metrics.gauge(
                "wattle_launcher_fault",
                "Whether a fault of the node keeps it from starting jobs: 1, else 0",
            ),
            orders_refused: metrics.counter(
                "wattle_launcher_orders_refused_total",
                "Desired states that were refused: an impossible number",
            ),
            ended: Arc::default(),
        }
    }

    /// The machine returned an action.
    pub(super) fn acted(&self, action: &Action) {
        match action {
            Action::Start(spec) => {
                self.starts.increment([if spec.attempt > 1 { "restart" } else { "first" }]);
            }
            Action::Stop(..) => self.stops.increment([]),
            Action::Alarm(_) => self.orders_refused.increment([]),
            Action::Report(report) => self.reported(report),
            Action::Forget(_)
            | Action::StoreObeyed(_)
            | Action::Test
            | Action::FaultAlarm(_)
            | Action::FaultEnded => {}
        }
    }

    fn reported(&self, report: &LaunchReport) {
        let mut jobs: BTreeMap<&str, u32> = STATES.map(|state| (state, 0)).into();
        for job in &report.jobs {
            *jobs.entry(state(&job.state)).or_default() += 1;
        }
        for (state, count) in jobs {
            self.jobs.set([state], Some(f64::from(count)));
        }
        self.generation.set([], Some(report.observed_generation as f64));
        self.fault.set([], Some(f64::from(u8::from(report.fault.is_some()))));
        let ended: Vec<_> = report
            .jobs
            .iter()
            .filter_map(|job| Some(((job.job.clone(), job.attempt), result(&job.state)?)))
            .collect();
        let mut known = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        // Those of the first report ended under an earlier launcher.
        if let Some(known) = &*known {
            for (_, result) in ended.iter().filter(|(run, _)| !known.contains(run)) {
                self.ends.increment([result]);
            }
        }
        *known = Some(ended.into_iter().map(|(run, _)| run).collect());
    }
}

#[cfg(test)]
mod tests {
    use wattle_common::messages::LaunchedJob;
    use wattle_common::{ClusterId, NodeId, Timestamp};

    use super::*;

    fn report(states: &[LaunchState]) -> Action {
        let job = |(number, state): (usize, &LaunchState)| LaunchedJob {
            job: JobId::new(&format!("j{number}")).unwrap(),
            admission: None,
            attempt: 1,
            gpus: vec![0],
            state: state.clone(),
            processes: None,
            since_us: Timestamp::EPOCH,
            log_path: String::new(),
        };
        Action::Report(LaunchReport {
            node: NodeId::new("n0").unwrap(),
            instance: String::new(),
            at_us: Timestamp::EPOCH,
            observed_generation: 7,
            jobs: states.iter().enumerate().map(job).collect(),
            has_ended: false,
            fault: None,
            site: None,
        })
    }

    #[test]
    fn each_end_counts_once_and_those_of_an_earlier_launcher_do_not() {
        let metrics = Metrics::new("launcher", &ClusterId::new("main").unwrap(), None);
        let launcher = LauncherMetrics::new(&metrics);
        let count = |result: &str| {
            let text = metrics.text();
            let label = format!("result=\"{result}\"");
            let line = text.lines().find(|line| {
                line.starts_with("wattle_launcher_ends_total{") && line.contains(&label)
            });
            line.unwrap().rsplit(' ').next().unwrap().to_owned()
        };
        let exited = LaunchState::exited;
        launcher.acted(&report(&[exited(0), LaunchState::Running]));
        assert_eq!(count("completed"), "0");
        launcher.acted(&report(&[exited(0), exited(1)]));
        launcher.acted(&report(&[exited(0), exited(1)]));
        assert_eq!((count("completed"), count("failed")), ("0".to_owned(), "1".to_owned()));
        assert!(metrics.text().contains("wattle_launcher_order_generation{"));
    }
}
