//! The service around the machine: windows, job records and the nodes' kinds of card in, proposed
//! surfaces out.
//!
//! One task. A window is acknowledged once it is learned from; one that cannot be read is logged
//! and acknowledged, since it would be no better the next time. What cannot be written while the
//! bus is away waits, by job, and is written anew when it is back: a surface is whole, so only the
//! newest counts.
//!
//! What was learned outlives the process in the bucket `knowledge` (see [`store`]), so a restart
//! need not read the windows' stream again. Windows acknowledged in the last moments before a kill
//! may be lost to it; they cost accuracy only.
//!
//! Whether anybody acts by its surfaces is the registry's to say (the crate `wattle-registry`): it
//! proposes them all the same, and all of them anew whenever the registry writes down who serves.
//! This module decides nothing.

mod store;

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Deserialize;
use wattle_common::codec;
use wattle_common::id::JobId;
use wattle_common::messages::{JobRecord, JobWindow, PowerReport};
use wattle_common::subject::{
    Bucket, PREDICTOR_NAME_KEY, PREDICTOR_SERVICE, PredictorKey, Reporter, StreamName,
};
use wattle_common::{ClusterId, Machine};
use wattle_runtime::bus::{Bus, BusConfig, BusError, Change, PendingWrites, StoredDelivery};
use wattle_runtime::clock;
use wattle_runtime::shell::Shutdown;

use crate::config::PredictorConfig;
use crate::machine::{Action, Event, PredictorMachine};
use crate::predictor::Predictor;
use store::Store;

/// The service's whole configuration.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceConfig {
    /// The cluster it predicts for.
    pub cluster: ClusterId,
    /// Milliseconds of the wall's time between two surfaces of one job at the least. Where the
    /// system's time runs faster than the wall's, this bounds what is written.
    #[serde(deserialize_with = "wattle_common::config::non_zero")]
    pub write_interval_wall_ms: u64,
    /// The library's part.
    pub model: PredictorConfig,
    /// The bus.
    pub nats: BusConfig,
}

/// Pause between two tries of what could not be written, in wall time; also how often changed
/// classes are stored.
const TICK: Duration = Duration::from_secs(2);
/// Most jobs with a pending write.
const PENDING_MAX: usize = 100_000;

/// Runs the service until it is told to stop.
///
/// # Errors
/// Where the configuration cannot work, or the server refuses what the service cannot live without.
pub async fn run(config: ServiceConfig, shutdown: &Shutdown) -> Result<(), BusError> {
    match shutdown.or(open(&config)).await {
        Some(Ok(mut service)) => service.serve(shutdown).await,
        Some(Err(error)) => Err(error),
        None => Ok(()),
    }
}

/// Connects and takes up what was learned before.
async fn open(config: &ServiceConfig) -> Result<Service, BusError> {
    let name = &config.model.name;
    let bus = Bus::connect(&config.nats, config.cluster.clone(), "wattle-predictor").await?;
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
        store,
        machine: PredictorMachine::around(predictor),
        pending: PendingWrites::new(PENDING_MAX),
        durable: format!("predictor-{name}"),
    })
}

/// What still has to be written of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Write {
    Surface,
    Forgetting,
}

struct Service {
    bus: Bus,
    store: Store,
    machine: PredictorMachine,
    pending: PendingWrites<JobId, Write>,
    durable: String,
}

impl Service {
    async fn serve(&mut self, shutdown: &Shutdown) -> Result<(), BusError> {
        let begin = async {
            let name = self.machine.predictor().config().name.as_str();
            let words = format!("predicts speed and power: {name}");
            let word = (PREDICTOR_NAME_KEY, name);
            let registered = self.bus.register_one_of(PREDICTOR_SERVICE, &words, word).await;
            let service =
                registered.inspect_err(|error| tracing::warn!(%error, "not registered")).ok();
            let mut jobs = self.bus.bucket(Bucket::Jobs).await?.watch().await?;
            let first = jobs.initial().await;
            let windows = self.bus.consume(StreamName::Windows, &self.durable).await?;
            let contest = self.bus.bucket(Bucket::Predictors).await?.watch().await?;
            let mut nodes = self.bus.bucket(Bucket::Actual).await?.watch().await?;
            let there = nodes.initial().await;
            Ok::<_, BusError>((service, (jobs, first), windows, contest, (nodes, there)))
        };
        let Some(begun) = shutdown.or(begin).await else { return Ok(()) };
        let (service, (mut jobs, first), mut windows, mut contest, (mut nodes, there)) = begun?;
        self.catch_up(&first).await;
        let mut actions = Vec::new();
        // Before any job: what is said of it first is of every kind.
        there.iter().for_each(|change| self.on_node(change, &mut actions));
        for change in first {
            self.on_job(change, &mut actions);
            self.act(&mut actions).await;
        }
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let wake = self.machine.next_wake();
            tokio::select! {
                () = shutdown.wait() => break,
                () = wake_at(wake) => self.machine.wake(clock::now(), &mut actions),
                change = jobs.next() => match change {
                    Some(change) => self.on_job(change, &mut actions),
                    None => break,
                },
                delivery = windows.next() => match delivery {
                    Some(delivery) => self.on_window(&delivery, &mut actions).await,
                    None => break,
                },
                change = contest.next() => match change {
                    Some(change) if wants_all(&change) => {
                        self.machine.handle(clock::now(), Event::AllWanted, &mut actions);
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
        Ok(())
    }

    /// Takes away what is stored of jobs that ended while this service was not there.
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

    /// Which kinds of card a node has; all else that it reports is others' business.
    fn on_node(&mut self, change: &Change, actions: &mut Vec<Action>) {
        if !matches!(Reporter::parse(&change.key), Some((Reporter::Power, _))) {
            return;
        }
        let Some(value) = &change.value else { return };
        match codec::decode_json::<PowerReport>(value) {
            Ok(report) => {
                let kinds: BTreeSet<String> =
                    report.gpus.into_iter().map(|gpu| gpu.gpu_type).collect();
                for kind in kinds {
                    self.machine.handle(clock::now(), Event::KindSeen(kind), actions);
                }
            }
            Err(error) => tracing::debug!(key = change.key, %error, "node's report not read"),
        }
    }

    async fn on_window(&mut self, delivery: &StoredDelivery, actions: &mut Vec<Action>) {
        match codec::decode_json::<JobWindow>(&delivery.payload) {
            Ok(window) => {
                let event = Event::WindowClosed(Box::new(window));
                self.machine.handle(clock::now(), event, actions);
            }
            Err(error) => {
                let source = std::error::Error::source(&error).map(ToString::to_string);
                tracing::warn!(subject = delivery.subject, %error, source, "window not read");
            }
        }
        if let Err(error) = delivery.ack().await {
            tracing::debug!(%error, "not acknowledged: the window comes again and is known then");
        }
    }

    async fn act(&mut self, actions: &mut Vec<Action>) {
        for action in actions.drain(..) {
            match action {
                Action::PublishSurface(surface) => {
                    let job = surface.job.clone();
                    let knowledge = self.machine.predictor().knowledge_of(&job);
                    let written = self.store.propose(&surface, knowledge).await;
                    self.pending.record(job, Write::Surface, written);
                }
                Action::ForgetJob(job) => {
                    let written = self.store.remove(&job).await;
                    self.pending.record(job, Write::Forgetting, written);
                }
                Action::ReportUnusable { job, why } => {
                    tracing::warn!(%job, %why, "window not usable");
                }
            }
        }
    }

    /// Writes what waits, and the classes that changed.
    async fn on_tick(&mut self) {
        for (job, write) in self.pending.take() {
            let written = match (write, self.machine.surface(clock::now(), &job)) {
                (Write::Surface, Some(surface)) => {
                    let knowledge = self.machine.predictor().knowledge_of(&job);
                    self.store.propose(&surface, knowledge).await
                }
                (Write::Surface, None) => Ok(()),
                (Write::Forgetting, _) => self.store.remove(&job).await,
            };
            self.pending.record(job, write, written);
        }
        let changed = self.machine.take_changed_classes();
        if let Err(error) = self.store.put_classes(changed).await {
            tracing::warn!(%error, "what was learned of a class is not stored; its next job tries again");
        }
        let scores = self.machine.take_changed_scores();
        if let Err(error) = self.store.put_scores(scores).await {
            tracing::warn!(%error, "scores of predictions are not stored; the next ones try again");
        }
    }
}

fn read_record(change: &Change) -> Option<JobRecord> {
    let value = change.value.as_ref()?;
    match codec::decode_json::<JobRecord>(value) {
        Ok(record) => Some(record),
        Err(error) => {
            tracing::warn!(key = change.key, %error, "job record not read");
            None
        }
    }
}

/// Whether the registry has written down who serves: every predictor then proposes all its jobs.
fn wants_all(change: &Change) -> bool {
    change.value.is_some() && PredictorKey::parse(&change.key) == Some(PredictorKey::Champion)
}

async fn wake_at(wake: Option<(wattle_common::Timestamp, &'static str)>) {
    match wake {
        Some((at, _)) => clock::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
