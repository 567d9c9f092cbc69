//! Connects the [`PredictorMachine`] to the bus: windows, job records and GPU types in, proposed
//! surfaces out.
//!
//! One task. A window is acknowledged after it is learned; one that cannot be read is logged and
//! acknowledged. While the server is unreachable writes are pending, by job: a surface is complete,
//! so only the newest is written.
//!
//! Jobs, classes and scores are stored in the bucket `knowledge` (see [`store`]), so that a restart
//! does not read the stream of windows again. Windows acknowledged immediately before a crash may be lost,
//! which costs only accuracy.
//!
//! Of two predictors with one name, the holder of the lease is active. Another one may write a job's entry
//! once more before it notices that it lost the lease, which costs only accuracy.
//!
//! The registry decides whether the surfaces are in force (the crate `wattle-registry`). Whenever it
//! writes the champion, all surfaces are proposed again.

pub mod metrics;
mod store;

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Deserialize;
use wattle_common::bounds::{check_power_report, check_record};
use wattle_common::codec;
use wattle_common::config::{service_lease, service_lease_default};
use wattle_common::id::JobId;
use wattle_common::messages::{JobRecord, JobWindow, PowerReport};
use wattle_common::subject::{
    Bucket, LeaseKey, PREDICTOR_NAME_KEY, PREDICTOR_SERVICE, PredictorKey, Reporter, StreamName,
};
use wattle_common::{ClusterId, Machine};
use wattle_runtime::bus::{
    self, Bus, BusConfig, BusError, Candidate, Change, Leadership, LeaseLost, PendingWrites,
    StoredDelivery,
};
use wattle_runtime::clock;
use wattle_runtime::metrics::Metrics;
use wattle_runtime::shell::{Shutdown, chain};

use crate::config::PredictorConfig;
use crate::machine::{Action, Event, PredictorMachine};
use crate::predictor::Predictor;
use metrics::PredictorMetrics;
use store::Store;

/// Configuration of the service.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceConfig {
    /// The cluster.
    pub cluster: ClusterId,
    /// Least wall time between two surfaces of one job, milliseconds. It limits the write rate where
    /// system time runs faster than wall time.
    #[serde(deserialize_with = "wattle_common::config::non_zero")]
    pub write_interval_wall_ms: u64,
    /// Length of the lease of the active predictor of this name, wall time, milliseconds.
    #[serde(default = "service_lease_default", deserialize_with = "service_lease")]
    pub service_lease_wall_ms: u64,
    /// Configuration of the library.
    pub model: PredictorConfig,
    /// The metrics endpoint.
    #[serde(default)]
    pub metrics: wattle_common::config::MetricsConfig,
    /// The bus.
    pub nats: BusConfig,
}

/// Interval at which pending writes are repeated and changed classes are stored, wall time.
const TICK: Duration = Duration::from_secs(2);
/// Most jobs with a pending write.
const PENDING_MAX: usize = 100_000;

/// Runs the service until shutdown.
///
/// # Errors
/// Where the configuration is invalid or the server refuses a required operation.
pub async fn run(config: ServiceConfig, shutdown: &Shutdown) -> Result<(), BusError> {
    let metrics = Metrics::start(&config.metrics, "predictor", &config.cluster, None);
    let metrics = PredictorMetrics::new(&metrics, &config.model.name);
    let connect = async {
        let bus = Bus::connect(&config.nats, config.cluster.clone(), "wattle-predictor").await?;
        let key = LeaseKey::Predictor(config.model.name.clone());
        let length = Duration::from_millis(config.service_lease_wall_ms);
        let candidate = Candidate::new(&bus, key, length).await?;
        Ok::<_, BusError>((bus, candidate))
    };
    let Some(connected) = shutdown.or(connect).await else { return Ok(()) };
    let (bus, candidate) = connected?;
    metrics.follow_bus(&bus);
    loop {
        let Some(lease) = shutdown.or(stand_by(&config, &bus, &candidate)).await else {
            return Ok(());
        };
        metrics.is_active(true);
        let ended = match shutdown.or(open(&config, &bus, &lease, &metrics)).await {
            Some(Ok(mut service)) => service.serve(shutdown).await,
            Some(Err(error)) => Err(error),
            None => Ok(None),
        };
        metrics.is_active(false);
        if let Ok(Some(lost)) = ended {
            tracing::error!(
                predictor = %config.model.name,
                other = lost.holder.instance,
                "another predictor of this name is active; this one is on standby"
            );
            continue;
        }
        lease.release().await;
        return ended.map(drop);
    }
}

/// Waits until this predictor holds the lease of its name.
async fn stand_by(config: &ServiceConfig, bus: &Bus, candidate: &Candidate) -> Leadership {
    let _registered = register(bus, config.model.name.as_str(), "standby").await;
    candidate
        .acquire(|lease| {
            tracing::warn!(
                predictor = %config.model.name,
                other = lease.holder.instance,
                "another predictor of this name is active; this one is on standby"
            );
        })
        .await
}

async fn register(bus: &Bus, name: &str, state: &str) -> Option<bus::Service> {
    let description = format!("predicts speed and power: {name}");
    let words = [(PREDICTOR_NAME_KEY, name), ("state", state)];
    let registered = bus.register(PREDICTOR_SERVICE, &description, &words).await;
    registered.inspect_err(|error| tracing::warn!(%error, "service not registered")).ok()
}

/// Restores the stored state.
async fn open(
    config: &ServiceConfig,
    bus: &Bus,
    lease: &Leadership,
    metrics: &PredictorMetrics,
) -> Result<Service, BusError> {
    let (name, bus) = (&config.model.name, bus.clone());
    let store = Store::open(&bus, name).await?;
    let mut model = config.model.clone();
    let wall_ms = u64::from(clock::scale().rate).saturating_mul(config.write_interval_wall_ms);
    model.publish_interval_ms = model.publish_interval_ms.max(wall_ms);
    let mut predictor = Predictor::new(model);
    let restored = store.restore(&mut predictor).await?;
    tracing::info!(
        cluster = %config.cluster,
        predictor = %name,
        jobs = restored.jobs,
        classes = restored.classes,
        unreadable = restored.unreadable,
        "predictor started"
    );
    Ok(Service {
        bus,
        lease: lease.clone(),
        store,
        machine: PredictorMachine::with(predictor),
        pending: PendingWrites::new(PENDING_MAX),
        durable: format!("predictor-{name}"),
        metrics: metrics.clone(),
    })
}

/// A pending write of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Write {
    Surface,
    Removal,
}

struct Service {
    bus: Bus,
    lease: Leadership,
    store: Store,
    machine: PredictorMachine,
    pending: PendingWrites<JobId, Write>,
    durable: String,
    metrics: PredictorMetrics,
}

impl Service {
    /// Serves until shutdown, or until another predictor holds the lease.
    async fn serve(&mut self, shutdown: &Shutdown) -> Result<Option<LeaseLost>, BusError> {
        let begin = async {
            let name = self.machine.predictor().config().name.as_str();
            let service = register(&self.bus, name, "active").await;
            let mut jobs = self.bus.bucket(Bucket::Jobs).await?.watch().await?;
            let first = jobs.initial().await;
            let windows = self.bus.consume(StreamName::Windows, &self.durable).await?;
            let champion = self.bus.bucket(Bucket::Predictors).await?.watch().await?;
            let mut nodes = self.bus.bucket(Bucket::Actual).await?.watch().await?;
            let reports = nodes.initial().await;
            Ok::<_, BusError>((service, (jobs, first), windows, champion, (nodes, reports)))
        };
        let Some(begun) = shutdown.or(begin).await else { return Ok(None) };
        let (service, (mut jobs, first), mut windows, mut champion, (mut nodes, reports)) = begun?;
        self.catch_up(&first).await;
        let mut actions = Vec::new();
        // Before any job, so that its first surface covers every GPU type.
        reports.iter().for_each(|change| self.on_node(change, &mut actions));
        for change in first {
            self.on_job(change, &mut actions);
            self.act(&mut actions).await;
        }
        let lease = self.lease.clone();
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let wake = self.machine.next_wake();
            tokio::select! {
                () = shutdown.wait() => break,
                lost = lease.lost() => return Ok(Some(lost)),
                () = wake_at(wake) => self.machine.wake(clock::now(), &mut actions),
                change = jobs.next() => match change {
                    Some(change) => self.on_job(change, &mut actions),
                    None => break,
                },
                delivery = windows.next() => match delivery {
                    // Not acknowledged: it is delivered again, to the active predictor.
                    Some(_) if !lease.is_valid() => {}
                    Some(delivery) => self.on_window(&delivery, &mut actions).await,
                    None => break,
                },
                change = champion.next() => match change {
                    Some(change) if requests_all(&change) => {
                        self.machine.handle(clock::now(), Event::AllRequested, &mut actions);
                    }
                    Some(_) => {}
                    None => break,
                },
                change = nodes.next() => match change {
                    Some(change) => self.on_node(&change, &mut actions),
                    None => break,
                },
                _ = tick.tick() => self.on_tick().await,
            }
            self.act(&mut actions).await;
        }
        self.on_tick().await;
        if let Some(service) = service {
            service.stop().await;
        }
        self.bus.flush().await;
        Ok(None)
    }

    /// Deletes the stored state of jobs that ended while the service was down.
    async fn catch_up(&mut self, jobs: &[Change]) {
        let live: BTreeSet<&str> = jobs
            .iter()
            .filter(|change| read_record(change).is_some_and(|r| !r.phase.is_final()))
            .map(|change| change.key.as_str())
            .collect();
        let mut gone = Vec::new();
        for job in self.machine.predictor().jobs() {
            if !live.contains(job.as_str()) {
                gone.push(job.clone());
            }
        }
        let mut actions = Vec::new();
        for job in gone {
            self.machine.handle(clock::now(), Event::JobEnded(job), &mut actions);
        }
        self.act(&mut actions).await;
    }

    fn on_job(&mut self, change: Change, actions: &mut Vec<Action>) {
        let event = match read_record(&change) {
            Some(record) if record.phase.is_final() => Event::JobEnded(record.spec.job),
            Some(record) => Event::JobDescribed {
                job: record.spec.job,
                workload: record.spec.workload,
                gpus: record.spec.gpus,
                gpu_type: record.spec.gpu_type,
            },
            None if change.value.is_none() => match JobId::new(&change.key) {
                Ok(job) => Event::JobEnded(job),
                Err(_) => return,
            },
            None => return,
        };
        self.machine.handle(clock::now(), event, actions);
    }

    /// Reads the GPU types of a node.
    fn on_node(&mut self, change: &Change, actions: &mut Vec<Action>) {
        if !matches!(Reporter::parse(&change.key), Some((Reporter::Power, _))) {
            return;
        }
        let Some(value) = &change.value else { return };
        match codec::decode_json::<PowerReport>(value) {
            Ok(report) => {
                if let Err(error) = check_power_report(&report, clock::now()) {
                    return tracing::error!(key = change.key, %error, "power report ignored");
                }
                let gpu_types: BTreeSet<String> =
                    report.gpus.into_iter().map(|gpu| gpu.gpu_type).collect();
                for gpu_type in gpu_types {
                    self.machine.handle(clock::now(), Event::GpuTypeFound(gpu_type), actions);
                }
            }
            Err(error) => tracing::debug!(key = change.key, %error, "power report not readable"),
        }
    }

    async fn on_window(&mut self, delivery: &StoredDelivery, actions: &mut Vec<Action>) {
        match codec::decode_json::<JobWindow>(&delivery.payload) {
            Ok(window) => {
                let event = Event::WindowClosed(Box::new(window));
                self.machine.handle(clock::now(), event, actions);
                self.metrics.window(actions);
            }
            Err(error) => {
                self.metrics.undecodable();
                let (subject, sequence) = (&delivery.subject, delivery.sequence);
                tracing::error!(subject, sequence, error = chain(&error), "window ignored");
            }
        }
        if let Err(error) = delivery.ack().await {
            tracing::debug!(%error, "window not acknowledged; it is delivered again");
        }
    }

    async fn act(&mut self, actions: &mut Vec<Action>) {
        for action in actions.drain(..) {
            match action {
                // Written when the lease is renewed.
                Action::PublishSurface(surface) if !self.lease.is_valid() => {
                    self.pending.insert(surface.job.clone(), Write::Surface);
                }
                Action::ForgetJob(job) if !self.lease.is_valid() => {
                    self.pending.insert(job, Write::Removal);
                }
                Action::PublishSurface(surface) => {
                    let job = surface.job.clone();
                    let knowledge = self.machine.predictor().knowledge_of(&job);
                    let written = self.store.propose(&surface, knowledge).await;
                    self.metrics.proposed();
                    self.pending.record(job, Write::Surface, written);
                }
                Action::ForgetJob(job) => {
                    let written = self.store.remove(&job).await;
                    self.pending.record(job, Write::Removal, written);
                }
                Action::ReportOutOfBounds { job, error } => {
                    tracing::error!(%job, %error, "window ignored");
                }
                Action::ReportUnusable { job, error } => {
                    tracing::warn!(%job, %error, "window not usable");
                }
            }
        }
    }

    /// Repeats pending writes and stores changed classes.
    async fn on_tick(&mut self) {
        self.metrics.has_jobs(self.machine.predictor().job_count());
        if !self.lease.is_valid() {
            return;
        }
        for (job, write) in self.pending.take() {
            let written = match (write, self.machine.surface(clock::now(), &job)) {
                (Write::Surface, Some(surface)) => {
                    let knowledge = self.machine.predictor().knowledge_of(&job);
                    self.store.propose(&surface, knowledge).await
                }
                (Write::Surface, None) => Ok(()),
                (Write::Removal, _) => self.store.remove(&job).await,
            };
            self.pending.record(job, write, written);
        }
        let changed = self.machine.take_changed_classes();
        if let Err(error) = self.store.put_classes(changed).await {
            tracing::warn!(%error, "class history not stored; it is stored again after its next change");
        }
        let scores = self.machine.take_changed_scores();
        if let Err(error) = self.store.put_scores(scores).await {
            tracing::warn!(%error, "prediction scores not stored; they are stored again after their next change");
        }
    }
}

fn read_record(change: &Change) -> Option<JobRecord> {
    let value = change.value.as_ref()?;
    match codec::decode_json::<JobRecord>(value) {
        Ok(record) => match check_record(&record, clock::now()) {
            Ok(()) => Some(record),
            Err(error) => {
                tracing::error!(key = change.key, %error, "job record ignored");
                None
            }
        },
        Err(error) => {
            tracing::warn!(key = change.key, %error, "job record not read");
            None
        }
    }
}

/// Whether the registry wrote the champion, which requests all surfaces.
fn requests_all(change: &Change) -> bool {
    change.value.is_some() && PredictorKey::parse(&change.key) == Some(PredictorKey::Champion)
}

async fn wake_at(wake: Option<(wattle_common::Timestamp, &'static str)>) {
    match wake {
        Some((at, _)) => clock::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
