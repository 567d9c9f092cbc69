//! Connects the decisions with Slurm, the state folder and the bus.
//!
//! A round reads Slurm, decides and carries out all actions in their order. The next one follows a change on
//! the bus, the bell or the interval of polls. The lease is checked before each command. While the bus is away
//! Slurm is still read and orders that are known are carried out until the lease ends; the intake plugin
//! leaves new jobs to Slurm, because the heartbeat stops.

pub mod client;
pub mod facts;
pub mod metrics;
pub mod programs;
mod signs;

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use wattle_common::Machine as _;
use wattle_common::subject::{Bucket, LeaseKey};
use wattle_runtime::bus::{Bus, BusError, Change, Leadership, Watch, claimant};
use wattle_runtime::clock;
use wattle_runtime::service::{self, Identity, LeaseMode, Phase, Service, Shell};
use wattle_runtime::shell::{Shutdown, chain};
use wattle_site::PersistedState;
use wattle_site::shell::reports::Reports;
use wattle_site::shell::requests::{self, Answer, PersonRequest};
use wattle_site::shell::{StateError, StateFolder};

use self::client::CommandLine;
use self::metrics::SlurmMetrics;
use self::programs::Programs;
use self::signs::Bell;
use crate::client::Client;
use crate::config::Config;
use crate::intake;
use crate::machine::{Action, Event, SlurmMachine};

/// Interval of the polls after a command: a released job usually starts within it.
const POLL_AFTER_COMMAND: Duration = Duration::from_millis(300);
/// Number of polls at that interval.
const EARLY_POLLS: u32 = 6;
/// The interval of polls is at least this number of times the length of one.
const POLL_SHARE: u32 = 10;
/// Shortest time between two polls of Slurm: wall time.
const POLL_MIN: Duration = Duration::from_millis(100);
/// Pause before the lock of the state folder is tried again: wall time.
const RETRY: Duration = Duration::from_secs(1);
/// Changes of a bucket that are handled before the next poll.
const BATCH_MAX: usize = 256;
/// Most answers of the placer that wait.
const ANSWERS_MAX: usize = 256;

/// Why the service cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum ShellError {
    /// The bus refuses an operation.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// The state folder cannot be used.
    #[error("the released attempts cannot be stored, so no job is released")]
    State(#[from] StateError),
}

/// Why an active phase ended.
type End = service::End<ShellError>;

impl From<ShellError> for End {
    fn from(error: ShellError) -> Self {
        Self::Failed(error)
    }
}

/// Runs until shutdown.
///
/// # Errors
/// If the bus refuses the connection, or the state folder cannot be used.
pub async fn run(config: Config, shutdown: &Shutdown) -> Result<(), ShellError> {
    let about = "connects the cluster with Slurm";
    let identity = Identity::of_cluster("wattle-slurm", about, &config.cluster);
    let length = Duration::from_millis(config.service_lease_wall_ms);
    let mode = LeaseMode::Checked { key: LeaseKey::Slurm, length };
    let shell = Shell::start(identity, &config.metrics, &config.nats);
    let metrics = SlurmMetrics::new(shell.metrics(), config.level);
    shell.run::<SlurmService>(mode, (config, metrics), shutdown).await
}

/// Waits until no other process uses the state folder, and reads it.
async fn open_folder(config: &Config) -> Result<(StateFolder, PersistedState), ShellError> {
    let mut logged = false;
    loop {
        if let Some(folder) = StateFolder::open(&config.state_dir)? {
            let state = folder.load()?;
            return Ok((folder, state));
        }
        if !std::mem::replace(&mut logged, true) {
            tracing::warn!(
                state_dir = %config.state_dir.display(),
                "another process uses the state folder; waiting until it has ended"
            );
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// Seconds by which local time is ahead of UTC, for deadlines without a zone.
async fn local_offset_s() -> i64 {
    let output = tokio::process::Command::new("date").arg("+%z").output().await;
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    offset_s(&text.unwrap_or_default()).unwrap_or_else(|| {
        tracing::warn!("local time is not known: deadlines without a zone are read as UTC");
        0
    })
}

/// `+0130`: seconds.
fn offset_s(text: &str) -> Option<i64> {
    let (sign, digits) = match text.split_at_checked(1)? {
        ("+", digits) => (1, digits),
        ("-", digits) => (-1, digits),
        _ => return None,
    };
    let number: i64 = digits.parse().ok().filter(|_| digits.len() == 4)?;
    Some(sign * (number / 100 * 3_600 + number % 100 * 60))
}

/// What the sources deliver.
enum Input {
    /// Slurm is to be read.
    Round,
    Answer(Answer),
    Desired(Vec<Change>),
    Records(Vec<Change>),
}

/// The process that holds the lease.
struct SlurmService {
    config: Config,
    bus: Bus,
    lease: Leadership,
    folder: StateFolder,
    client: CommandLine,
    machine: SlurmMachine,
    desired: Watch,
    records: Watch,
    bell: Bell,
    reports: Reports,
    requests: mpsc::Sender<PersonRequest>,
    answers: mpsc::Receiver<Answer>,
    /// When the last round began, and when the next regular one is due, of the monotonic clock.
    began: Duration,
    due: Duration,
    /// Whether something has changed since the last round: the next one follows at the shortest interval.
    is_changed: bool,
    /// Length of the last poll.
    poll_time: Duration,
    /// Remaining polls at the short interval after a command.
    early_polls: u32,
    /// Why Slurm was not read, while it is not.
    away: Option<String>,
    metrics: SlurmMetrics,
    _registered: wattle_runtime::bus::Service,
    _tasks: JoinSet<()>,
}

impl Service for SlurmService {
    type Machine = SlurmMachine;
    type Input = Input;
    type Setup = (Config, SlurmMetrics);
    type Failure = ShellError;

    /// Reads what is stored, and all orders and records: a round without them would forget released jobs.
    async fn open((config, metrics): &Self::Setup, phase: Phase<'_>) -> Result<Self, End> {
        let bus = phase.bus;
        let (folder, state) = open_folder(config).await?;
        let settings = config.settings(local_offset_s().await);
        // As a launcher's, so that a launcher of the same node stands aside.
        let hash = wattle_common::hash::fnv1a(config.state_dir.as_os_str().as_encoded_bytes());
        let mut machine = SlurmMachine::new(settings, state, claimant(hash));
        let mut desired = bus.bucket(Bucket::Desired).await?.watch().await?;
        let mut records = bus.bucket(Bucket::Jobs).await?.watch().await?;
        let now = clock::now();
        let mut actions = Vec::new();
        let known_records = records.initial().await;
        let known_orders = desired.initial().await;
        let events = known_records.into_iter().filter_map(record_event);
        for event in events.chain(known_orders.into_iter().filter_map(desired_event)) {
            machine.handle(now, event, &mut actions);
        }
        let programs = Programs {
            folder: config.commands.clone(),
            time_limit: Duration::from_millis(config.command_wall_ms),
            ..Programs::default()
        };
        let reports = Reports::default();
        let (requests, to_send) = mpsc::channel(requests::REQUESTS_MAX);
        let (answered, answers) = mpsc::channel(ANSWERS_MAX);
        let mut tasks = JoinSet::new();
        tasks.spawn(reports.clone().store(bus.bucket(Bucket::Actual).await?));
        tasks.spawn(requests::send(bus.clone(), to_send, answered));
        tracing::info!(cluster = %config.cluster, level = %config.level, "active");
        let mut service = Self {
            config: config.clone(),
            bus: bus.clone(),
            lease: phase.lease.clone(),
            folder,
            client: CommandLine::new(programs),
            machine,
            desired,
            records,
            bell: Bell::open(config.bell.as_deref()),
            reports,
            requests,
            answers,
            began: Duration::ZERO,
            due: Duration::ZERO,
            is_changed: false,
            poll_time: Duration::ZERO,
            early_polls: 0,
            away: None,
            metrics: metrics.clone(),
            _registered: phase.register().await?,
            _tasks: tasks,
        };
        service.act(&mut actions).await?;
        Ok(service)
    }

    fn set_active((_, metrics): &Self::Setup, active: bool) {
        metrics.is_active(active);
    }

    fn machine(&mut self) -> &mut SlurmMachine {
        &mut self.machine
    }

    async fn next(&mut self) -> Option<Input> {
        loop {
            let shortest = self.began + POLL_MIN;
            let due = if self.is_changed { shortest.min(self.due) } else { self.due };
            tokio::select! {
                () = tokio::time::sleep(due.saturating_sub(clock::monotonic())) => {
                    return Some(Input::Round);
                }
                () = self.bell.rings() => self.is_changed = true,
                Some(answer) = self.answers.recv() => return Some(Input::Answer(answer)),
                Some(changes) = self.desired.next_batch(BATCH_MAX) => {
                    return Some(Input::Desired(changes));
                }
                Some(changes) = self.records.next_batch(BATCH_MAX) => {
                    return Some(Input::Records(changes));
                }
            }
        }
    }

    async fn handle(&mut self, input: Input, actions: &mut Vec<Action>) -> Result<(), End> {
        match input {
            Input::Round => self.round(actions).await?,
            Input::Answer(Answer { job, refused }) => {
                self.machine.handle(clock::now(), Event::Answered { job, refused }, actions);
            }
            Input::Desired(changes) => {
                self.is_changed = true;
                for event in changes.into_iter().filter_map(desired_event) {
                    self.machine.handle(clock::now(), event, actions);
                    self.act(actions).await?;
                }
            }
            Input::Records(changes) => {
                for event in changes.into_iter().filter_map(record_event) {
                    self.is_changed |= matches!(&event, Event::RecordChanged(record)
                        if intake::slurm_id(&record.spec.job).is_some());
                    self.machine.handle(clock::now(), event, actions);
                    self.act(actions).await?;
                }
            }
        }
        Ok(())
    }

    /// Carries out actions in their order, and those that follow from them.
    async fn act(&mut self, actions: &mut Vec<Action>) -> Result<(), End> {
        let mut queue = VecDeque::from(std::mem::take(actions));
        while let Some(action) = queue.pop_front() {
            let mut more = Vec::new();
            self.carry_out(action, &mut more).await?;
            queue.extend(more);
        }
        Ok(())
    }
}

impl SlurmService {
    /// Reads Slurm, carries out what follows from it, and sets the time of the next round.
    async fn round(&mut self, actions: &mut Vec<Action>) -> Result<(), End> {
        (self.began, self.is_changed) = (clock::monotonic(), false);
        let view = self.client.view(clock::now()).await;
        self.poll_time = clock::monotonic().saturating_sub(self.began);
        self.metrics.polled(view.as_ref().ok(), self.poll_time);
        match view {
            Ok(view) => {
                if let Some(error) = self.away.take() {
                    tracing::info!(error, "Slurm answers again");
                }
                self.machine.handle(clock::now(), Event::Viewed(view), actions);
                self.beat();
            }
            Err(error) => {
                let error = error.to_string();
                if self.away.as_ref() != Some(&error) {
                    tracing::error!(error, "Slurm not read; nothing is changed");
                }
                self.away = Some(error);
                self.machine.wake(clock::now(), actions);
            }
        }
        self.act(actions).await?;
        let every = Duration::from_millis(self.config.poll_wall_ms);
        let interval = every.max(self.poll_time * POLL_SHARE);
        let early = self.early_polls > 0;
        let interval = if early { POLL_AFTER_COMMAND.min(interval) } else { interval };
        self.early_polls = self.early_polls.saturating_sub(1);
        // Commands take time: the interval counts from the beginning of the round.
        self.due = (self.began + interval).max(clock::monotonic() + POLL_MIN);
        Ok(())
    }

    /// Shows the intake plugin that jobs may be held.
    fn beat(&self) {
        let Some(path) = self.config.heartbeat_file.as_ref() else { return };
        if !self.config.level.places() || !self.bus.is_connected() {
            return;
        }
        let now_s = clock::wall_now().as_us() / 1_000_000;
        if let Err(error) = signs::beat(path, now_s) {
            tracing::error!(
                path = %path.display(), %error,
                "heartbeat not written: Slurm's intake leaves jobs to Slurm"
            );
        }
    }

    async fn carry_out(
        &mut self,
        action: Action,
        more: &mut Vec<Action>,
    ) -> Result<(), ShellError> {
        match action {
            Action::Submit(spec, submission) => {
                tracing::info!(job = %spec.job, user = spec.user, "submitting");
                // The machine repeats a request without an answer.
                let _ = self.requests.try_send(PersonRequest::Submit(spec, submission));
            }
            Action::Cancel(job, user) => {
                tracing::info!(%job, %user, "cancelled in Slurm");
                let _ = self.requests.try_send(PersonRequest::Cancel(job, user));
            }
            Action::Command(command) => {
                // The process may have been paused: another one may be active.
                if !self.lease.is_valid() {
                    return Ok(());
                }
                tracing::info!(?command, "command");
                let result = self.client.execute(&command).await;
                self.early_polls = EARLY_POLLS;
                self.metrics.commanded(&command, result.is_ok());
                let event = Event::CommandEnded(command, result);
                self.machine.handle(clock::now(), event, more);
            }
            Action::Lookup { ids, since } => {
                let runs = self.client.past(&ids, since).await;
                if let Err(error) = &runs {
                    tracing::warn!(%error, "accounting database not read; retrying");
                }
                self.machine.handle(clock::now(), Event::PastRead { ids, runs }, more);
            }
            Action::Report(report) => self.reports.send(report),
            // Without this a job could be released twice.
            Action::StoreReleased(job, released) => self.folder.store_released(&job, released)?,
            Action::Forget(job) => self.logged(self.folder.forget(&job)),
            Action::StoreObeyed(obeyed) => self.logged(self.folder.store_obeyed(&obeyed)),
            Action::StoreEnergy(job) => self.logged(self.folder.store_energy(&job)),
            Action::Alarm(alarm) => {
                self.metrics.alarmed();
                tracing::error!("{alarm}");
            }
        }
        Ok(())
    }

    #[expect(clippy::unused_self, reason = "beside the calls that it logs")]
    fn logged(&self, result: Result<(), StateError>) {
        if let Err(error) = result {
            tracing::error!(error = chain(&error), "state not stored");
        }
    }
}

fn desired_event(change: Change) -> Option<Event> {
    Some(Event::DesiredChanged(change.decode(Bucket::Desired)?))
}

fn record_event(change: Change) -> Option<Event> {
    if change.value.is_none() {
        return change.key.parse().ok().map(Event::RecordRemoved);
    }
    Some(Event::RecordChanged(Box::new(change.decode(Bucket::Jobs)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_hours_and_minutes() {
        assert_eq!(offset_s("+0000"), Some(0));
        assert_eq!(offset_s("-0530"), Some(-19_800));
        for wrong in ["", "0100", "+1", "+01:00", "UTC"] {
            assert_eq!(offset_s(wrong), None, "{wrong}");
        }
    }
}
