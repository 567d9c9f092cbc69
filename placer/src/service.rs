//! The placer's service: connects the live placer to the bus.
//!
//! Requests, reports and surfaces are the inputs; records, orders and replies are the outputs, which are
//! carried out in their order ([`actions`]). While the bus is away, actions wait; afterwards
//! [`Event::BusReturned`] excuses missing heartbeats.
//!
//! A placer on standby answers no request and writes nothing ([`LeaseMode::Fenced`]). It reads the lease, and keeps a
//! copy of the buckets that the active one writes: when it takes over, it stores again what the server has lost. An entry of the energy ledger is acknowledged after its effect is stored, so the
//! next placer counts it or has read it.

mod access;
mod actions;
mod event_metrics;
mod expected_metrics;
mod grid;
mod grid_metrics;
pub mod metrics;
mod requests;
mod site_minutes;
mod storage;
mod submissions;
mod traces;
mod twin_metrics;
mod values;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc};
use wattle_common::messages::{JobRecord, StoreRestored, Surface};
use wattle_common::subject::{
    AIM_STATUS, BUDGET_SET, BUDGET_STATUS, Bucket, EVENT_JOBS, EVENTS, EXPECTED_STATUS,
    GRID_STATUS, LeaseKey, STORE_RESTORED, StreamName, TWIN_OPEN, TWIN_STATUS, Topic,
};
use wattle_common::{JobId, Machine, NodeId};
use wattle_grid::poller;
use wattle_runtime::bus::{
    self, Bus, BusError, Change, Consumer, Delivery, ExclusiveBucket, ExclusiveError, Request,
    Requests, Stored, StoredDelivery, Subscription, Watch,
};
use wattle_runtime::orders::OrderLog;
use wattle_runtime::service::{self, Identity, LeaseMode, Phase, Service, Shell};
use wattle_runtime::shell::{Shutdown, chain};
use wattle_runtime::traces::Exporter;
use wattle_runtime::{clock, command};

use crate::live::{Action, Event, PersistedState, Placer, RequestNumber};
use crate::{Config, UnknownPolicy};

use grid::GridReads;
use metrics::PlacerMetrics;
use requests::Waiting;
use site_minutes::SiteLog;
use storage::Storage;
use submissions::{Admissions, Submissions};
use traces::JobTraces;
use values::{metered, open, progressed, reported, reports, stored, summarized};

/// The name under which placers register.
const NAME: &str = "wattle-placer";
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

/// Why an active phase ended.
type End = service::End<ShellError>;

/// Runs until shutdown.
///
/// # Errors
/// If the bus refuses the connection or a write.
pub async fn run(config: Config, shutdown: &Shutdown) -> Result<(), ShellError> {
    crate::policy(&config.policy)?;
    let about = "accepts jobs and places them on GPUs";
    let identity = Identity::of_cluster(NAME, about, &config.cluster);
    let length = Duration::from_millis(config.service_lease_wall_ms);
    let mode = LeaseMode::Fenced { key: LeaseKey::Placer, length };
    let shell = Shell::start(identity, &config.metrics, &config.nats);
    let metrics = PlacerMetrics::new(shell.metrics());
    let cluster = config.cluster.as_str();
    let exporter = Exporter::start(&config.traces, NAME, cluster, metrics.spans());
    let setup = Setup { config, metrics, exporter };
    shell.run::<PlacerService>(mode, setup, shutdown).await
}

/// What outlives an active phase.
struct Setup {
    config: Config,
    metrics: PlacerMetrics,
    exporter: Option<Exporter>,
}

/// What the sources deliver.
enum Input {
    Submissions(Vec<Request>),
    Cancellation(Box<Request>),
    Budget(Box<Request>),
    Event(Box<Request>),
    Plan(Box<Request>),
    Read(Box<Request>),
    Metered(Box<StoredDelivery>),
    Reports(Vec<Change>),
    Surfaces(Vec<Change>),
    /// A wake command has ended.
    Woken(Event),
    Grid(Box<poller::Read>),
    Progress(Delivery),
    Summary(Delivery),
}

/// The live placer with its connections.
struct PlacerService {
    bus: Bus,
    shutdown: Shutdown,
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
    _registered: bus::Service,
    submissions: Submissions,
    admissions: Admissions,
    cancellations: Requests,
    reads: Requests,
    budgets: Requests,
    event_requests: Requests,
    plan_requests: Requests,
    /// Plans of grid events that may be computed at a time.
    planning: Arc<Semaphore>,
    budget: ExclusiveBucket,
    /// Whether the budget in force was not stored for want of room: its request is not acknowledged as stored.
    budget_not_stored: bool,
    /// Whether the grid events were not stored for want of room: likewise.
    events_not_stored: bool,
    metered: Consumer,
    /// The energy ledger entry being counted, not yet acknowledged.
    counting: Option<StoredDelivery>,
    /// The power of the site by minute.
    site: SiteLog,
    progress: Subscription,
    summaries: Subscription,
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
    /// Whether the server or this process was away and the placer does not know it yet.
    was_away: bool,
    /// Whether this turn has passed no event to the placer: there is time to repeat a write.
    is_idle: bool,
}

impl Service for PlacerService {
    type Machine = Placer;
    type Input = Input;
    type Setup = Setup;
    type Failure = ShellError;

    async fn prepare(bus: &Bus) -> Result<(), ShellError> {
        Ok(bus.create_storage().await?)
    }

    async fn open(setup: &Setup, phase: Phase<'_>) -> Result<Self, End> {
        let Setup { config, metrics, exporter } = setup;
        let policy = crate::policy(&config.policy).map_err(|error| End::Failed(error.into()))?;
        let (bus, cluster) = (phase.bus.clone(), &config.cluster);
        // Again, because the server may have lost its store since the start.
        bus.create_storage().await?;
        let (jobs, records) = open(&bus, Bucket::Jobs, phase.lease).await?;
        let (orders, desired) = open(&bus, Bucket::Desired, phase.lease).await?;
        let mut actual = bus.bucket(Bucket::Actual).await?.watch().await?;
        let mut surfaces = bus.bucket(Bucket::Surfaces).await?.watch().await?;
        let (power, launch) = reports(&mut actual).await;
        let (budget, budget_values) =
            ExclusiveBucket::open(&bus, Bucket::Budget, phase.lease).await?;
        let metered = bus.consume(StreamName::Ledger, NAME).await?;
        let (site, site_power) = SiteLog::open(&bus).await?;
        let known = surfaces.initial().await;
        let known = known.iter().filter_map(|change| change.decode(Bucket::Surfaces)).collect();
        let persisted = PersistedState {
            jobs: records,
            desired,
            power,
            launch,
            surfaces: known,
            budget: stored(&budget_values, BUDGET_SET),
            budget_status: stored(&budget_values, BUDGET_STATUS),
            aim_status: stored(&budget_values, AIM_STATUS),
            events: stored(&budget_values, EVENTS),
            event_jobs: stored(&budget_values, EVENT_JOBS),
            site_power,
            grid: stored(&budget_values, GRID_STATUS),
            twin: stored(&budget_values, TWIN_STATUS).zip(stored(&budget_values, TWIN_OPEN)),
            expected: stored(&budget_values, EXPECTED_STATUS),
            restored: stored(&budget_values, STORE_RESTORED),
        };
        if let Some(StoreRestored { backup_at_us, .. }) = &persisted.restored {
            tracing::warn!(
                backup_at = %backup_at_us,
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
        let traces = exporter.clone().map(|exporter| JobTraces::new(cluster, &persisted, exporter));
        let placer = Placer::new(config.clone(), policy, persisted, clock::now());

        let registered = phase.register().await?;
        let submissions = registered.endpoint(Topic::JobSubmitted.pattern(cluster)).await?;
        let cancellations = registered.endpoint(Topic::JobCancelled.pattern(cluster)).await?;
        let reads = registered.endpoint(Topic::JobRequested.pattern(cluster)).await?;
        let budgets = registered.endpoint(Topic::BudgetSet.pattern(cluster)).await?;
        let event_requests = registered.endpoint(Topic::EventSet.pattern(cluster)).await?;
        let plan_requests = registered.endpoint(Topic::EventPlanned.pattern(cluster)).await?;
        let orders_log = OrderLog::new(&bus, "placer");
        let progress = bus.subscribe(&Topic::JobProgressed.pattern(cluster)).await?;
        let summaries = bus.subscribe(&Topic::NodeSummarized.pattern(cluster)).await?;
        Ok(Self {
            bus,
            shutdown: phase.shutdown.clone(),
            placer,
            storage: Storage::new(jobs.bucket().clone()),
            unstored: BTreeMap::new(),
            not_stored: BTreeSet::new(),
            jobs,
            orders,
            actual,
            surfaces,
            _registered: registered,
            submissions: Submissions::new(submissions),
            admissions: Admissions::new(),
            cancellations,
            reads,
            budgets,
            event_requests,
            plan_requests,
            planning: Arc::new(Semaphore::new(1)),
            orders_log,
            budget,
            budget_not_stored: false,
            events_not_stored: false,
            metered,
            counting: None,
            site,
            progress,
            summaries,
            waiting: BTreeMap::new(),
            count: 0,
            wake_command: config.sleep.wake_command.clone().unwrap_or_default(),
            metrics: metrics.clone(),
            traces,
            grid,
            woken: mpsc::channel(WOKEN_MAX),
            was_away: false,
            is_idle: false,
        })
    }

    fn set_active(setup: &Setup, active: bool) {
        setup.metrics.is_active(active);
    }

    const COPIED: &'static [Bucket] = &[Bucket::Jobs, Bucket::Desired, Bucket::Budget];

    fn buckets(&mut self) -> Vec<&mut ExclusiveBucket> {
        vec![&mut self.jobs, &mut self.orders, &mut self.budget]
    }

    fn machine(&mut self) -> &mut Placer {
        &mut self.placer
    }

    fn was_away(&mut self) {
        self.was_away = true;
    }

    /// The sources are polled in random order: many requests do not delay reports.
    async fn next(&mut self) -> Option<Input> {
        Some(tokio::select! {
            batch = self.submissions.next() => Input::Submissions(batch),
            Some(request) = self.cancellations.next() => Input::Cancellation(Box::new(request)),
            Some(request) = self.budgets.next() => Input::Budget(Box::new(request)),
            Some(request) = self.event_requests.next() => Input::Event(Box::new(request)),
            Some(request) = self.plan_requests.next() => Input::Plan(Box::new(request)),
            Some(request) = self.reads.next() => Input::Read(Box::new(request)),
            Some(delivery) = self.metered.next() => Input::Metered(Box::new(delivery)),
            Some(changes) = self.actual.next_batch(BATCH) => Input::Reports(changes),
            Some(changes) = self.surfaces.next_batch(BATCH) => Input::Surfaces(changes),
            Some(event) = self.woken.1.recv() => Input::Woken(event),
            Some(read) = self.grid.next() => Input::Grid(Box::new(read)),
            Some(message) = self.progress.next() => Input::Progress(message),
            Some(message) = self.summaries.next() => Input::Summary(message),
        })
    }

    async fn handle(&mut self, input: Input, out: &mut Vec<Action>) -> Result<(), End> {
        self.excuse_absence(out);
        let event = self.event_of(input, out).await;
        self.is_idle = event.is_none();
        if let Some(event) = event {
            if let Some(traces) = &mut self.traces {
                traces.received(&event);
            }
            self.placer.handle(clock::now(), event, out);
        }
        Ok(())
    }

    async fn wake(&mut self, out: &mut Vec<Action>) {
        if !self.bus.is_connected() {
            // No report can arrive, so no node counts as silent.
            self.was_away = true;
            tokio::time::sleep(RETRY).await;
        }
        self.excuse_absence(out);
        self.is_idle = true;
        if self.bus.is_connected() {
            let began = clock::work_time();
            self.placer.wake(clock::now(), out);
            let took = clock::work_time().saturating_sub(began);
            self.metrics.handled(self.placer.rounds(), took, || self.placer.measures());
        }
    }

    async fn act(&mut self, out: &mut Vec<Action>) -> Result<(), End> {
        let shutdown = self.shutdown.clone();
        self.metrics.acted(out);
        if let Some(traces) = &mut self.traces {
            traces.acted(out);
        }
        loop {
            let stored = self.carry_out(out, &shutdown).await?;
            self.is_stored(stored)?;
            let lost = self.buckets().into_iter().map(ExclusiveBucket::take_lost);
            if !lost.fold(false, |any, lost| any | lost) {
                break;
            }
            self.placer.handle(clock::now(), Event::StoreIncomplete, out);
        }
        let is_idle = std::mem::take(&mut self.is_idle);
        if !self.not_stored.is_empty() || (is_idle && !self.unstored.is_empty()) {
            let stored = self.repeat_unstored(&shutdown).await?;
            self.is_stored(stored)?;
        }
        // The counted entry is stored: acknowledge it.
        if let Some(counted) = self.counting.take()
            && let Err(error) = counted.ack().await
        {
            tracing::warn!(%error, "cannot acknowledge an energy ledger entry; it is delivered again and not counted twice");
        }
        Ok(())
    }
}

impl PlacerService {
    /// Passes on that the server or this process was away, before anything else.
    fn excuse_absence(&mut self, out: &mut Vec<Action>) {
        if std::mem::take(&mut self.was_away) {
            if let Some(traces) = &mut self.traces {
                traces.received(&Event::BusReturned);
            }
            self.placer.handle(clock::now(), Event::BusReturned, out);
        }
    }

    fn is_stored(&mut self, stored: Stored) -> Result<(), End> {
        match stored {
            Stored::Immediately => {}
            Stored::AfterRetry => self.was_away = true,
            // Shutdown while the bus is away: the next start computes unwritten actions again.
            Stored::Interrupted => return Err(End::Stopped),
        }
        Ok(())
    }

    /// The event of an input, if it is for the placer and permitted.
    async fn event_of(&mut self, input: Input, out: &mut Vec<Action>) -> Option<Event> {
        match input {
            Input::Submissions(batch) => {
                self.submitted(batch, out).await;
                None
            }
            Input::Cancellation(request) => {
                let (number, body) = self.receive(*request, access::cancel).await?;
                Some(Event::Cancelled(number, body))
            }
            Input::Budget(request) => {
                let (number, body) = self.receive(*request, access::set_budget).await?;
                Some(Event::BudgetSet(number, Box::new(body)))
            }
            Input::Event(request) => {
                let (number, body) = self.receive(*request, access::set_event).await?;
                Some(Event::EventSet(number, Box::new(body)))
            }
            Input::Plan(request) => {
                self.plan_event(*request).await;
                None
            }
            Input::Read(request) => {
                self.answer_read(&request).await;
                None
            }
            Input::Metered(delivery) => {
                let entry = metered(&delivery);
                if let Some(Event::EnergyMetered(entry)) = &entry {
                    self.metrics.metered(entry);
                    self.site.delivered(delivery.sequence, entry);
                }
                self.counting = Some(*delivery);
                entry
            }
            Input::Reports(changes) => {
                Some(Event::Batch(changes.iter().filter_map(reported).collect()))
            }
            Input::Surfaces(changes) => {
                let surfaces = changes.iter().filter_map(|c| c.decode::<Surface>(Bucket::Surfaces));
                Some(Event::Batch(surfaces.map(|s| Event::SurfaceKnown(Box::new(s))).collect()))
            }
            Input::Woken(event) => Some(event),
            Input::Grid(read) => {
                self.metrics.grid_read(&read);
                Some(Event::GridRead(read.signal, read.result.map(Box::new)))
            }
            Input::Progress(message) => progressed(&message.subject, &message.payload),
            // Without a power limit the readings of every second are not decoded.
            Input::Summary(message) if self.placer.reads_power() => {
                summarized(&message.subject, &message.payload)
            }
            Input::Summary(_) => None,
        }
    }

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
