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

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Deserialize;
use tokio::time::{Interval, MissedTickBehavior};
use wattle_common::bounds::check_power_report;
use wattle_common::codec;
use wattle_common::config::{service_lease, service_lease_default};
use wattle_common::id::JobId;
use wattle_common::messages::{JobWindow, PowerReport};
use wattle_common::subject::{
    Bucket, LeaseKey, PREDICTOR_NAME_KEY, PREDICTOR_SERVICE, PredictorKey, Reporter, StreamName,
};
use wattle_common::{AdmissionId, ClusterId, Machine};
use wattle_runtime::bus::{
    self, BusConfig, BusError, Change, Consumer, JobChange, Leadership, PendingWrites,
    StoredDelivery, Watch,
};
use wattle_runtime::clock;
use wattle_runtime::service::{self, Identity, LeaseMode, Phase, Service, Shell};
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
    let name = &config.model.name;
    let about = format!("predicts speed and power: {name}");
    let identity = Identity {
        entries: vec![(PREDICTOR_NAME_KEY, name.to_string())],
        ..Identity::of_cluster(PREDICTOR_SERVICE, &about, &config.cluster)
    };
    let length = Duration::from_millis(config.service_lease_wall_ms);
    let mode = LeaseMode::Checked { key: LeaseKey::Predictor(name.clone()), length };
    let shell = Shell::start(identity, &config.metrics, &config.nats);
    let metrics = PredictorMetrics::new(shell.metrics(), name);
    shell.run::<PredictorService>(mode, (config, metrics), shutdown).await
}

/// Why an active phase ended.
type End = service::End<BusError>;

/// A pending write of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Write {
    Surface,
    Removal,
}

/// What the sources deliver.
enum Input {
    Job(Change),
    Window(Box<StoredDelivery>),
    /// A key of the registry.
    Registry(Change),
    Node(Change),
    Tick,
}

/// The active predictor.
struct PredictorService {
    lease: Leadership,
    store: Store,
    machine: PredictorMachine,
    pending: PendingWrites<JobId, Write>,
    metrics: PredictorMetrics,
    jobs: Watch,
    windows: Consumer,
    registry: Watch,
    nodes: Watch,
    tick: Interval,
    _registered: bus::Service,
}

impl Service for PredictorService {
    type Machine = PredictorMachine;
    type Input = Input;
    type Setup = (ServiceConfig, PredictorMetrics);
    type Failure = BusError;

    /// Restores the stored state, and adds the jobs of the present.
    async fn open((config, metrics): &Self::Setup, phase: Phase<'_>) -> Result<Self, End> {
        let (name, bus) = (&config.model.name, phase.bus);
        let store = Store::open(bus, name).await?;
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
        let registered = phase.register().await?;
        let mut jobs = bus.bucket(Bucket::Jobs).await?.watch().await?;
        let first = jobs.initial().await;
        let windows = bus.consume(StreamName::Windows, &format!("predictor-{name}")).await?;
        let registry = bus.bucket(Bucket::Predictors).await?.watch().await?;
        let mut nodes = bus.bucket(Bucket::Actual).await?.watch().await?;
        let reports = nodes.initial().await;
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut service = Self {
            lease: phase.lease.clone(),
            store,
            machine: PredictorMachine::with(predictor),
            pending: PendingWrites::new(PENDING_MAX),
            metrics: metrics.clone(),
            jobs,
            windows,
            registry,
            nodes,
            tick,
            _registered: registered,
        };
        let mut actions = Vec::new();
        service.end_jobs_except(&first, &mut actions);
        service.act(&mut actions).await?;
        // Before any job, so that its first surface covers every GPU type.
        reports.iter().for_each(|change| service.on_node(change, &mut actions));
        for change in first {
            service.on_job(&change, &mut actions);
            service.act(&mut actions).await?;
        }
        Ok(service)
    }

    fn set_active((_, metrics): &Self::Setup, active: bool) {
        metrics.is_active(active);
    }

    fn machine(&mut self) -> &mut PredictorMachine {
        &mut self.machine
    }

    async fn next(&mut self) -> Option<Input> {
        tokio::select! {
            change = self.jobs.next() => change.map(Input::Job),
            delivery = self.windows.next() => delivery.map(|delivery| Input::Window(Box::new(delivery))),
            change = self.registry.next() => change.map(Input::Registry),
            change = self.nodes.next() => change.map(Input::Node),
            _ = self.tick.tick() => Some(Input::Tick),
        }
    }

    async fn handle(&mut self, input: Input, actions: &mut Vec<Action>) -> Result<(), End> {
        match input {
            Input::Job(change) => self.on_job(&change, actions),
            Input::Window(delivery) => self.on_window(&delivery, actions).await,
            Input::Registry(change) if requests_all(&change) => {
                self.machine.handle(clock::now(), Event::AllRequested, actions);
            }
            Input::Registry(_) => {}
            Input::Node(change) => self.on_node(&change, actions),
            Input::Tick => self.on_tick().await,
        }
        Ok(())
    }

    async fn act(&mut self, actions: &mut Vec<Action>) -> Result<(), End> {
        for action in actions.drain(..) {
            self.carry_out(action).await;
        }
        Ok(())
    }

    async fn close(&mut self) -> Result<(), End> {
        self.on_tick().await;
        Ok(())
    }
}

impl PredictorService {
    /// Ends the restored jobs that ended while the service was down, which deletes their stored state.
    fn end_jobs_except(&mut self, jobs: &[Change], actions: &mut Vec<Action>) {
        let live: BTreeMap<JobId, Option<AdmissionId>> = jobs
            .iter()
            .filter_map(|change| match change.job()? {
                JobChange::Active(record) => Some((record.spec.job, record.admission)),
                JobChange::Ended(..) => None,
            })
            .collect();
        let predictor = self.machine.predictor();
        let is_gone = |job: &&JobId| {
            let known = predictor.knowledge_of(job);
            // What an earlier version stored names no submission.
            known.zip(live.get(*job)).is_none_or(|(known, live)| {
                let of = known.admission.as_ref();
                !AdmissionId::has_run(live.as_ref(), of, known.updated_at_us)
            })
        };
        let gone: Vec<JobId> = predictor.jobs().filter(is_gone).cloned().collect();
        for job in gone {
            self.machine.handle(clock::now(), Event::JobEnded(job, None), actions);
        }
    }

    fn on_job(&mut self, change: &Change, actions: &mut Vec<Action>) {
        let event = match change.job() {
            Some(JobChange::Active(record)) => Event::JobDescribed {
                job: record.spec.job,
                admission: record.admission,
                workload: record.spec.workload,
                gpus: record.spec.gpus,
                gpu_type: record.spec.gpu_type,
            },
            Some(JobChange::Ended(job, admission)) => Event::JobEnded(job, admission),
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

    async fn carry_out(&mut self, action: Action) {
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

/// Whether the registry wrote the champion, which requests all surfaces.
fn requests_all(change: &Change) -> bool {
    change.value.is_some() && PredictorKey::parse(&change.key) == Some(PredictorKey::Champion)
}
