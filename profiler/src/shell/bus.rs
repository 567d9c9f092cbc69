//! Publishes the profiler's messages and receives reports and records.
//!
//! The last summary also answers requests. Of two profilers with one node's name, the holder of the lease
//! is active; the other one measures and sends nothing.
//! Core messages are dropped while the bus is away. Windows wait in a bounded queue: each is stored,
//! in order, whereas `PendingWrites` of the runtime keeps only the newest write of a key. A ledger
//! entry is sent once and its result reported; the machine persists it and retries. Entries of the last
//! hour that the server has acknowledged and lost are stored again. Received are the launcher's and the
//! power agent's reports of this node, and the placer's records.

use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use wattle_common::bounds::{OutOfBounds, check_launch_report, check_power_report, check_record};
use wattle_common::codec;
use wattle_common::lease::NODE_LEASE;
use wattle_common::messages::{JobProgressed, JobWindow, LedgerEntry, NodeSummary, TelemetryBatch};
use wattle_common::subject::{Bucket, JobTopic, LeaseKey, NodeTopic, Reporter, Subject};
use wattle_common::{ClusterId, JobId, NodeId};
use wattle_runtime::bus::{Appender, Bus, BusError, Candidate, Change, Leadership, Service, Watch};
use wattle_runtime::clock;

use super::ServiceConfig;
use super::metrics::{ProfilerMetrics, WindowResult};
use crate::machine::Event;

/// Capacity for core messages: one second at the highest rate.
const CORE_MAX: usize = 64;
/// Capacity for windows: one hour of a node with four busy jobs.
const WINDOWS_MAX: usize = 256;
/// Stored ledger entries that are kept in memory, in case the server loses them: an hour at one a minute.
const LEDGER_KEPT: usize = 60;
/// Pause before a failed operation is retried: wall time.
const RETRY: Duration = Duration::from_secs(1);

/// A core message.
pub(super) enum CoreMessage {
    Batch(TelemetryBatch),
    Summary(NodeSummary),
    Progress(JobProgressed),
}

/// Sends messages to the bus task.
pub(super) struct Outbox {
    core: mpsc::Sender<CoreMessage>,
    windows: mpsc::Sender<Box<JobWindow>>,
    ledger: mpsc::Sender<LedgerEntry>,
    /// The last summary, for requests.
    summary: watch::Sender<Option<NodeSummary>>,
    metrics: ProfilerMetrics,
    task: JoinHandle<()>,
}

impl Outbox {
    pub(super) fn publish_core(&self, core: CoreMessage) {
        if let CoreMessage::Summary(summary) = &core {
            self.summary.send_replace(Some(summary.clone()));
        }
        // A full queue drops it.
        if self.core.try_send(core).is_err() {
            self.metrics.message_dropped();
        }
    }

    pub(super) fn store_window(&self, window: Box<JobWindow>) {
        if let Err(error) = self.windows.try_send(window) {
            self.metrics.window(WindowResult::Dropped);
            tracing::warn!(%error, "window lost: the bus was away for too long");
        }
    }

    pub(super) fn store_ledger(&self, entry: LedgerEntry) {
        // The machine sends an entry only after the result of the last, so there is room.
        if let Err(error) = self.ledger.try_send(entry) {
            tracing::error!(%error, "a ledger entry is pending already");
        }
    }

    /// Returns when everything that can be stored is stored.
    pub(super) async fn close(self) {
        let Self { core, windows, ledger, summary, task, metrics: _ } = self;
        drop((core, windows, ledger, summary));
        let _ = task.await;
    }
}

struct Names {
    cluster: ClusterId,
    node: NodeId,
}

impl Names {
    fn of_node(&self, topic: NodeTopic) -> Subject {
        Subject::of_node(self.cluster.clone(), topic, self.node.clone())
    }

    fn of_job(&self, topic: JobTopic, job: &JobId) -> Subject {
        Subject::of_job(self.cluster.clone(), topic, self.node.clone(), job.clone())
    }
}

pub(super) fn start(
    config: &ServiceConfig,
    events: mpsc::Sender<Event>,
    metrics: ProfilerMetrics,
) -> Outbox {
    let (core, news_out) = mpsc::channel(CORE_MAX);
    let (windows, windows_out) = mpsc::channel(WINDOWS_MAX);
    let (ledger, ledger_out) = mpsc::channel(1);
    let (summary, last_summary) = watch::channel(None);
    let (config, counts) = (config.clone(), metrics.clone());
    let task = tokio::spawn(async move {
        let names = Names { cluster: config.cluster.clone(), node: config.node.clone() };
        let (sender, bus) = watch::channel(None);
        let sending = async {
            tokio::join!(
                publish_core(&names, news_out, bus.clone(), &counts),
                store_windows(&names, windows_out, bus.clone(), &counts),
                store_ledger(&names, ledger_out, bus.clone(), &events, &counts),
            )
        };
        tokio::select! {
            _ = sending => {}
            () = serve(&config, sender, &events, last_summary, &counts) => {}
        }
        let active = bus.borrow().clone();
        if let Some(Active { bus, lease }) = active {
            lease.release().await;
            bus.flush().await;
        }
    });
    Outbox { core, windows, ledger, summary, metrics, task }
}

/// The connection of the active profiler of the node.
#[derive(Clone)]
struct Active {
    bus: Bus,
    lease: Leadership,
}

/// Connects, registers and receives; never returns.
async fn serve(
    config: &ServiceConfig,
    sender: watch::Sender<Option<Active>>,
    events: &mpsc::Sender<Event>,
    last_summary: watch::Receiver<Option<NodeSummary>>,
    metrics: &ProfilerMetrics,
) {
    let (bus, actual, jobs, candidate) = loop {
        match open(config).await {
            Ok(open) => break open,
            Err(error) => {
                tracing::error!(%error, source = source(&error), "no bus; retrying");
                tokio::time::sleep(RETRY).await;
            }
        }
    };
    metrics.follow_bus(&bus);
    tokio::join!(
        compete(config, &bus, &candidate, sender, last_summary),
        follow(actual, events, |change| reported(&config.node, change)),
        follow(jobs, events, recorded),
    );
}

/// Sends and answers while this process holds the node's lease; never returns.
async fn compete(
    config: &ServiceConfig,
    bus: &Bus,
    candidate: &Candidate,
    sender: watch::Sender<Option<Active>>,
    last_summary: watch::Receiver<Option<NodeSummary>>,
) {
    loop {
        let standby = register(bus, config, "standby").await;
        let lease = candidate
            .acquire(|lease| {
                tracing::error!(
                    other = lease.holder.instance,
                    "another profiler has this node's name: this one is on standby and sends nothing; \
                     stop one of the two, or configure another `node`"
                );
            })
            .await;
        drop(standby);
        sender.send_replace(Some(Active { bus: bus.clone(), lease: lease.clone() }));
        let service = register(bus, config, "active").await;
        tokio::select! {
            () = answer_summaries(config, service, last_summary.clone()) => {}
            lost = lease.lost() => {
                sender.send_replace(None);
                tracing::error!(other = lost.holder.instance, "another profiler of this node is active");
            }
        }
    }
}

async fn register(bus: &Bus, config: &ServiceConfig, state: &str) -> Option<Service> {
    let words = [("node", config.node.as_str()), ("state", state)];
    let about = "watches GPUs and jobs";
    let service = bus.register("wattle-profiler", about, &words).await;
    service.inspect_err(|error| tracing::warn!(%error, "not registered")).ok()
}

/// Answers requests for the last summary.
async fn answer_summaries(
    config: &ServiceConfig,
    service: Option<Service>,
    last: watch::Receiver<Option<NodeSummary>>,
) {
    let Some(service) = service else { return std::future::pending().await };
    let names = Names { cluster: config.cluster.clone(), node: config.node.clone() };
    let mut requests = match service.endpoint(names.of_node(NodeTopic::SummaryRequested)).await {
        Ok(requests) => requests,
        Err(error) => {
            tracing::warn!(%error, "requests for summaries are not answered");
            // The service stays registered.
            return std::future::pending().await;
        }
    };
    while let Some(request) = requests.next().await {
        let summary = last.borrow().clone();
        let answered = match summary {
            Some(summary) => request.respond(&summary).await,
            None => request.refuse(503, "no summary yet; repeat the request").await,
        };
        if let Err(error) = answered {
            tracing::debug!(%error, "summary not sent");
        }
    }
    // The requests end only with the bus client.
    std::future::pending::<()>().await;
}

async fn open(config: &ServiceConfig) -> Result<(Bus, Watch, Watch, Candidate), BusError> {
    let name = format!("wattle-profiler-{}", config.node);
    let bus = Bus::connect(&config.nats, config.cluster.clone(), &name).await?;
    let reports = [Reporter::Launcher, Reporter::Power].map(|reporter| reporter.key(&config.node));
    let actual = bus.bucket(Bucket::Actual).await?.follow(reports.into()).await?;
    let jobs = bus.bucket(Bucket::Jobs).await?.watch().await?;
    let candidate =
        Candidate::new(&bus, LeaseKey::Profiler(config.node.clone()), NODE_LEASE).await?;
    Ok((bus, actual, jobs, candidate))
}

async fn follow(
    mut watch: Watch,
    events: &mpsc::Sender<Event>,
    read: impl Fn(&Change) -> Result<Option<Event>, Unusable>,
) {
    while let Some(change) = watch.next().await {
        match read(&change) {
            Ok(Some(event)) => {
                // Waits for room; the watch holds later changes.
                if events.send(event).await.is_err() {
                    break;
                }
            }
            Ok(None) => {}
            Err(error) => {
                tracing::error!(key = change.key, %error, source = source(&error), "value ignored");
            }
        }
    }
    // The watch ends only with the bus client.
    std::future::pending::<()>().await;
}

/// Why a value is ignored.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    /// It cannot be decoded.
    #[error(transparent)]
    Undecodable(#[from] codec::CodecError),
    /// A number is outside its limits.
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
}

fn reported(own: &NodeId, change: &Change) -> Result<Option<Event>, Unusable> {
    let Some(value) = &change.value else { return Ok(None) };
    Ok(match Reporter::parse(&change.key) {
        Some((Reporter::Launcher, node)) if node == *own => {
            let report = codec::decode_json(value)?;
            check_launch_report(&report, clock::now())?;
            Some(Event::LaunchReported(report))
        }
        Some((Reporter::Power, node)) if node == *own => {
            let report = codec::decode_json(value)?;
            check_power_report(&report, clock::now())?;
            Some(Event::PowerReported(report))
        }
        Some(_) | None => None,
    })
}

fn recorded(change: &Change) -> Result<Option<Event>, Unusable> {
    Ok(match &change.value {
        Some(value) => {
            let record = codec::decode_json(value)?;
            check_record(&record, clock::now())?;
            Some(Event::JobRecorded(Box::new(record)))
        }
        None => JobId::new(&change.key).ok().map(Event::RecordDeleted),
    })
}

async fn publish_core(
    names: &Names,
    mut core: mpsc::Receiver<CoreMessage>,
    active: watch::Receiver<Option<Active>>,
    metrics: &ProfilerMetrics,
) {
    while let Some(core) = core.recv().await {
        let Some(Active { bus, .. }) = active.borrow().clone() else {
            metrics.message_dropped();
            continue;
        };
        let published = match &core {
            CoreMessage::Batch(batch) => {
                let subject = names.of_node(NodeTopic::GpuSampled);
                bus.publish_bytes(&subject, codec::encode_telemetry(batch)).await
            }
            CoreMessage::Summary(summary) => {
                bus.publish(&names.of_node(NodeTopic::NodeSummarized), summary).await
            }
            CoreMessage::Progress(progress) => {
                let subject = names.of_job(JobTopic::JobProgressed, &progress.job);
                bus.publish(&subject, progress).await
            }
        };
        // Not a warning: it occurs twice per second while the bus is away, which the bus client
        // logs.
        if let Err(error) = published {
            metrics.message_dropped();
            tracing::debug!(%error, "not published");
        }
    }
}

async fn store_windows(
    names: &Names,
    mut windows: mpsc::Receiver<Box<JobWindow>>,
    mut active: watch::Receiver<Option<Active>>,
    metrics: &ProfilerMetrics,
) {
    while let Some(window) = windows.recv().await {
        let subject = names.of_job(JobTopic::WindowClosed, &window.job);
        let id = format!("{}.{}.{}", window.job, names.node, window.from_us.as_us());
        loop {
            let Some(bus) = ready(&mut active).await else { return };
            match bus.store(&subject, &id, &*window).await {
                Ok(()) => {
                    metrics.window(WindowResult::Stored);
                    break;
                }
                Err(error) if error.is_transient() => tokio::time::sleep(RETRY).await,
                Err(error) => {
                    metrics.window(WindowResult::Dropped);
                    tracing::warn!(job = %window.job, %error, source = source(&error), "window not stored");
                    break;
                }
            }
        }
    }
}

async fn store_ledger(
    names: &Names,
    mut entries: mpsc::Receiver<LedgerEntry>,
    mut active: watch::Receiver<Option<Active>>,
    events: &mpsc::Sender<Event>,
    metrics: &ProfilerMetrics,
) {
    let subject = names.of_node(NodeTopic::EnergyMetered);
    let mut ledger = Appender::new(LEDGER_KEPT);
    while let Some(entry) = entries.recv().await {
        let Some(bus) = ready(&mut active).await else { return };
        let (from, joules) = (entry.from_us, (entry.gpus() + entry.energy_mj_host).as_j());
        let id = format!("{}.{}", names.node, from.as_us());
        let stored = ledger.append(&bus, &subject, &id, entry).await;
        if let Err(error) = &stored {
            tracing::warn!(%error, source = source(error), "ledger entry not stored; retrying");
        }
        metrics.ledger_ended(joules, stored.is_ok());
        let result = Event::LedgerStored { from, stored: stored.is_ok() };
        if events.send(result).await.is_err() {
            return;
        }
    }
}

async fn ready(active: &mut watch::Receiver<Option<Active>>) -> Option<Bus> {
    let active = active.wait_for(Option::is_some).await.ok()?;
    active.as_ref().map(|active| active.bus.clone())
}

fn source(error: &dyn std::error::Error) -> Option<String> {
    error.source().map(ToString::to_string)
}
