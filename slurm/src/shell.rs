//! Connects the decisions with Slurm, the state folder and the bus.
//!
//! One loop: read Slurm, decide, carry out all actions in their order, and wait for a change on the bus, the
//! bell or the next regular poll. Of several services of a cluster one is active, by a lease; the lease is
//! checked before each command. While the bus is away Slurm is still read and orders that are known are
//! carried out; the intake plugin then leaves new jobs to Slurm, because the heartbeat stops.

mod bus;
pub mod client;
pub mod facts;
pub mod metrics;
pub mod programs;
mod signs;
mod state_folder;

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use wattle_common::messages::{JobRecord, NodeDesired};
use wattle_common::subject::{Bucket, LeaseKey};
use wattle_common::{Machine as _, codec};
use wattle_runtime::bus::{Bus, BusError, Candidate, Change, Leadership, Service, Watch};
use wattle_runtime::metrics::Metrics;
use wattle_runtime::shell::{Shutdown, chain};
use wattle_runtime::{clock, instance};

use self::bus::{Ask, Reports};
use self::client::CommandLine;
use self::metrics::SlurmMetrics;
use self::programs::Programs;
use self::signs::Bell;
use self::state_folder::StateFolder;
use crate::client::Client;
use crate::config::Config;
use crate::intake;
use crate::machine::{Action, Event, SlurmMachine};

pub use state_folder::StateError;

/// The name under which the services register.
const NAME: &str = "wattle-slurm";
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
const EVENTS_MAX: usize = 256;

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

/// Why the service stopped working.
enum Ended {
    Stopped,
    Lost,
}

/// Runs until shutdown.
///
/// # Errors
/// If the bus refuses the connection, or the state folder cannot be used.
pub async fn run(config: Config, shutdown: &Shutdown) -> Result<(), ShellError> {
    let metrics = Metrics::start(&config.metrics, "slurm", &config.cluster, None);
    let metrics = SlurmMetrics::new(&metrics, config.level);
    let connect = async {
        let bus = Bus::connect(&config.nats, config.cluster.clone(), NAME).await?;
        let length = Duration::from_millis(config.service_lease_wall_ms);
        let candidate = Candidate::new(&bus, LeaseKey::Slurm, length).await?;
        Ok::<_, BusError>((bus, candidate))
    };
    let Some(connected) = shutdown.or(connect).await else { return Ok(()) };
    let (bus, candidate) = connected?;
    metrics.follow_bus(&bus);
    loop {
        let Some(lease) = shutdown.or(stand_by(&bus, &candidate)).await else { return Ok(()) };
        let lease = lease?;
        let Some(folder) = shutdown.or(open_folder(&config)).await else { return Ok(()) };
        metrics.is_active(true);
        let open = Active::open(&config, &bus, &lease, folder?, metrics.clone());
        let served = match shutdown.or(open).await {
            Some(Ok(mut active)) => active.serve(shutdown).await,
            Some(Err(error)) => Err(error),
            None => Ok(Ended::Stopped),
        };
        metrics.is_active(false);
        match served {
            Ok(Ended::Lost) => tracing::error!(
                "another Slurm service is active in this cluster because this one was away longer than its \
                 lease; this one is on standby"
            ),
            ended => {
                lease.release().await;
                bus.flush().await;
                return ended.map(drop);
            }
        }
    }
}

async fn stand_by(bus: &Bus, candidate: &Candidate) -> Result<Leadership, BusError> {
    let service = register(bus, "standby").await?;
    let lease = candidate
        .acquire(|lease| {
            let active = &lease.holder.instance;
            tracing::warn!(
                active,
                "another Slurm service is active in this cluster; this one is on standby"
            );
        })
        .await;
    service.stop().await;
    Ok(lease)
}

async fn register(bus: &Bus, state: &str) -> Result<Service, BusError> {
    bus.register(NAME, "connects the cluster with Slurm", &[("state", state)]).await
}

/// Waits until no other process uses the state folder.
async fn open_folder(config: &Config) -> Result<StateFolder, StateError> {
    let mut logged = false;
    loop {
        if let Some(folder) = StateFolder::open(&config.state_dir)? {
            return Ok(folder);
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

/// The process that holds the lease.
struct Active<'a> {
    config: &'a Config,
    bus: Bus,
    lease: &'a Leadership,
    folder: StateFolder,
    client: CommandLine,
    machine: SlurmMachine,
    desired: Watch,
    records: Watch,
    bell: Bell,
    reports: Reports,
    requests: mpsc::Sender<Ask>,
    events: mpsc::Receiver<Event>,
    /// Length of the last poll.
    poll_time: Duration,
    /// Remaining polls at the short interval after a command.
    early_polls: u32,
    /// Why Slurm was not read, while it is not.
    away: Option<String>,
    metrics: SlurmMetrics,
    _service: Service,
    _tasks: JoinSet<()>,
}

impl<'a> Active<'a> {
    /// Reads what is stored, and all orders and records: a round without them would forget released jobs.
    async fn open(
        config: &'a Config,
        bus: &Bus,
        lease: &'a Leadership,
        folder: StateFolder,
        metrics: SlurmMetrics,
    ) -> Result<Self, ShellError> {
        let state = folder.load()?;
        let settings = config.settings(local_offset_s().await);
        // As a launcher's, so that a launcher of the same node stands aside.
        let hash = wattle_common::hash::fnv1a(config.state_dir.as_os_str().as_encoded_bytes());
        let name = format!("{}, state {hash:016x}", instance::name());
        let mut machine = SlurmMachine::new(settings, state, name);
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
        };
        let reports = Reports::default();
        let (requests, to_send) = mpsc::channel(bus::REQUESTS_MAX);
        let (answers, events) = mpsc::channel(EVENTS_MAX);
        let mut tasks = JoinSet::new();
        tasks.spawn(reports.clone().store(bus.bucket(Bucket::Actual).await?));
        tasks.spawn(bus::ask(bus.clone(), to_send, answers));
        tracing::info!(cluster = %config.cluster, level = %config.level, "active");
        let mut active = Self {
            config,
            bus: bus.clone(),
            lease,
            folder,
            client: CommandLine::new(programs),
            machine,
            desired,
            records,
            bell: Bell::open(config.bell.as_deref()),
            reports,
            requests,
            events,
            poll_time: Duration::ZERO,
            early_polls: 0,
            away: None,
            metrics,
            _service: register(bus, "active").await?,
            _tasks: tasks,
        };
        active.act(actions).await?;
        Ok(active)
    }

    async fn serve(&mut self, shutdown: &Shutdown) -> Result<Ended, ShellError> {
        let every = Duration::from_millis(self.config.poll_wall_ms);
        loop {
            let began = clock::monotonic();
            if !self.lease.is_valid() && self.lease.confirm().await.is_err() {
                return Ok(Ended::Lost);
            }
            self.round().await?;
            let interval = every.max(self.poll_time * POLL_SHARE);
            let early = self.early_polls > 0;
            let interval = if early { POLL_AFTER_COMMAND.min(interval) } else { interval };
            self.early_polls = self.early_polls.saturating_sub(1);
            let next = interval.saturating_sub(clock::monotonic().saturating_sub(began));
            let next = tokio::time::sleep(next.max(POLL_MIN));
            tokio::pin!(next);
            // Changes that arrive within the shortest interval are handled together.
            let mut polls = false;
            loop {
                let shortest = POLL_MIN.saturating_sub(clock::monotonic().saturating_sub(began));
                tokio::select! {
                    () = shutdown.wait() => return Ok(Ended::Stopped),
                    lost = self.lease.lost() => {
                        tracing::debug!(error = chain(&lost), "lease lost");
                        return Ok(Ended::Lost);
                    }
                    () = &mut next => break,
                    () = tokio::time::sleep(shortest), if polls => break,
                    () = self.bell.rings() => polls = true,
                    Some(event) = self.events.recv() => self.handle(event).await?,
                    Some(changes) = self.desired.next_batch(BATCH_MAX) => {
                        polls = true;
                        for event in changes.into_iter().filter_map(desired_event) {
                            self.handle(event).await?;
                        }
                    }
                    Some(changes) = self.records.next_batch(BATCH_MAX) => {
                        for event in changes.into_iter().filter_map(record_event) {
                            polls |= matches!(&event, Event::RecordChanged(record)
                                if intake::slurm_id(&record.spec.job).is_some());
                            self.handle(event).await?;
                        }
                    }
                }
            }
        }
    }

    async fn handle(&mut self, event: Event) -> Result<(), ShellError> {
        let mut actions = Vec::new();
        self.machine.handle(clock::now(), event, &mut actions);
        self.act(actions).await
    }

    /// Reads Slurm and carries out what follows from it.
    async fn round(&mut self) -> Result<(), ShellError> {
        let mut actions = Vec::new();
        let began = clock::monotonic();
        let view = self.client.view(clock::now()).await;
        self.poll_time = clock::monotonic().saturating_sub(began);
        self.metrics.polled(view.as_ref().ok(), self.poll_time);
        match view {
            Ok(view) => {
                if let Some(error) = self.away.take() {
                    tracing::info!(error, "Slurm answers again");
                }
                self.machine.handle(clock::now(), Event::Viewed(view), &mut actions);
                self.beat();
            }
            Err(error) => {
                let error = error.to_string();
                if self.away.as_ref() != Some(&error) {
                    tracing::error!(error, "Slurm not read; nothing is changed");
                }
                self.away = Some(error);
                self.machine.wake(clock::now(), &mut actions);
            }
        }
        self.act(actions).await
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

    /// Carries out actions in their order, and those that follow from them.
    async fn act(&mut self, actions: Vec<Action>) -> Result<(), ShellError> {
        let mut queue = VecDeque::from(actions);
        while let Some(action) = queue.pop_front() {
            let mut more = Vec::new();
            self.carry_out(action, &mut more).await?;
            queue.extend(more);
        }
        Ok(())
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
                let _ = self.requests.try_send(Ask::Submit(spec, submission));
            }
            Action::Cancel(job, user) => {
                tracing::info!(%job, %user, "cancelled in Slurm");
                let _ = self.requests.try_send(Ask::Cancel(job, user));
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
    let desired = decoded::<NodeDesired>(&change, Bucket::Desired)?;
    Some(Event::DesiredChanged(desired))
}

fn record_event(change: Change) -> Option<Event> {
    if change.value.is_none() {
        return change.key.parse().ok().map(Event::RecordRemoved);
    }
    let record = decoded::<JobRecord>(&change, Bucket::Jobs)?;
    Some(Event::RecordChanged(Box::new(record)))
}

fn decoded<T: serde::de::DeserializeOwned>(change: &Change, bucket: Bucket) -> Option<T> {
    match codec::decode_json::<T>(change.value.as_ref()?) {
        Ok(value) => Some(value),
        Err(error) => {
            let (bucket, key, revision) = (bucket.token(), &change.key, change.revision);
            tracing::error!(bucket, key, revision, error = chain(&error), "value ignored");
            None
        }
    }
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
