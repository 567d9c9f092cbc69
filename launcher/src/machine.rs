//! What to start, signal and report, given what is desired and what processes do.
//!
//! Pure: told the time and what happened, it answers what to do. The rules:
//! * the same attempt is never started twice, and a job never has two live attempts here: a new
//!   one waits until the old one has ended;
//! * what is not desired is stopped: checkpoint signal (if it has one), then terminate, then kill,
//!   each after its grace;
//! * an order older than the last obeyed is ignored; an expired lease stops nothing;
//! * without any order (bus away, nothing stored yet) whatever runs goes on.
//!
//! What it must remember over a restart it says in actions ([`Action::Remember`], and every
//! [`Order`] and stop before it is carried out), and gets back in [`PersistedState`].

use std::collections::BTreeMap;

use wattle_common::messages::{DesiredJob, LaunchReport, LaunchState, LaunchedJob, NodeDesired};
use wattle_common::{JobId, Machine, NodeId, Timestamp};

use crate::{Config, Order};

/// Exactly one start of one job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Run {
    /// The job.
    pub job: JobId,
    /// Which start of it.
    pub attempt: u32,
}

/// How a start ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The program ended; 128 + the signal's number where a signal ended it.
    Code(i32),
    /// It could not be started.
    Refused(String),
    /// What watched over it is gone, with the node or alone, and the job's end is unknown.
    Lost(String),
}

/// How far the stopping of a job has gone.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// Asked to write a checkpoint and exit.
    Checkpoint,
    /// Asked to terminate.
    Terminate,
    /// Killed, it and all it started.
    Kill,
}

/// What happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// The placer wrote what should be.
    DesiredChanged(NodeDesired),
    /// A job's processes run, in this session.
    Started(Run, u32),
    /// A job's processes are gone, all of them.
    Ended(Run, Outcome),
    /// The launcher is to stop, and its jobs with it.
    Retired,
}

/// What must be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Store the order, then start it; harmless if it has been started before.
    Start(Box<Order>),
    /// Store that it is being stopped, then send the signal of this stage.
    Stop(Run, Stage),
    /// Forget the start: remove its folder, so that it can neither start late nor be found.
    Forget(Run),
    /// Store that this (generation, issued at) has been obeyed.
    Remember(u64, Timestamp),
    /// Store the report in the bucket `actual`.
    Report(LaunchReport),
}

/// What a launcher knows of a start after its own restart.
#[derive(Clone, Debug)]
pub enum Found {
    /// Stored, but nothing has begun to start it.
    Ordered,
    /// It runs in this session; where it is being stopped, how far that has gone, and since when.
    Live(u32, Option<(Stage, Timestamp)>),
    /// It ended; with `true`, it had been asked to stop before.
    Ended(Outcome, bool),
}

/// What outlives a launcher.
#[derive(Clone, Debug, Default)]
pub struct PersistedState {
    /// The last (generation, issued at) obeyed.
    pub obeyed: Option<(u64, Timestamp)>,
    /// Every start there is a folder of, and since when it is so.
    pub runs: Vec<(Order, Found, Timestamp)>,
}

#[derive(Clone, Debug, PartialEq)]
enum State {
    /// Given to the shell (`true`), or found stored only.
    Ordered(bool),
    Running,
    Stopping(Stage),
    Stopped,
    Exited(i32),
    Refused(String),
    Lost(String),
}

impl State {
    const fn is_live(&self) -> bool {
        matches!(self, Self::Ordered(_) | Self::Running | Self::Stopping(_))
    }
}

struct Entry {
    order: Order,
    state: State,
    session: Option<u32>,
    since: Timestamp,
}

/// The launcher of one node.
pub struct Launcher {
    node: NodeId,
    config: Config,
    obeyed: Option<(u64, Timestamp)>,
    desired: Option<NodeDesired>,
    runs: BTreeMap<Run, Entry>,
    /// Orders that no process came of, and what is reported of them.
    unstarted: BTreeMap<Run, (LaunchedJob, Timestamp)>,
    retired: bool,
    reported: Option<Vec<LaunchedJob>>,
    report_at: Timestamp,
}

impl Launcher {
    /// A launcher that continues from `memory`.
    #[must_use]
    pub fn new(config: Config, memory: PersistedState) -> Self {
        let runs = memory.runs.into_iter().map(|(order, found, since)| {
            let (state, session) = match found {
                Found::Ordered => (State::Ordered(false), None),
                Found::Live(session, None) => (State::Running, Some(session)),
                Found::Live(session, Some((stage, _))) => (State::Stopping(stage), Some(session)),
                Found::Ended(outcome, asked) => (ended(outcome, asked), None),
            };
            let run = Run { job: order.job.clone(), attempt: order.attempt };
            (run, Entry { order, state, session, since })
        });
        Self {
            runs: runs.collect(),
            node: config.node.clone(),
            config,
            obeyed: memory.obeyed,
            desired: None,
            unstarted: BTreeMap::new(),
            retired: false,
            reported: None,
            report_at: Timestamp::EPOCH,
        }
    }

    /// Whether nothing runs any more.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        !self.runs.values().any(|entry| entry.state.is_live())
    }

    fn wanted(&self, run: &Run) -> Option<&DesiredJob> {
        let desired = self.desired.as_ref()?;
        // A job named twice: the first counts, as it does when it is started.
        desired.jobs.iter().find(|job| job.job == run.job).filter(|job| job.attempt == run.attempt)
    }

    /// Brings processes nearer to what is desired.
    fn reconcile(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        if self.desired.is_some() || self.retired {
            self.stop_unwanted(now, out);
        }
        if !self.retired {
            self.start_wanted(now, out);
        }
        self.escalate(now, out);
        self.prune(out);
        self.report(now, out);
    }

    fn stop_unwanted(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        let unwanted: Vec<Run> = self
            .runs
            .keys()
            .filter(|run| self.retired || self.wanted(run).is_none_or(|job| job.stop))
            .cloned()
            .collect();
        for run in unwanted {
            let Some(entry) = self.runs.get_mut(&run) else { continue };
            match entry.state {
                State::Running => {
                    let stage = match entry.order.checkpoint_signal {
                        Some(_) => Stage::Checkpoint,
                        None => Stage::Terminate,
                    };
                    entry.state = State::Stopping(stage);
                    entry.since = now;
                    out.push(Action::Stop(run, stage));
                }
                // Its folder must go, or a start that is still on its way could come late.
                State::Ordered(false) => {
                    self.runs.remove(&run);
                    out.push(Action::Forget(run));
                }
                // On its way: it is stopped as soon as it is known to run.
                _ => {}
            }
        }
    }

    fn start_wanted(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        let Some(desired) = &self.desired else { return };
        let mut unstarted = BTreeMap::new();
        for (at, job) in desired.jobs.iter().enumerate() {
            if desired.jobs[..at].iter().any(|earlier| earlier.job == job.job) {
                continue;
            }
            let run = Run { job: job.job.clone(), attempt: job.attempt };
            if let Some(entry) = self.runs.get_mut(&run) {
                if entry.state == State::Ordered(false) && !job.stop {
                    entry.state = State::Ordered(true);
                    out.push(Action::Start(Box::new(entry.order.clone())));
                }
                continue;
            }
            let newest = self.runs.keys().rfind(|known| known.job == run.job);
            let older_lives = self
                .runs
                .iter()
                .any(|(known, entry)| known.job == run.job && entry.state.is_live());
            let state = if let Some(newest) = newest.filter(|newest| newest.attempt > run.attempt) {
                LaunchState::Refused {
                    error: format!(
                        "attempt {} is older than attempt {}, which was started here before",
                        run.attempt, newest.attempt
                    ),
                }
            } else if job.stop {
                LaunchState::Stopped
            } else if older_lives {
                continue;
            } else {
                match Order::new(job, &self.node, &self.config) {
                    Ok(order) => {
                        let order_made = order.clone();
                        self.runs.insert(
                            run,
                            Entry { order, state: State::Ordered(true), session: None, since: now },
                        );
                        out.push(Action::Start(Box::new(order_made)));
                        continue;
                    }
                    Err(error) => LaunchState::Refused { error },
                }
            };
            let since = self.unstarted.get(&run).map_or(now, |(_, since)| *since);
            let launched = LaunchedJob {
                job: run.job.clone(),
                attempt: run.attempt,
                gpus: job.gpus.clone(),
                state,
                session: None,
                since_us: since,
                log_path: String::new(),
            };
            unstarted.insert(run, (launched, since));
        }
        self.unstarted = unstarted;
    }

    /// What has been asked to stop and takes too long is asked in a harder way.
    fn escalate(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        for (run, entry) in &mut self.runs {
            let State::Stopping(stage) = entry.state else { continue };
            if now < entry.since + grace(&self.config, stage) {
                continue;
            }
            let next = match stage {
                Stage::Checkpoint => Stage::Terminate,
                // Again and again: a process may have been starting another when it was killed.
                Stage::Terminate | Stage::Kill => Stage::Kill,
            };
            entry.state = State::Stopping(next);
            entry.since = now;
            out.push(Action::Stop(run.clone(), next));
        }
    }

    /// Forgets the oldest ended starts beyond the number that is kept.
    fn prune(&mut self, out: &mut Vec<Action>) {
        let mut ended: Vec<(Timestamp, Run)> = self
            .runs
            .iter()
            .filter(|(run, entry)| !entry.state.is_live() && self.wanted(run).is_none())
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

    fn report(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        let jobs: Vec<LaunchedJob> = self
            .runs
            .iter()
            .filter(|(run, entry)| {
                entry.state.is_live() || self.desired.is_none() || self.wanted(run).is_some()
            })
            .filter_map(|(run, entry)| {
                launched(entry, self.wanted(run).is_some_and(|job| !job.stop))
            })
            .chain(self.unstarted.values().map(|(job, _)| job.clone()))
            .collect();
        if self.reported.as_ref() == Some(&jobs) && now < self.report_at {
            return;
        }
        out.push(Action::Report(LaunchReport {
            node: self.node.clone(),
            at_us: now,
            observed_generation: self.obeyed.map_or(0, |(generation, _)| generation),
            jobs: jobs.clone(),
        }));
        self.reported = Some(jobs);
        self.report_at = now + self.config.heartbeat();
    }
}

/// What is reported of a start; nothing while it is on its way.
fn launched(entry: &Entry, wanted: bool) -> Option<LaunchedJob> {
    Some(LaunchedJob {
        job: entry.order.job.clone(),
        attempt: entry.order.attempt,
        gpus: entry.order.gpus.clone(),
        state: match &entry.state {
            // It may hold its GPUs already, and is stopped as soon as it is known to.
            State::Ordered(true) if !wanted => LaunchState::Stopping,
            State::Ordered(_) => return None,
            State::Running => LaunchState::Running,
            State::Stopping(_) => LaunchState::Stopping,
            State::Stopped => LaunchState::Stopped,
            State::Exited(code) => LaunchState::Exited { code: *code },
            State::Refused(error) => LaunchState::Refused { error: error.clone() },
            State::Lost(error) => LaunchState::Lost { error: error.clone() },
        },
        session: entry.session,
        since_us: entry.since,
        log_path: entry.order.log_path.clone(),
    })
}

const fn grace(config: &Config, stage: Stage) -> std::time::Duration {
    match stage {
        Stage::Checkpoint => config.checkpoint_grace(),
        Stage::Terminate | Stage::Kill => config.terminate_grace(),
    }
}

/// Whatever way it ended after it was asked to stop, it stopped because it was asked.
fn ended(outcome: Outcome, asked: bool) -> State {
    match outcome {
        Outcome::Refused(error) => State::Refused(error),
        Outcome::Code(_) | Outcome::Lost(_) if asked => State::Stopped,
        Outcome::Code(code) => State::Exited(code),
        Outcome::Lost(error) => State::Lost(error),
    }
}

impl Machine for Launcher {
    type Event = Event;
    type Action = Action;

    fn handle(&mut self, now: Timestamp, event: Event, out: &mut Vec<Action>) {
        match event {
            Event::DesiredChanged(desired) => {
                let current = (desired.generation, desired.issued_at_us);
                if desired.node != self.node || self.obeyed.is_some_and(|last| current < last) {
                    return;
                }
                // A renewed lease changes nothing here, and is not worth a write to disk.
                if self.obeyed.is_none_or(|(generation, _)| generation < desired.generation) {
                    out.push(Action::Remember(current.0, current.1));
                }
                let newer = self.obeyed.is_none_or(|(generation, _)| generation < current.0);
                self.obeyed = Some(current);
                self.desired = Some(desired);
                if newer {
                    // Whoever waits for the generation to be seen learns it now.
                    self.report_at = now;
                }
            }
            Event::Started(run, session) => {
                if let Some(entry) = self.runs.get_mut(&run)
                    && matches!(entry.state, State::Ordered(_))
                {
                    entry.state = State::Running;
                    entry.session = Some(session);
                    entry.since = now;
                }
            }
            Event::Ended(run, outcome) => {
                if let Some(entry) = self.runs.get_mut(&run)
                    && entry.state.is_live()
                {
                    let asked = matches!(entry.state, State::Stopping(_));
                    entry.state = ended(outcome, asked);
                    entry.session = None;
                    entry.since = now;
                }
            }
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
                Some((entry.since + grace(&self.config, stage), "a job takes too long to stop"))
            }
            _ => None,
        });
        escalation.chain([(self.report_at, "heartbeat")]).min_by_key(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests;
