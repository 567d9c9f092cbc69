//! Connects the [`Registry`] to the bus: windows, proposals, job records and promotions in; surfaces,
//! statuses and the champion out.
//!
//! Windows arrive by a core subscription: a window closed while the registry was down cannot be
//! scored, because the proposals before it were not received. While the server is unreachable the
//! newest write of each key is pending.

mod discovery;
mod writes;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Deserialize;
use wattle_common::bounds::check_record;
use wattle_common::codec;
use wattle_common::id::{JobId, PredictorId};
use wattle_common::messages::{
    Champion, JobRecord, JobWindow, Order, PromotePredictor, PromoteReply, Surface,
};
use wattle_common::subject::{Bucket, PredictorKey, Requester, Subject, Topic};
use wattle_common::{ClusterId, Machine};
use wattle_runtime::bus::{
    Bus, BusConfig, BusError, Change, Delivery, KvBucket, PendingWrites, Request,
};
use wattle_runtime::clock;
use wattle_runtime::orders::{OrderLog, requester_of};
use wattle_runtime::shell::{Shutdown, chain};

use crate::check::InvalidSurface;
use crate::config::RegistryConfig;
use crate::event::{Action, Event};
use crate::lease::{self, Acquired, Held, Lease};
use crate::registry::{Registry, is_trouble};
use crate::score::Record;

use discovery::discover;
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
    /// Length of the lease on the cluster, wall time, milliseconds; it is renewed after a third.
    #[serde(default = "lease_wall_ms", deserialize_with = "wattle_common::config::non_zero")]
    pub lease_wall_ms: u64,
    /// Configuration of the library.
    pub registry: RegistryConfig,
    /// The bus.
    pub nats: BusConfig,
}

const fn lease_wall_ms() -> u64 {
    10_000
}

/// Interval of lease renewal and of repeated writes, wall time.
const RETRY_EVERY: Duration = Duration::from_secs(1);
/// Interval at which a standby registry checks the lease, wall time.
const STANDBY_INTERVAL: Duration = Duration::from_millis(250);
/// Most pending writes.
const PENDING_MAX: usize = 20_000;

/// Runs the service until shutdown.
///
/// # Errors
/// Where the configuration is invalid or the server refuses a required operation.
pub async fn run(config: ServiceConfig, shutdown: &Shutdown) -> Result<(), BusError> {
    let instance = lease::instance();
    let connect = Bus::connect(&config.nats, config.cluster.clone(), "wattle-registry");
    let Some(bus) = shutdown.or(connect).await else { return Ok(()) };
    let bus = bus?;
    let Some(bucket) = shutdown.or(bus.bucket(Bucket::Predictors)).await else { return Ok(()) };
    let bucket = bucket?;
    // Repeated, because another registry may take over during an outage.
    loop {
        let Some(held) = shutdown.or(acquire(&config, &bucket, &instance)).await else {
            return Ok(());
        };
        let mut service = match shutdown.or(open(&config, &bus, held)).await {
            Some(service) => service?,
            None => return Ok(()),
        };
        match service.serve(&config, shutdown).await? {
            Ended::Stopped => {
                service.lease.release(&bucket).await;
                bus.flush().await;
                return Ok(());
            }
            Ended::Replaced(other) => tracing::error!(
                cluster = %config.cluster,
                other = other.instance,
                "another registry has taken over this cluster; on standby"
            ),
        }
    }
}

/// Waits until the lease is free and acquires it.
async fn acquire(config: &ServiceConfig, bucket: &KvBucket, instance: &str) -> Held {
    let length = Duration::from_millis(config.lease_wall_ms) * clock::scale().rate;
    let mut logged = false;
    loop {
        match lease::take(bucket, instance, length).await {
            Ok(Acquired::Own(held)) => return held,
            Ok(Acquired::Other(other)) if !logged => {
                logged = true;
                tracing::warn!(
                    cluster = %config.cluster,
                    other = other.instance,
                    until = %other.until_us,
                    "another registry holds this cluster; on standby until its lease ends. Stop one of \
                     the two or configure different clusters"
                );
            }
            Ok(Acquired::Other(_)) => {}
            Err(error) => tracing::debug!(%error, "lease not acquired yet"),
        }
        tokio::time::sleep(STANDBY_INTERVAL).await;
    }
}

/// Restores the champion and the records.
async fn open(config: &ServiceConfig, bus: &Bus, lease: Held) -> Result<Service, BusError> {
    let bus = bus.clone();
    let (surfaces, predictors) =
        (bus.bucket(Bucket::Surfaces).await?, bus.bucket(Bucket::Predictors).await?);
    let (mut champion, mut records) = (None, BTreeMap::new());
    for entry in predictors.watch().await?.initial().await {
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
            Some(PredictorKey::Registry) | None => Ok(()),
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
        lease,
        pending: PendingWrites::new(PENDING_MAX),
    })
}

/// Why the service stopped serving.
enum Ended {
    /// Shutdown was requested.
    Stopped,
    /// Another registry holds the cluster.
    Replaced(Lease),
}

struct Service {
    bus: Bus,
    surfaces: KvBucket,
    predictors: KvBucket,
    registry: Registry,
    lease: Held,
    pending: PendingWrites<String, Write>,
    orders: OrderLog,
}

impl Service {
    async fn serve(
        &mut self,
        config: &ServiceConfig,
        shutdown: &Shutdown,
    ) -> Result<Ended, BusError> {
        let begin = async {
            let bus = &self.bus;
            // Windows first, so that no proposal is received before the window it answers.
            let windows = bus.subscribe(&Topic::WindowClosed.pattern(bus.cluster())).await?;
            let proposals = bus.subscribe(&Topic::SurfaceProposed.pattern(bus.cluster())).await?;
            let mut jobs = bus.bucket(Bucket::Jobs).await?.watch().await?;
            let first = jobs.initial().await;
            let service = bus
                .register(
                    "wattle-registry",
                    "serves the champion predictor and scores all predictors",
                )
                .await?;
            let pattern = Topic::PredictorPromoted.pattern(bus.cluster());
            let requests = service.endpoint(pattern).await?;
            Ok::<_, BusError>((windows, proposals, jobs, first, service, requests))
        };
        let Some(begun) = shutdown.or(begin).await else { return Ok(Ended::Stopped) };
        let (mut windows, mut proposals, mut jobs, first, service, mut requests) = begun?;
        let mut actions = Vec::new();
        self.restore_jobs(&first, &mut actions).await;
        // Predictors then propose all their jobs, which replaces proposals lost while down.
        actions.push(Action::WriteChampion(self.registry.champion().clone()));
        self.act(&mut actions).await;
        let mut found =
            discover(&self.bus, Duration::from_millis(config.discovery_interval_wall_ms));
        let mut retry = tokio::time::interval(RETRY_EVERY);
        retry.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut ended = Ended::Stopped;
        loop {
            let (wake, _) =
                self.registry.next_wake().expect("the registry always has a next check");
            tokio::select! {
                biased;
                () = shutdown.wait() => break,
                window = windows.next() => match window {
                    Some(window) => self.on_window(&window, &mut actions),
                    None => break,
                },
                request = requests.next() => match request {
                    Some(request) => self.on_request(&request, &mut actions).await,
                    None => break,
                },
                change = jobs.next() => match change {
                    Some(change) => self.on_job(&change, &mut actions),
                    None => break,
                },
                () = clock::sleep_until(wake) => self.registry.wake(clock::now(), &mut actions),
                _ = retry.tick() => {
                    if let Err(other) = self.lease.renew(&self.predictors).await {
                        self.pending.clear();
                        ended = Ended::Replaced(other);
                        break;
                    }
                    self.repeat_pending().await;
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
            self.act(&mut actions).await;
        }
        self.repeat_pending().await;
        service.stop().await;
        self.bus.flush().await;
        Ok(ended)
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
            for key in self.surfaces.keys().await? {
                match JobId::new(&key) {
                    Ok(job) if live.contains(key.as_str()) => {
                        self.registry.handle(clock::now(), Event::SurfaceFound(job), actions);
                    }
                    _ => {
                        self.surfaces.delete(&key).await?;
                        gone += 1;
                    }
                }
            }
            Ok::<_, BusError>(gone)
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
            if let Err(error) = self.predictors.put(&key, &champion).await {
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
