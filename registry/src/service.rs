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
use wattle_common::bounds::check_record;
use wattle_common::codec;
use wattle_common::config::{service_lease, service_lease_default};
use wattle_common::id::{JobId, PredictorId};
use wattle_common::messages::{
    Champion, JobRecord, JobWindow, Order, PromotePredictor, PromoteReply, Surface,
};
use wattle_common::subject::{Bucket, LeaseKey, PredictorKey, Requester, Subject, Topic};
use wattle_common::{ClusterId, Machine};
use wattle_runtime::bus::{
    Bus, BusConfig, BusError, Candidate, Change, Delivery, ExclusiveBucket, ExclusiveError,
    Leadership, LeaseLost, PendingWrites, Request,
};
use wattle_runtime::clock;
use wattle_runtime::metrics::Metrics;
use wattle_runtime::orders::{OrderLog, requester_of};
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
/// The name under which registries register.
const NAME: &str = "wattle-registry";
/// Most bytes of proposals that wait: those of 2,500 jobs at 13 kB each. A newer one replaces the one of
/// the same predictor and job; one without room is dropped, and the predictor proposes the next with the
/// job's next window.
const PROPOSALS_LEN_MAX: usize = 32 << 20;
/// Most pending writes.
const PENDING_MAX: usize = 20_000;

/// Runs the service until shutdown.
///
/// # Errors
/// Where the configuration is invalid or the server refuses a required operation.
pub async fn run(config: ServiceConfig, shutdown: &Shutdown) -> Result<(), ExclusiveError> {
    let metrics = Metrics::start(&config.metrics, "registry", &config.cluster, None);
    let metrics = RegistryMetrics::new(&metrics);
    let connect = async {
        let bus = Bus::connect(&config.nats, config.cluster.clone(), NAME).await?;
        let length = Duration::from_millis(config.service_lease_wall_ms);
        let candidate = Candidate::new(&bus, LeaseKey::Registry, length).await?;
        Ok::<_, BusError>((bus, candidate))
    };
    let Some(connected) = shutdown.or(connect).await else { return Ok(()) };
    let (bus, candidate) = connected.map_err(refused)?;
    metrics.follow_bus(&bus);
    // Repeated, because another registry may take over during an outage.
    loop {
        let Some(lease) = shutdown.or(stand_by(&config, &bus, &candidate)).await else {
            return Ok(());
        };
        let lease = lease.map_err(refused)?;
        metrics.is_active(true);
        let served = match shutdown.or(open(&config, &bus, &lease, &metrics)).await {
            Some(Ok(mut service)) => service.serve(&config, shutdown).await,
            Some(Err(error)) => Err(error),
            None => Ok(Ended::Stopped),
        };
        metrics.is_active(false);
        match served {
            Ok(Ended::Lost(lost)) | Err(ExclusiveError::Lost(lost)) => tracing::error!(
                cluster = %config.cluster,
                other = lost.holder.instance,
                "another registry is active in this cluster because this one was away longer than its \
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

/// The error of an operation before the buckets are open.
const fn refused(source: BusError) -> ExclusiveError {
    refused_by(Bucket::Leases, source)
}

const fn refused_by(bucket: Bucket, source: BusError) -> ExclusiveError {
    ExclusiveError::Bus { bucket: bucket.token(), source }
}

/// Waits until this registry holds the lease.
async fn stand_by(
    config: &ServiceConfig,
    bus: &Bus,
    candidate: &Candidate,
) -> Result<Leadership, BusError> {
    let service = register(bus, "standby").await?;
    let lease = candidate
        .acquire(|lease| {
            let (cluster, other) = (&config.cluster, &lease.holder.instance);
            tracing::warn!(%cluster, other, "another registry is active in this cluster; this one is on standby");
        })
        .await;
    service.stop().await;
    Ok(lease)
}

/// Registers this process with its state, `active` or `standby`.
async fn register(bus: &Bus, state: &str) -> Result<wattle_runtime::bus::Service, BusError> {
    let about = "serves the champion predictor and scores all predictors";
    bus.register(NAME, about, &[("state", state)]).await
}

/// Restores the champion and the records.
async fn open(
    config: &ServiceConfig,
    bus: &Bus,
    lease: &Leadership,
    metrics: &RegistryMetrics,
) -> Result<Service, ExclusiveError> {
    let bus = bus.clone();
    let surfaces = ExclusiveBucket::open_without_values(&bus, Bucket::Surfaces, lease).await?;
    let (predictors, values) = ExclusiveBucket::open(&bus, Bucket::Predictors, lease).await?;
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
    Ok(Service {
        orders: OrderLog::new(&bus, "registry"),
        bus,
        surfaces,
        predictors,
        registry,
        lease: lease.clone(),
        pending: PendingWrites::new(PENDING_MAX),
        metrics: metrics.clone(),
    })
}

/// Why the service stopped serving.
enum Ended {
    /// Shutdown was requested.
    Stopped,
    /// Another registry works.
    Lost(LeaseLost),
}

struct Service {
    bus: Bus,
    surfaces: ExclusiveBucket,
    predictors: ExclusiveBucket,
    registry: Registry,
    lease: Leadership,
    pending: PendingWrites<String, Write>,
    orders: OrderLog,
    metrics: RegistryMetrics,
}

impl Service {
    async fn serve(
        &mut self,
        config: &ServiceConfig,
        shutdown: &Shutdown,
    ) -> Result<Ended, ExclusiveError> {
        let begin = async {
            let bus = &self.bus;
            // Windows first, so that no proposal is received before the window it answers.
            let windows = bus.subscribe(&Topic::WindowClosed.pattern(bus.cluster())).await?;
            let proposals = Topic::SurfaceProposed.pattern(bus.cluster());
            let proposals = bus.subscribe_newest(&proposals, PROPOSALS_LEN_MAX).await?;
            let mut jobs = bus.bucket(Bucket::Jobs).await?.watch().await?;
            let first = jobs.initial().await;
            let service = register(bus, "active").await?;
            let pattern = Topic::PredictorPromoted.pattern(bus.cluster());
            let requests = service.endpoint(pattern).await?;
            Ok::<_, BusError>((windows, proposals, jobs, first, service, requests))
        };
        let Some(begun) = shutdown.or(begin).await else { return Ok(Ended::Stopped) };
        let (mut windows, mut proposals, mut jobs, first, service, mut requests) =
            begun.map_err(refused)?;
        let mut actions = Vec::new();
        self.restore_jobs(&first, &mut actions).await;
        drop(first);
        // Predictors then propose all their jobs, which replaces proposals lost while down.
        actions.push(Action::WriteChampion(self.registry.champion().clone()));
        self.act(&mut actions).await?;
        let lease = self.lease.clone();
        let mut found =
            discover(&self.bus, Duration::from_millis(config.discovery_interval_wall_ms));
        let mut retry = tokio::time::interval(RETRY_EVERY);
        retry.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let (wake, _) =
                self.registry.next_wake().expect("the registry always has a next check");
            tokio::select! {
                biased;
                () = shutdown.wait() => break,
                lost = lease.lost() => return Ok(Ended::Lost(lost)),
                window = windows.next() => match window {
                    Some(window) => self.on_window(&window, &mut actions),
                    None => break,
                },
                request = requests.next() => match request {
                    // Another registry may answer it; the client repeats it.
                    Some(_) if !lease.is_valid() => {}
                    Some(request) => self.on_request(&request, &mut actions).await,
                    None => break,
                },
                change = jobs.next() => match change {
                    Some(change) => self.on_job(&change, &mut actions),
                    None => break,
                },
                () = clock::sleep_until(wake) => self.registry.wake(clock::now(), &mut actions),
                _ = retry.tick() => {
                    self.repeat_pending().await?;
                }
                Some(services) = found.recv() => {
                    let event = Event::ServicesFound(services);
                    self.registry.handle(clock::now(), event, &mut actions);
                }
                proposal = proposals.next() => match proposal {
                    Some(proposal) => self.on_proposal(&proposal, &mut actions),
                    None => break,
                },
            }
            self.act(&mut actions).await?;
        }
        self.repeat_pending().await?;
        service.stop().await;
        self.bus.flush().await;
        Ok(Ended::Stopped)
    }

    /// Restores the jobs and their surfaces, and deletes surfaces of jobs that ended while the
    /// registry was down.
    async fn restore_jobs(&mut self, jobs: &[Change], actions: &mut Vec<Action>) {
        let mut live = BTreeSet::new();
        for change in jobs {
            if read_record(change).is_some_and(|record| !record.phase.is_final()) {
                live.insert(change.key.as_str());
                self.on_job(change, actions);
            }
        }
        let cleaned = async {
            let mut gone = 0;
            let keys = self.surfaces.bucket().keys().await;
            for key in keys.map_err(|source| refused_by(Bucket::Surfaces, source))? {
                match JobId::new(&key) {
                    Ok(job) if live.contains(key.as_str()) => {
                        self.registry.handle(clock::now(), Event::SurfaceFound(job), actions);
                    }
                    _ => {
                        self.surfaces.try_delete(&key).await?;
                        gone += 1;
                    }
                }
            }
            Ok::<_, ExclusiveError>(gone)
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
        let event = match read_record(change) {
            Some(record) if record.phase.is_final() => Event::JobEnded(record.spec.job),
            Some(record) => Event::JobDescribed {
                job: record.spec.job,
                workload: record.spec.workload,
                gpus: record.spec.gpus,
                gpu_type: record.spec.gpu_type,
                started: record.attempt > 0,
            },
            None if change.value.is_none() => match JobId::new(&change.key) {
                Ok(job) => Event::JobEnded(job),
                Err(_) => return,
            },
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
            let champion = Champion { predictor: predictor.clone(), since_us: now };
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
        PromoteReply::Promoted { predictor, previous: before.predictor, warning }
    }
}

fn read_record(change: &Change) -> Option<JobRecord> {
    match codec::decode_json::<JobRecord>(change.value.as_ref()?) {
        Ok(record) => match check_record(&record, clock::now()) {
            Ok(()) => Some(record),
            Err(error) => {
                tracing::error!(key = change.key, %error, "job record ignored");
                None
            }
        },
        Err(error) => {
            tracing::warn!(key = change.key, error = chain(&error), "job record not readable");
            None
        }
    }
}
