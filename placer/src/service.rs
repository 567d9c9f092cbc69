//! The placer's service: connects the live placer to the bus.
//!
//! Requests, reports and surfaces are the inputs; records, orders and replies are the outputs. One loop
//! executes all actions in order ([`actions`]). While the bus is away, actions wait; afterwards
//! [`Event::BusReturned`] excuses missing heartbeats. Of several placers one leads ([`leader`]); the server
//! refuses writes of any other.

mod access;
mod actions;
mod grid;
mod grid_metrics;
mod leader;
pub mod metrics;
mod requests;
mod storage;
mod submissions;
mod traces;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use wattle_common::messages::{
    AimStatus, BudgetRecord, BudgetStatus, GridStatus, JobProgressed, JobRecord, LaunchReport,
    LedgerEntry, PowerReport, StoreRestored, Surface,
};
use wattle_common::subject::{
    AIM_STATUS, BUDGET_SET, BUDGET_STATUS, Bucket, GRID_STATUS, Reporter, STORE_RESTORED,
    StreamName, Subject, Topic,
};
use wattle_common::{JobId, Machine, NodeId, Timestamp, codec};
use wattle_runtime::bus::{
    Bus, BusError, Change, Consumer, ExclusiveBucket, ExclusiveError, Leadership, Requests,
    Service, Stored, StoredDelivery, Subscription, Watch,
};
use wattle_runtime::orders::OrderLog;
use wattle_runtime::shell::{Shutdown, chain};
use wattle_runtime::traces::Exporter;
use wattle_runtime::{clock, command};

use crate::live::{Action, Event, PersistedState, Placer, RequestNumber};
use crate::{Config, Policy, UnknownPolicy};

use grid::GridReads;
use leader::Ended;
pub use leader::run;
use metrics::PlacerMetrics;
use requests::Waiting;
use storage::Storage;
use submissions::Submissions;
use traces::JobTraces;

/// Pause before the bus is tried again: wall time.
const RETRY: Duration = Duration::from_millis(250);

/// Most reports, or surfaces, that are handled together before other events.
const BATCH: usize = 128;
/// Timeout of a wake command, wall time. The node's own wake time is limited by
/// `sleep.wake_timeout_s`.
const WAKE_WITHIN: Duration = Duration::from_secs(60);
/// Capacity of the queue of ended wake commands.
const WOKEN_MAX: usize = 64;

/// Why the placer cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum ShellError {
    /// The bus refused the connection or a bucket.
    #[error("the bus cannot be used")]
    Bus(#[from] BusError),
    /// The configured policy is unknown.
    #[error(transparent)]
    Policy(#[from] UnknownPolicy),
    /// State cannot be stored.
    #[error("the placer's state cannot be stored")]
    Store(#[from] ExclusiveError),
}

/// The live placer with its connections.
struct PlacerService {
    bus: Bus,
    leadership: Leadership,
    placer: Placer,
    jobs: ExclusiveBucket,
    storage: Storage,
    /// Records of known jobs that were not stored for want of room, to be repeated.
    unstored: BTreeMap<JobId, Box<JobRecord>>,
    /// Submitted jobs that were not stored: refused, and removed after the current actions.
    not_stored: BTreeSet<JobId>,
    orders: ExclusiveBucket,
    actual: Watch,
    surfaces: Watch,
    _service: Service,
    submissions: Submissions,
    cancellations: Requests,
    reads: Requests,
    budgets: Requests,
    budget: ExclusiveBucket,
    metered: Consumer,
    /// The energy ledger entry being counted, not yet acknowledged.
    counting: Option<StoredDelivery>,
    progress: Subscription,
    orders_log: OrderLog,
    /// Unanswered requests.
    waiting: BTreeMap<RequestNumber, Waiting>,
    count: RequestNumber,
    wake_command: Vec<String>,
    metrics: PlacerMetrics,
    traces: Option<JobTraces>,
    /// Reads of the grid's providers.
    grid: GridReads,
    /// The results of wake commands.
    woken: (mpsc::Sender<Event>, mpsc::Receiver<Event>),
}

impl PlacerService {
    async fn open(
        config: Config,
        policy: Box<dyn Policy>,
        bus: Bus,
        leadership: Leadership,
        metrics: PlacerMetrics,
        exporter: Option<Exporter>,
    ) -> Result<Self, ShellError> {
        let cluster = config.cluster.clone();
        // Again, because the server may have lost its store since the start.
        bus.create_storage().await?;
        let (jobs, records) = open(&bus, Bucket::Jobs, &leadership).await?;
        let (orders, desired) = open(&bus, Bucket::Desired, &leadership).await?;
        let mut actual = bus.bucket(Bucket::Actual).await?.watch().await?;
        let mut surfaces = bus.bucket(Bucket::Surfaces).await?.watch().await?;
        let (power, launch) = reports(&mut actual).await;
        let (budget_bucket, budget_values) =
            ExclusiveBucket::open(&bus, Bucket::Budget, &leadership).await?;
        let entry = |key: &str| budget_values.iter().find(|change| change.key == key);
        let budget =
            entry(BUDGET_SET).and_then(|change| read::<BudgetRecord>(Bucket::Budget, change));
        let budget_status =
            entry(BUDGET_STATUS).and_then(|change| read::<BudgetStatus>(Bucket::Budget, change));
        let aim_status =
            entry(AIM_STATUS).and_then(|change| read::<AimStatus>(Bucket::Budget, change));
        let grid = entry(GRID_STATUS).and_then(|change| read::<GridStatus>(Bucket::Budget, change));
        let restored =
            entry(STORE_RESTORED).and_then(|change| read::<StoreRestored>(Bucket::Budget, change));
        let metered = bus.consume(StreamName::Ledger, "wattle-placer").await?;
        let known = surfaces.initial().await;
        let known = known.iter().filter_map(|change| read(Bucket::Surfaces, change)).collect();
        let persisted = PersistedState {
            jobs: records,
            desired,
            power,
            launch,
            surfaces: known,
            budget,
            budget_status,
            aim_status,
            grid,
            restored,
        };
        if let Some(restored) = restored {
            tracing::warn!(
                backup_at = %restored.backup_at_us,
                "the store was restored from a backup: no job starts before the nodes have reported"
            );
        }
        tracing::info!(
            policy = policy.name(),
            jobs = persisted.jobs.len(),
            nodes = persisted.power.len(),
            "started"
        );
        metrics.restored(&persisted.jobs);
        let grid = GridReads::start(&config.grid);
        let wake_command = config.sleep.wake_command.clone().unwrap_or_default();
        let traces = exporter.map(|exporter| JobTraces::new(&cluster, &persisted, exporter));
        let placer = Placer::new(config, policy, persisted, clock::now());

        let service = leader::register(&bus, "active").await?;
        let submissions = service.endpoint(Topic::JobSubmitted.pattern(&cluster)).await?;
        let submissions = Submissions::new(submissions);
        let cancellations = service.endpoint(Topic::JobCancelled.pattern(&cluster)).await?;
        let reads = service.endpoint(Topic::JobRequested.pattern(&cluster)).await?;
        let budgets = service.endpoint(Topic::BudgetSet.pattern(&cluster)).await?;
        let orders_log = OrderLog::new(&bus, "placer");
        let progress = bus.subscribe(&Topic::JobProgressed.pattern(&cluster)).await?;
        Ok(Self {
            bus,
            leadership,
            placer,
            storage: Storage::new(jobs.bucket().clone()),
            unstored: BTreeMap::new(),
            not_stored: BTreeSet::new(),
            jobs,
            orders,
            actual,
            surfaces,
            _service: service,
            submissions,
            cancellations,
            reads,
            budgets,
            orders_log,
            budget: budget_bucket,
            metered,
            counting: None,
            progress,
            waiting: BTreeMap::new(),
            count: 0,
            wake_command,
            metrics,
            traces,
            grid,
            woken: mpsc::channel(WOKEN_MAX),
        })
    }

    async fn serve(mut self, shutdown: &Shutdown) -> Result<Ended, ShellError> {
        let mut out = Vec::new();
        let mut was_away = false;
        let leadership = self.leadership.clone();
        loop {
            let event = if std::mem::take(&mut was_away) {
                Some(Event::BusReturned)
            } else {
                // `select!` polls in random order: many requests do not delay lease renewals and reports.
                tokio::select! {
                    () = shutdown.wait() => return Ok(Ended::Stopped),
                    lost = leadership.lost() => return Ok(Ended::Lost(lost)),
                    event = self.next_event(&mut out) => event,
                }
            };
            // Without a valid lease nothing is decided: the server or this process was away.
            if !leadership.is_valid() {
                match shutdown.or(leadership.confirm()).await {
                    Some(Ok(())) => was_away = true,
                    Some(Err(lost)) => return Ok(Ended::Lost(lost)),
                    None => return Ok(Ended::Stopped),
                }
            }
            let event_was_timer = event.is_none();
            if let Some(event) = event {
                if let Some(traces) = &mut self.traces {
                    traces.received(&event);
                }
                self.placer.handle(clock::now(), event, &mut out);
            }
            self.metrics.acted(&out);
            if let Some(traces) = &mut self.traces {
                traces.acted(&out);
            }
            loop {
                match self.carry_out(&mut out, shutdown).await? {
                    Stored::Immediately => {}
                    Stored::AfterRetry => was_away = true,
                    // Shutdown while the bus is away: the next start computes unwritten actions again.
                    Stored::Interrupted => return Ok(Ended::Stopped),
                }
                let buckets = [&mut self.jobs, &mut self.orders, &mut self.budget];
                if buckets.map(ExclusiveBucket::take_lost).contains(&true) {
                    self.placer.handle(clock::now(), Event::StoreIncomplete, &mut out);
                } else {
                    break;
                }
            }
            if !self.not_stored.is_empty() || (event_was_timer && !self.unstored.is_empty()) {
                match self.repeat_unstored(shutdown).await? {
                    Stored::Immediately => {}
                    Stored::AfterRetry => was_away = true,
                    Stored::Interrupted => return Ok(Ended::Stopped),
                }
            }
            // The counted entry is stored: acknowledge it.
            if let Some(counted) = self.counting.take()
                && let Err(error) = counted.ack().await
            {
                tracing::warn!(%error, "cannot acknowledge an energy ledger entry; it is delivered again and not counted twice");
            }
        }
    }

    /// Waits for the next event. At a timer, `out` gets the actions instead.
    async fn next_event(&mut self, out: &mut Vec<Action>) -> Option<Event> {
        let wake = self.placer.next_wake().map_or(Timestamp::FOREVER, |(at, _)| at);
        tokio::select! {
            batch = self.submissions.next() => {
                self.submitted(batch, out).await;
                None
            }
            Some(request) = self.cancellations.next() => {
                let (number, body) = self.receive(request, access::cancel).await?;
                Some(Event::Cancelled(number, body))
            }
            Some(request) = self.budgets.next() => {
                let (number, body) = self.receive(request, access::set_budget).await?;
                Some(Event::BudgetSet(number, Box::new(body)))
            }
            Some(request) = self.reads.next() => {
                self.answer_read(&request).await;
                None
            }
            Some(delivery) = self.metered.next() => {
                let entry = metered(&delivery);
                if let Some(Event::EnergyMetered(entry)) = &entry {
                    self.metrics.metered(entry);
                }
                self.counting = Some(delivery);
                entry
            }
            Some(changes) = self.actual.next_batch(BATCH) => {
                Some(Event::Batch(changes.iter().filter_map(reported).collect()))
            }
            Some(changes) = self.surfaces.next_batch(BATCH) => {
                let surfaces = changes.iter().filter_map(|c| read::<Surface>(Bucket::Surfaces, c));
                Some(Event::Batch(surfaces.map(|s| Event::SurfaceKnown(Box::new(s))).collect()))
            }
            Some(event) = self.woken.1.recv() => Some(event),
            Some(read) = self.grid.next() => {
                self.metrics.grid_read(&read);
                Some(Event::GridRead(read.signal, read.result.map(Box::new)))
            }
            Some(message) = self.progress.next() => progressed(&message.subject, &message.payload),
            () = clock::sleep_until(wake) => {
                if self.bus.is_connected() {
                    let began = clock::monotonic();
                    self.placer.wake(clock::now(), out);
                    let took = clock::monotonic().saturating_sub(began);
                    self.metrics.handled(self.placer.rounds(), took, || self.placer.measures());
                    return None;
                }
                // Disconnected: no report can arrive, so no node counts as silent.
                tokio::time::sleep(RETRY).await;
                Some(Event::BusReturned)
            }
        }
    }
}

impl PlacerService {
    /// Runs the operator's wake command in the background.
    fn wake_node(&self, node: NodeId) {
        tracing::info!(%node, "running the wake command");
        let (command, woken) = (self.wake_command.clone(), self.woken.0.clone());
        tokio::spawn(async move {
            let ended = command::run(&command, &node, WAKE_WITHIN).await;
            let error = ended.err().map(|error| chain(&error));
            // The receiver is gone if the placer has stopped.
            let _ = woken.send(Event::WakeAnswered(node, error)).await;
        });
    }
}

/// Opens the bucket and decodes its values.
async fn open<T: DeserializeOwned>(
    bus: &Bus,
    which: Bucket,
    leadership: &Leadership,
) -> Result<(ExclusiveBucket, Vec<T>), ExclusiveError> {
    let (bucket, changes) = ExclusiveBucket::open(bus, which, leadership).await?;
    Ok((bucket, changes.iter().filter_map(|change| read(which, change)).collect()))
}

/// Decodes the value of a change. An undecodable value is logged with its key and ignored.
fn read<T: DeserializeOwned>(bucket: Bucket, change: &Change) -> Option<T> {
    let value = change.value.as_ref()?;
    match codec::decode_json(value) {
        Ok(value) => Some(value),
        Err(error) => {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            tracing::error!(
                bucket = bucket.token(),
                key = change.key,
                revision = change.revision,
                %error,
                cause,
                "value ignored: it cannot be decoded"
            );
            None
        }
    }
}

fn reported(change: &Change) -> Option<Event> {
    // Keys of another form are not reports.
    let (reporter, node) = Reporter::parse(&change.key)?;
    match reporter {
        Reporter::Power => read::<PowerReport>(Bucket::Actual, change)
            .filter(|report| report.node == node)
            .map(Event::PowerReported),
        Reporter::Launcher => read::<LaunchReport>(Bucket::Actual, change)
            .filter(|report| report.node == node)
            .map(Event::LaunchReported),
    }
}

async fn reports(actual: &mut Watch) -> (Vec<PowerReport>, Vec<LaunchReport>) {
    let (mut power, mut launch) = (Vec::new(), Vec::new());
    for change in actual.initial().await {
        match reported(&change) {
            Some(Event::PowerReported(report)) => power.push(report),
            Some(Event::LaunchReported(report)) => launch.push(report),
            _ => {}
        }
    }
    (power, launch)
}

fn progressed(subject: &str, payload: &[u8]) -> Option<Event> {
    match codec::decode_json::<JobProgressed>(payload) {
        Ok(message) if !access::is_about(subject, Some(&message.node), Some(&message.job)) => {
            tracing::warn!(subject, "message ignored: it is about another node or job");
            None
        }
        Ok(message) => Some(Event::Progressed(message)),
        Err(error) => {
            tracing::warn!(subject, %error, "message ignored: it cannot be decoded");
            None
        }
    }
}

/// The entry of a delivery. One that cannot be decoded, or of another node than its subject's, raises an
/// alarm; it is acknowledged and not delivered again.
fn metered(delivery: &StoredDelivery) -> Option<Event> {
    let (subject, sequence) = (&delivery.subject, delivery.sequence);
    let entry = match codec::decode_json::<LedgerEntry>(&delivery.payload) {
        Ok(entry) => entry,
        Err(error) => {
            let error = chain(&error);
            tracing::error!(subject, sequence, error, "energy ledger entry ignored: undecodable");
            return None;
        }
    };
    let parsed = subject.parse::<Subject>();
    if parsed.ok().and_then(|parsed| parsed.node().cloned()).as_ref() != Some(&entry.node) {
        let node = entry.node.as_str();
        tracing::error!(subject, sequence, node, "energy ledger entry ignored: of another node");
        return None;
    }
    Some(Event::EnergyMetered(Box::new(entry)))
}
