//! Decides what to start, stop and report, from the desired state and the states of the runs.
//!
//! Pure. The rules:
//! * An attempt of a submission is never started twice, and a job never has two live attempts on this node: a
//!   new attempt waits until the old one has ended. The job's id alone identifies no run: another submission
//!   may have had it.
//! * A run that is not desired is stopped: by its checkpoint signal (if it has one), then by
//!   terminating it, then by killing it, each after the grace of the stage before.
//! * A desired state older than the last one obeyed, or with a number outside its limits, is ignored
//!   ([`wattle_common::bounds::check_order`]). An expired lease stops nothing.
//! * Without a desired state (bus away, nothing stored yet) every run continues.
//! * A start that fails because of the node shows a fault of the node. It is reported, and tested until it
//!   is gone; the placer sends no jobs meanwhile.
//!
//! State that must survive a restart is stored by actions ([`Action::StoreObeyed`] and the
//! engine's records of each start and stop) and comes back in [`PersistedState`].

mod entry;
mod health;

use std::collections::BTreeMap;

use wattle_common::bounds::{OrderRefused, OrderVersion, check_order};
use wattle_common::messages::{
    DesiredJob, LaunchReport, LaunchState, LaunchedJob, NodeDesired, NodeFault,
};
use wattle_common::{AdmissionId, Machine, NodeId, RaisedAlarms, Timestamp};

use self::entry::{Entry, State, launched};
use self::health::Health;
use crate::{Config, Fault, Found, Outcome, Run, RunSpec, Status, StopStage};

/// Most ended runs in a report to an older store: about 300 kB.
const ENDED_REPORTED_MAX: usize = 1_000;

/// Most refused orders that are remembered, so that each raises one alarm.
const REFUSED_MAX: usize = 64;

/// An input of the launcher.
#[derive(Clone, Debug)]
pub enum Event {
    /// The placer wrote a desired state.
    DesiredChanged(NodeDesired),
    /// The engine reports a change of a run.
    StatusChanged(Run, Status),
    /// The result of a test whether this node can start jobs.
    Tested(Result<(), Fault>),
    /// The launcher is shutting down and must stop its runs.
    Retired,
}

/// An output of the launcher.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Have the engine start this run.
    Start(Box<RunSpec>),
    /// Have the engine stop this run, at this stage.
    Stop(Run, StopStage),
    /// Have the engine remove what it stores of this run.
    Forget(Run),
    /// Store that the desired state of this version has been obeyed.
    StoreObeyed(OrderVersion),
    /// Store the report in the bucket `actual`.
    Report(LaunchReport),
    /// Report to the operator that a desired state was refused.
    Alarm(OrderRefused),
    /// Test whether this node can start jobs, and return [`Event::Tested`].
    Test,
    /// Report to the operator that this node cannot start jobs.
    FaultAlarm(NodeFault),
    /// Report to the operator that this node can start jobs again.
    FaultEnded,
}

/// The state that outlives a launcher.
#[derive(Clone, Debug, Default)]
pub struct PersistedState {
    /// The version of the last desired state obeyed.
    pub obeyed: Option<OrderVersion>,
    /// The runs that the engine knows.
    pub runs: Vec<Found>,
}

/// The launcher of one node.
pub struct Launcher {
    node: NodeId,
    /// This process, in reports.
    instance: String,
    config: Config,
    obeyed: Option<OrderVersion>,
    /// The generations refused lately, so that repeated ones raise one alarm each.
    refused: RaisedAlarms<u64>,
    desired: Option<NodeDesired>,
    runs: BTreeMap<Run, Entry>,
    /// Desired jobs that were not given to the engine, and their reports.
    unstarted: BTreeMap<Run, LaunchedJob>,
    retired: bool,
    /// Whether an older desired state than the one obeyed was read last: the store is older.
    store_is_older: bool,
    health: Health,
    reported: Option<(Vec<LaunchedJob>, bool, Option<NodeFault>)>,
    /// The time of the last report.
    reported_at: Option<Timestamp>,
    report_at: Timestamp,
}

impl Launcher {
    /// A launcher that continues from `state`.
    #[must_use]
    pub fn new(config: Config, state: PersistedState) -> Self {
        let runs = state.runs.into_iter().map(|found| (found.spec.run(), Entry::found(found)));
        Self {
            runs: runs.collect(),
            node: config.node.clone(),
            instance: String::new(),
            config,
            obeyed: state.obeyed,
            refused: RaisedAlarms::new(REFUSED_MAX),
            desired: None,
            unstarted: BTreeMap::new(),
            retired: false,
            store_is_older: false,
            health: Health::default(),
            reported: None,
            reported_at: None,
            report_at: Timestamp::EPOCH,
        }
    }

    /// Names this process in its reports.
    #[must_use]
    pub fn instance(mut self, instance: String) -> Self {
        self.instance = instance;
        self
    }

    /// Whether every run has ended.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        !self.runs.values().any(|entry| entry.state.is_live())
    }

    /// The run that an order names. A known run of which launcher or placer were of an earlier version has
    /// another name than the order.
    fn run_of(&self, job: &DesiredJob) -> Run {
        let run = Run {
            node: self.node.clone(),
            job: job.job.clone(),
            admission: job.admission.clone(),
            attempt: job.attempt,
        };
        if self.runs.contains_key(&run) {
            return run;
        }
        let is_named = |(known, entry): &(&Run, &Entry)| {
            let (ordered, known_as) = (job.admission.as_ref(), known.admission.as_ref());
            known.job == job.job
                && known.attempt == job.attempt
                && AdmissionId::has_run(ordered, known_as, entry.since)
        };
        // The newest, if the order names no submission.
        let known = self.runs.iter().rev().find(is_named).map(|(known, _)| known.clone());
        known.unwrap_or(run)
    }

    /// The desired job of this run. If the desired state names a job twice, the first counts.
    fn desired_job(&self, run: &Run) -> Option<&DesiredJob> {
        let desired = self.desired.as_ref()?;
        let named = desired.jobs.iter().find(|job| job.job == run.job);
        named.filter(|job| job.attempt == run.attempt && self.run_of(job) == *run)
    }

    /// Whether a desired state is obeyed. An absurd one raises an alarm, an outdated one does not: the
    /// bus may deliver it again.
    fn accepts(&mut self, now: Timestamp, desired: &NodeDesired, out: &mut Vec<Action>) -> bool {
        let refused = match check_order(desired, self.obeyed, now, self.config.lease_max()) {
            Ok(()) => return true,
            Err(refused) => refused,
        };
        self.store_is_older |= self.obeyed.is_some_and(|obeyed| {
            matches!(refused, OrderRefused::Outdated { generation, .. } if generation < obeyed.generation)
        });
        if matches!(refused, OrderRefused::OutOfBounds(_))
            && self.refused.is_new(now, &desired.generation)
        {
            out.push(Action::Alarm(refused));
        }
        false
    }

    fn reconcile(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        if self.desired.is_some() || self.retired {
            self.stop_undesired(now, out);
        }
        if !self.retired {
            self.start_desired(now, out);
        }
        self.escalate(now, out);
        self.health.test_if_due(now, out);
        self.prune(out);
        self.report(now, out);
    }

    fn stop_undesired(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        let undesired: Vec<Run> = self
            .runs
            .keys()
            .filter(|run| self.retired || self.desired_job(run).is_none_or(|job| job.stop))
            .cloned()
            .collect();
        for run in undesired {
            let Some(entry) = self.runs.get_mut(&run) else { continue };
            match entry.state {
                State::Running => {
                    let stage = match entry.spec.checkpoint_signal {
                        Some(_) => StopStage::Checkpoint,
                        None => StopStage::Terminate,
                    };
                    entry.state = State::Stopping(stage);
                    entry.since = now;
                    out.push(Action::Stop(run, stage));
                }
                // Forgotten, so that an interrupted start cannot complete later.
                State::Stored => {
                    self.runs.remove(&run);
                    out.push(Action::Forget(run));
                }
                // A starting run is stopped once it is reported as running.
                _ => {}
            }
        }
    }

    fn start_desired(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        let Some(desired) = &self.desired else { return };
        let mut unstarted = BTreeMap::new();
        for (at, job) in desired.jobs.iter().enumerate() {
            if desired.jobs[..at].iter().any(|earlier| earlier.job == job.job) {
                continue;
            }
            let run = self.run_of(job);
            if let Some(entry) = self.runs.get_mut(&run) {
                if entry.state == State::Stored && !job.stop {
                    entry.state = State::Starting;
                    out.push(Action::Start(Box::new(entry.spec.clone())));
                }
                continue;
            }
            let attempts = || self.runs.iter().filter(|(known, _)| known.job == run.job);
            let of_submission = attempts().filter(|(known, _)| known.admission == run.admission);
            let newest = of_submission.map(|(known, _)| known.attempt).max();
            let state = if let Some(newest) = newest.filter(|newest| *newest > run.attempt) {
                LaunchState::refused(format!(
                    "attempt {} is older than attempt {newest}, which was started here before",
                    run.attempt
                ))
            } else if job.stop {
                LaunchState::STOPPED
            } else if attempts().any(|(_, entry)| entry.state.is_live()) {
                continue;
            } else {
                match RunSpec::new(job, &self.node, &self.config) {
                    Ok(spec) => {
                        out.push(Action::Start(Box::new(spec.clone())));
                        self.runs.insert(run, Entry::starting(spec, now));
                        continue;
                    }
                    Err(error) => LaunchState::refused(error.to_string()),
                }
            };
            let launched = LaunchedJob {
                job: run.job.clone(),
                admission: run.admission.clone(),
                attempt: run.attempt,
                gpus: job.gpus.clone(),
                state,
                processes: None,
                since_us: self.unstarted.get(&run).map_or(now, |known| known.since_us),
                log_path: String::new(),
            };
            unstarted.insert(run, launched);
        }
        self.unstarted = unstarted;
    }

    fn status_changed(&mut self, now: Timestamp, run: &Run, status: Status, out: &mut Vec<Action>) {
        let Some(entry) = self.runs.get_mut(run) else { return };
        match status {
            Status::Running(handle) => {
                if matches!(entry.state, State::Stored | State::Starting) {
                    entry.run_by(handle);
                    entry.state = State::Running;
                    entry.since = now;
                }
            }
            Status::Ended(outcome) => {
                if !entry.state.is_live() {
                    return;
                }
                if let Outcome::Prevented(fault) = &outcome {
                    self.health.failed(now, fault.clone(), out);
                }
                let stop = match entry.state {
                    State::Stopping(stage) => Some(stage),
                    _ => None,
                };
                entry.state = State::ended(outcome, stop, &entry.spec);
                entry.handle = None;
                entry.since = now;
            }
        }
    }

    /// Moves stops whose grace has passed to the next stage.
    fn escalate(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        for (run, entry) in &mut self.runs {
            let State::Stopping(stage) = entry.state else { continue };
            if now < entry.since + grace(&self.config, stage) {
                continue;
            }
            let next = match stage {
                StopStage::Checkpoint => StopStage::Terminate,
                // Repeated: a process may have been starting another one when it was killed.
                StopStage::Terminate | StopStage::Kill => StopStage::Kill,
            };
            entry.state = State::Stopping(next);
            entry.since = now;
            out.push(Action::Stop(run.clone(), next));
        }
    }

    /// Forgets the oldest ended runs beyond [`Config::ended_kept`].
    fn prune(&mut self, out: &mut Vec<Action>) {
        let mut ended: Vec<(Timestamp, Run)> = self
            .runs
            .iter()
            .filter(|(run, entry)| !entry.state.is_live() && self.desired_job(run).is_none())
            .map(|(run, entry)| (entry.since, run.clone()))
            .collect();
        if ended.len() > self.config.ended_kept {
            ended.sort();
            for (_, run) in ended.drain(..ended.len() - self.config.ended_kept) {
                self.runs.remove(&run);
                out.push(Action::Forget(run));
            }
        }
    }

    /// When the oldest ended run ended of those that a report can contain, if there are more.
    fn oldest_reported(&self) -> Option<Timestamp> {
        let ended = self.runs.values().filter(|entry| !entry.state.is_live());
        let mut times: Vec<Timestamp> = ended.map(|entry| entry.since).collect();
        times.sort_unstable();
        times.len().checked_sub(ENDED_REPORTED_MAX).map(|older| times[older])
    }

    fn report(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        let ended_from = self.oldest_reported().unwrap_or_default();
        let jobs: Vec<LaunchedJob> = self
            .runs
            .iter()
            .filter(|(run, entry)| {
                entry.state.is_live()
                    || self.desired.is_none()
                    || self.desired_job(run).is_some()
                    || (self.store_is_older && entry.since >= ended_from)
            })
            .filter_map(|(run, entry)| {
                launched(entry, self.desired_job(run).is_some_and(|job| !job.stop))
            })
            .chain(self.unstarted.values().cloned())
            .collect();
        let content = (jobs, self.store_is_older, self.health.fault().cloned());
        if self.reported.as_ref() == Some(&content) && now < self.report_at {
            return;
        }
        let at_us = now.advanced_past(self.reported_at);
        out.push(Action::Report(LaunchReport {
            node: self.node.clone(),
            instance: self.instance.clone(),
            at_us,
            observed_generation: self.obeyed.map_or(0, |obeyed| obeyed.generation),
            jobs: content.0.clone(),
            has_ended: content.1,
            fault: content.2.clone(),
            site: None,
        }));
        self.reported = Some(content);
        self.reported_at = Some(at_us);
        self.report_at = now + self.config.heartbeat();
    }
}

const fn grace(config: &Config, stage: StopStage) -> std::time::Duration {
    match stage {
        StopStage::Checkpoint => config.checkpoint_grace(),
        StopStage::Terminate | StopStage::Kill => config.terminate_grace(),
    }
}

impl Machine for Launcher {
    type Event = Event;
    type Action = Action;

    fn handle(&mut self, now: Timestamp, event: Event, out: &mut Vec<Action>) {
        match event {
            Event::DesiredChanged(desired) => {
                if desired.node != self.node {
                    return;
                }
                if !self.accepts(now, &desired, out) {
                    self.report(now, out);
                    return;
                }
                self.store_is_older = false;
                let version = OrderVersion::of(&desired);
                let renewed =
                    self.obeyed.is_some_and(|obeyed| obeyed.generation == version.generation);
                self.obeyed = Some(version);
                self.desired = Some(desired);
                // A renewed lease changes nothing here and is neither stored nor reported at once.
                if !renewed {
                    out.push(Action::StoreObeyed(version));
                    self.report_at = now;
                }
            }
            Event::StatusChanged(run, status) => self.status_changed(now, &run, status, out),
            Event::Tested(result) => self.health.tested(now, result, out),
            Event::Retired => self.retired = true,
        }
        self.reconcile(now, out);
    }

    fn wake(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        self.reconcile(now, out);
    }

    fn next_wake(&self) -> Option<(Timestamp, &'static str)> {
        let escalation = self.runs.values().filter_map(|entry| match entry.state {
            State::Stopping(stage) => {
                Some((entry.since + grace(&self.config, stage), "the grace of a stop has passed"))
            }
            _ => None,
        });
        let test = self.health.test_at().map(|at| (at, "a test of the node is due"));
        escalation.chain(test).chain([(self.report_at, "heartbeat")]).min_by_key(|(at, _)| *at)
    }
}
