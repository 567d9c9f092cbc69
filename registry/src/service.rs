//! Connects the [`Registry`] to the bus: windows, proposals, job records and promotions in; surfaces,
//! statuses and the champion out.
//!
//! Windows arrive by a core subscription: a window closed while the registry was down cannot be
//! scored, because the proposals before it were not received. While the server is unreachable the
//! newest write of each key is pending.
//!
//! Of several registries of a cluster, the holder of the lease is active; the others are on standby. The server
//! refuses writes of an earlier holder ([`ExclusiveBucket`]).

mod discovery;
pub mod metrics;
mod writes;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Deserialize;
use tokio::sync::mpsc;
use tokio::time::{Interval, MissedTickBehavior};
use wattle_common::codec;
use wattle_common::config::{service_lease, service_lease_default};
use wattle_common::id::{JobId, PredictorId};
use wattle_common::messages::{
    Champion, JobWindow, Order, PromotePredictor, PromoteReply, Surface,
};
use wattle_common::subject::{Bucket, LeaseKey, PredictorKey, Requester, Subject, Topic};
use wattle_common::{ClusterId, Machine, generation};
use wattle_runtime::bus::{
    self, Bus, BusConfig, BusError, Change, Delivery, ExclusiveBucket, ExclusiveError, JobChange,
    NewestMessages, PendingWrites, Request, Requests, Subscription, Watch,
};
use wattle_runtime::clock;
use wattle_runtime::orders::{OrderLog, requester_of};
use wattle_runtime::service::{self, Identity, LeaseMode, Phase, Service, Shell};
use wattle_runtime::shell::{Shutdown, chain};

use crate::check::InvalidSurface;
use crate::config::RegistryConfig;
use crate::event::{Action, Event};
use crate::registry::{Registry, is_trouble};
use crate::score::Record;

use discovery::discover;
use metrics::RegistryMetrics;
use writes::Write;

/// The service's whole configuration.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceConfig {
    /// The cluster.
    pub cluster: ClusterId,
    /// Wall time between two discoveries of predictors, milliseconds.
    #[serde(deserialize_with = "wattle_common::config::non_zero")]
    pub discovery_interval_wall_ms: u64,
    /// Length of the working registry's lease, wall time, milliseconds; it is renewed after a third.
    #[serde(default = "service_lease_default", deserialize_with = "service_lease")]
    pub service_lease_wall_ms: u64,
    /// Configuration of the library.
    pub registry: RegistryConfig,
    /// The metrics endpoint.
    #[serde(default)]
    pub metrics: wattle_common::config::MetricsConfig,
    /// The bus.
    pub nats: BusConfig,
}

/// Interval of repeated writes, wall time.
const RETRY_EVERY: Duration = Duration::from_secs(1);
/// Most bytes of proposals that wait: those of 2,500 jobs at 13 kB each. A newer one replaces the one of
/// the same predictor and job; one without room is dropped, and the predictor proposes the next with the
/// job's next window.
const PROPOSALS_LEN_MAX: usize = 32 << 20;
/// Most pending writes.
const PENDING_MAX: usize = 20_000;

/// Why the registry cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The bus refuses an operation.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// A bucket cannot be written.
    #[error(transparent)]
    Store(#[from] ExclusiveError),
}

/// Why an active phase ended.
type End = service::End<ServiceError>;

/// Runs the service until shutdown.
///
/// # Errors
/// Where the configuration is invalid or the server refuses a required operation.
pub async fn run(config: ServiceConfig, shutdown: &Shutdown) -> Result<(), ServiceError> {
    let about = "serves the champion predictor and scores all predictors";
    let identity = Identity::of_cluster("wattle-registry", about, &config.cluster);
    let length = Duration::from_millis(config.service_lease_wall_ms);
    let mode = LeaseMode::Fenced { key: LeaseKey::Registry, length };
    let shell = Shell::start(identity, &config.metrics, &config.nats);
    let metrics = RegistryMetrics::new(shell.metrics());
    shell.run::<RegistryService>(mode, (config, metrics), shutdown).await
}

/// What the sources deliver.
enum Input {
    Window(Delivery),
    Request(Box<Request>),
    Job(Change),
    /// Pending writes are due.
    Retry,
    Found(BTreeMap<PredictorId, String>),
    Proposal(Delivery),
}

/// The active registry.
struct RegistryService {
    bus: Bus,
    surfaces: ExclusiveBucket,
    predictors: ExclusiveBucket,
    registry: Registry,
    pending: PendingWrites<String, Write>,
    orders: OrderLog,
    metrics: RegistryMetrics,
    windows: Subscription,
    proposals: NewestMessages,
    jobs: Watch,
    requests: Requests,
    found: mpsc::Receiver<BTreeMap<PredictorId, String>>,
    retry: Interval,
    _registered: bus::Service,
}

impl Service for RegistryService {
    type Machine = Registry;
    type Input = Input;
    type Setup = (ServiceConfig, RegistryMetrics);
    type Failure = ServiceError;

    /// Restores the champion, the records and the jobs.
    async fn open((config, metrics): &Self::Setup, phase: Phase<'_>) -> Result<Self, End> {
        let (bus, lease) = (phase.bus.clone(), phase.lease);
        let surfaces = ExclusiveBucket::open_without_values(&bus, Bucket::Surfaces, lease).await?;
        let (predictors, values) = ExclusiveBucket::open(&bus, Bucket::Predictors, lease).await?;
        let registry = restored(config, values);
        // Windows first, so that no proposal is received before the window it answers.
        let windows = bus.subscribe(&Topic::WindowClosed.pattern(bus.cluster())).await?;
        let proposals = Topic::SurfaceProposed.pattern(bus.cluster());
        let proposals = bus.subscribe_newest(&proposals, PROPOSALS_LEN_MAX).await?;
        let mut jobs = bus.bucket(Bucket::Jobs).await?.watch().await?;
        let first = jobs.initial().await;
        let registered = phase.register().await?;
        let requests = registered.endpoint(Topic::PredictorPromoted.pattern(bus.cluster())).await?;
        let every = Duration::from_millis(config.discovery_interval_wall_ms);
        let mut retry = tokio::time::interval(RETRY_EVERY);
        retry.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut service = Self {
            orders: OrderLog::new(&bus, "registry"),
            found: discover(&bus, every),
            bus,
            surfaces,
            predictors,
            registry,
            pending: PendingWrites::new(PENDING_MAX),
            metrics: metrics.clone(),
            windows,
            proposals,
            jobs,
            requests,
            retry,
            _registered: registered,
        };
        let mut actions = Vec::new();
        service.restore_jobs(&first, &mut actions).await;
        // Predictors then propose all their jobs, which replaces proposals lost while down.
        actions.push(Action::WriteChampion(service.registry.champion().clone()));
        service.act(&mut actions).await?;
        Ok(service)
    }

    fn set_active((_, metrics): &Self::Setup, active: bool) {
        metrics.is_active(active);
    }

    // Surfaces are made again by the predictors.
    const COPIED: &'static [Bucket] = &[Bucket::Predictors];

    fn buckets(&mut self) -> Vec<&mut ExclusiveBucket> {
        vec![&mut self.surfaces, &mut self.predictors]
    }

    fn machine(&mut self) -> &mut Registry {
        &mut self.registry
    }

    async fn next(&mut self) -> Option<Input> {
        tokio::select! {
            biased;
            window = self.windows.next() => window.map(Input::Window),
            request = self.requests.next() => request.map(|request| Input::Request(Box::new(request))),
            change = self.jobs.next() => change.map(Input::Job),
            _ = self.retry.tick() => Some(Input::Retry),
            Some(services) = self.found.recv() => Some(Input::Found(services)),
            proposal = self.proposals.next() => proposal.map(Input::Proposal),
        }
    }

    async fn handle(&mut self, input: Input, actions: &mut Vec<Action>) -> Result<(), End> {
        match input {
            Input::Window(window) => self.on_window(&window, actions),
            Input::Request(request) => self.on_request(&request, actions).await,
            Input::Job(change) => self.on_job(&change, actions),
            Input::Retry => self.repeat_pending().await?,
            Input::Found(services) => {
                self.registry.handle(clock::now(), Event::ServicesFound(services), actions);
            }
            Input::Proposal(proposal) => self.on_proposal(&proposal, actions),
        }
        Ok(())
    }

    async fn act(&mut self, actions: &mut Vec<Action>) -> Result<(), End> {
        Ok(self.carry_out(actions).await?)
    }

    async fn close(&mut self) -> Result<(), End> {
        Ok(self.repeat_pending().await?)
    }
}

/// The registry with the stored champion and records.
fn restored(config: &ServiceConfig, values: Vec<Change>) -> Registry {
    let (mut champion, mut records) = (None, BTreeMap::new());
    for entry in values {
        let Some(value) = &entry.value else { continue };
        let read = match PredictorKey::parse(&entry.key) {
            Some(PredictorKey::Champion) => {
                codec::decode_json::<Champion>(value).map(|read| champion = Some(read))
            }
            Some(PredictorKey::Scores(name)) => {
                codec::decode_json::<Record>(value).map(|read| drop(records.insert(name, read)))
            }
            // A predictor without scores is listed until it is removed.
            Some(PredictorKey::Status(name)) => {
                records.entry(name).or_default();
                Ok(())
            }
            None => Ok(()),
        };
        if let Err(error) = read {
            let error = chain(&error);
            tracing::warn!(key = entry.key, error, "stored value not readable; ignored");
        }
    }
    let mut registry_config = config.registry.clone();
    let discovery_ms =
        config.discovery_interval_wall_ms.saturating_mul(u64::from(clock::scale().rate));
    registry_config.status_interval_ms = registry_config.status_interval_ms.max(discovery_ms);
    let kept = records.len();
    let records = records.into_iter().collect();
    let registry = Registry::new(clock::now(), registry_config, champion, records);
    let champion = &registry.champion().predictor;
    tracing::info!(cluster = %config.cluster, %champion, kept, "registry started");
    registry
}

impl RegistryService {
    /// Restores the jobs and their surfaces, and deletes surfaces of jobs that ended while the
    /// registry was down.
    async fn restore_jobs(&mut self, jobs: &[Change], actions: &mut Vec<Action>) {
        let mut live = BTreeSet::new();
        for change in jobs {
            if change.is_active_job() {
                live.insert(change.key.as_str());
                self.on_job(change, actions);
            }
        }
        let cleaned = async {
            let mut gone = 0;
            let found = self.surfaces.bucket().watch().await?.initial().await;
            for stored in found.into_iter().filter(|stored| stored.value.is_some()) {
                match JobId::new(&stored.key) {
                    Ok(job) if live.contains(stored.key.as_str()) => {
                        let surface: Option<Surface> = stored.decode(Bucket::Surfaces);
                        let of = surface.and_then(|surface| surface.admission);
                        self.registry.handle(clock::now(), Event::SurfaceFound(job, of), actions);
                    }
                    _ => {
                        self.surfaces.try_delete(&stored.key).await?;
                        gone += 1;
                    }
                }
            }
            Ok::<_, ServiceError>(gone)
        };
        match cleaned.await {
            Ok(0) => {}
            Ok(jobs) => tracing::info!(jobs, "deleted surfaces of ended jobs"),
            Err(error) => tracing::warn!(%error, "surfaces of ended jobs not deleted"),
        }
    }

    fn on_window(&mut self, delivery: &Delivery, actions: &mut Vec<Action>) {
        match codec::decode_json::<JobWindow>(&delivery.payload) {
            Ok(window) => {
                self.metrics.window();
                let event = Event::WindowClosed(Box::new(window));
                self.registry.handle(clock::now(), event, actions);
            }
            // Predictors log it as a warning.
            Err(error) => {
                tracing::debug!(subject = delivery.subject, %error, "window not readable");
            }
        }
    }

    fn on_proposal(&mut self, delivery: &Delivery, actions: &mut Vec<Action>) {
        let subject = match delivery.subject.parse::<Subject>() {
            Ok(subject) => subject,
            Err(error) => {
                return tracing::warn!(subject = delivery.subject, %error, "proposal not readable");
            }
        };
        let (Some(predictor), Some(job)) = (subject.predictor(), subject.job()) else { return };
        let surface = codec::decode_json::<Surface>(&delivery.payload);
        let surface =
            surface.map(Box::new).map_err(|error| InvalidSurface::Undecodable(chain(&error)));
        let event = Event::Proposed { predictor: predictor.clone(), job: job.clone(), surface };
        self.registry.handle(clock::now(), event, actions);
    }

    fn on_job(&mut self, change: &Change, actions: &mut Vec<Action>) {
        let event = match change.job() {
            Some(JobChange::Active(record)) => Event::JobDescribed {
                job: record.spec.job,
                admission: record.admission,
                workload: record.spec.workload,
                gpus: record.spec.gpus,
                gpu_type: record.spec.gpu_type,
                started: record.attempt > 0,
            },
            Some(JobChange::Ended(job, admission)) => Event::JobEnded(job, admission),
            None => return,
        };
        self.registry.handle(clock::now(), event, actions);
    }

    async fn on_request(&mut self, request: &Request, actions: &mut Vec<Action>) {
        let reply = match requester_of(&self.bus, request) {
            Ok(requester) => self.answer(request, &requester, actions).await,
            Err(error) => PromoteReply::Refused { error },
        };
        if let Err(error) = request.respond(&reply).await {
            tracing::warn!(%error, "reply to a promotion not sent");
        }
    }

    /// Carries out an operator's request, and records it.
    async fn answer(
        &mut self,
        request: &Request,
        requester: &Requester,
        actions: &mut Vec<Action>,
    ) -> PromoteReply {
        let (order, reply) = match request.decode::<PromotePredictor>() {
            Ok(PromotePredictor { predictor }) => {
                let order = Order::Promote { predictor: predictor.clone() };
                let reply = if requester.may_operate() {
                    self.promote(predictor, actions).await
                } else {
                    let error = "only an operator promotes predictors: use the key of an operator";
                    PromoteReply::Refused { error: error.to_owned() }
                };
                (order, reply)
            }
            Err(error) => {
                let topic = Topic::PredictorPromoted.token().to_owned();
                (Order::Unreadable { topic }, PromoteReply::Refused { error: chain(&error) })
            }
        };
        let refused = match &reply {
            PromoteReply::Refused { error } => Some(error.as_str()),
            PromoteReply::Promoted { .. } => None,
        };
        self.orders.record(requester, order, refused);
        reply
    }

    /// Promotes a predictor: stored first, then in effect, then acknowledged.
    async fn promote(&mut self, predictor: PredictorId, actions: &mut Vec<Action>) -> PromoteReply {
        let before = self.registry.champion().clone();
        if let Err(error) = self.registry.may_promote(&predictor) {
            return PromoteReply::Refused { error: error.to_string() };
        }
        let now = clock::now();
        let warning = |registry: &Registry| {
            let status = registry.status(now, &predictor)?;
            let problem = status.error.filter(|_| is_trouble(status.state))?;
            Some(format!("{predictor} is champion, but has a problem: {problem}"))
        };
        if before.predictor != predictor {
            let generation = generation::next(before.generation);
            let champion = Champion { predictor: predictor.clone(), since_us: now, generation };
            let key = PredictorKey::Champion.to_string();
            if let Err(error) = self.predictors.try_put(&key, &champion).await {
                let error =
                    format!("not promoted, the champion cannot be stored: {}", chain(&error));
                return PromoteReply::Refused { error };
            }
            self.pending.discard(&key);
            self.registry.handle(now, Event::Promoted(champion), actions);
            tracing::info!(champion = %predictor, before = %before.predictor, "promoted");
        }
        let warning = warning(&self.registry);
        let generation = self.registry.champion().generation;
        PromoteReply::Promoted { predictor, previous: before.predictor, generation, warning }
    }
}
