//! A run that the launcher knows: its state, how its end is interpreted, and its report.

use wattle_common::Timestamp;
use wattle_common::job::signal_number;
use wattle_common::messages::{LaunchState, LaunchedJob, NodeFaultKind, ReachedLimit};

use crate::{Fault, Found, Handle, Outcome, RunSpec, Status, StopStage};

const SIGINT: i32 = 2;
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum State {
    /// Stored by the engine before a restart; nothing has begun to start it.
    Stored,
    /// Given to the engine in this life of the launcher.
    Starting,
    Running,
    Stopping(StopStage),
    /// With the signal that ended it after a checkpoint was requested.
    Stopped(Option<i32>),
    Exited(i32, Option<ReachedLimit>),
    /// With the kind of the node's fault, if that is the cause.
    Refused(String, Option<NodeFaultKind>),
    Lost(String),
}

impl State {
    pub(super) const fn is_live(&self) -> bool {
        matches!(self, Self::Stored | Self::Starting | Self::Running | Self::Stopping(_))
    }

    /// The state of an ended run. A run that exits after a stop was requested has stopped,
    /// whatever its exit code.
    pub(super) fn ended(outcome: Outcome, stop: Option<StopStage>, spec: &RunSpec) -> Self {
        if let Some(stage) = stop
            && !matches!(outcome, Outcome::Refused(_) | Outcome::Foreign(_) | Outcome::Prevented(_))
        {
            return Self::Stopped(
                checkpoint_signal(spec).and_then(|signal| killed_by(&outcome, stage, signal)),
            );
        }
        match outcome {
            Outcome::Refused(error) | Outcome::Foreign(error) => Self::Refused(error, None),
            Outcome::Prevented(Fault { kind, error }) => Self::Refused(error, Some(kind)),
            Outcome::Code(code) => Self::Exited(code, None),
            Outcome::Killed(signal) => Self::Exited(128 + signal, None),
            Outcome::Limited { code, limit } => Self::Exited(code, Some(limit)),
            Outcome::Lost(error) => Self::Lost(error),
        }
    }
}

/// The number of the run's checkpoint signal; `None` if it has none.
fn checkpoint_signal(spec: &RunSpec) -> Option<i32> {
    spec.checkpoint_signal.as_deref().and_then(signal_number)
}

/// The signal that ended a run which was requested to write a checkpoint; `None` if it exited by itself.
///
/// A shell exits with 128 + the number of the signal that ended its program. By convention, programs that
/// handle SIGTERM or SIGINT in good order do so too.
fn killed_by(outcome: &Outcome, stage: StopStage, checkpoint: i32) -> Option<i32> {
    let in_good_order = [SIGINT, SIGTERM];
    match outcome {
        Outcome::Killed(signal) => Some(*signal),
        Outcome::Limited { code, .. } => Some(code - 128).filter(|signal| *signal > 0),
        Outcome::Code(code) => {
            let signal = code - 128;
            let by_request = signal == checkpoint && !in_good_order.contains(&signal);
            let by_stop = stage > StopStage::Checkpoint && [SIGTERM, SIGKILL].contains(&signal);
            (by_request || by_stop).then_some(signal)
        }
        Outcome::Lost(_) | Outcome::Refused(_) | Outcome::Foreign(_) | Outcome::Prevented(_) => {
            None
        }
    }
}

pub(super) struct Entry {
    pub(super) spec: RunSpec,
    pub(super) state: State,
    /// The engine's handle, while the run's processes run.
    pub(super) handle: Option<Handle>,
    pub(super) log_path: String,
    pub(super) since: Timestamp,
}

impl Entry {
    pub(super) fn starting(spec: RunSpec, now: Timestamp) -> Self {
        let log_path = spec.log_path.clone();
        Self { spec, state: State::Starting, handle: None, log_path, since: now }
    }

    pub(super) fn found(found: Found) -> Self {
        let Found { spec, status, stop, since } = found;
        let log_path = spec.log_path.clone();
        let mut entry = Self { spec, state: State::Stored, handle: None, log_path, since };
        match status {
            None => {}
            Some(Status::Running(handle)) => {
                entry.run_by(handle);
                entry.state = stop.map_or(State::Running, State::Stopping);
            }
            Some(Status::Ended(outcome)) => {
                entry.state = State::ended(outcome, stop, &entry.spec);
            }
        }
        entry
    }

    pub(super) fn run_by(&mut self, handle: Handle) {
        self.log_path.clone_from(&handle.log_path);
        self.handle = Some(handle);
    }
}

/// The report of a run; `None` while it starts.
pub(super) fn launched(entry: &Entry, desired: bool) -> Option<LaunchedJob> {
    Some(LaunchedJob {
        job: entry.spec.job.clone(),
        admission: entry.spec.admission.clone(),
        attempt: entry.spec.attempt,
        gpus: entry.spec.gpus.clone(),
        state: match &entry.state {
            // It may hold its GPUs already, and is stopped once it is reported as running.
            State::Starting if !desired => LaunchState::Stopping,
            State::Stored | State::Starting => return None,
            State::Running => LaunchState::Running,
            State::Stopping(_) => LaunchState::Stopping,
            State::Stopped(killed_by) => LaunchState::Stopped { killed_by: *killed_by },
            State::Exited(code, limit) => LaunchState::Exited { code: *code, limit: *limit },
            State::Refused(error, node_fault) => {
                LaunchState::Refused { error: error.clone(), node_fault: *node_fault }
            }
            State::Lost(error) => LaunchState::Lost { error: error.clone() },
        },
        processes: entry.handle.as_ref().map(|handle| handle.processes.clone()),
        since_us: entry.since,
        log_path: entry.log_path.clone(),
    })
}
