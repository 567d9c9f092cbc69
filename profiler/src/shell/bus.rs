//! Publishes the profiler's messages and receives reports and records.
//!
//! The last summary also answers requests. Of two profilers with one node's name, the holder of the lease
//! is active ([`LeaseMode::Node`]); the other one measures and sends nothing.
//! Core messages are dropped while the bus is away. Windows wait in a bounded queue: each is stored,
//! in order, whereas `PendingWrites` of the runtime keeps only the newest write of a key. A ledger
//! entry is sent once and its result reported; the machine persists it and retries. Entries of the last
//! hour that the server has acknowledged and lost are stored again. Received are the launcher's and the
//! power agent's reports of this node, and the placer's records.

use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use wattle_common::bounds::{OutOfBounds, check_launch_report, check_power_report, check_record};
use wattle_common::codec;
use wattle_common::lease::NODE_LEASE;
use wattle_common::messages::{JobProgressed, JobWindow, LedgerEntry, NodeSummary, TelemetryBatch};
use wattle_common::subject::{Bucket, JobTopic, LeaseKey, NodeTopic, Reporter, Subject};
use wattle_common::{ClusterId, JobId, NodeId};
use wattle_runtime::bus::{Appender, Bus, BusError, Change, Service, Watch};
use wattle_runtime::clock;
use wattle_runtime::service::{LeaseMode, Link, Shell};
use wattle_runtime::shell::chain;

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

#[derive(Clone)]
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

/// Starts the tasks that send and receive.
pub(super) fn start(
    shell: Shell,
    config: &ServiceConfig,
    events: mpsc::Sender<Event>,
    metrics: ProfilerMetrics,
) -> Outbox {
    let (core, news_out) = mpsc::channel(CORE_MAX);
    let (windows, windows_out) = mpsc::channel(WINDOWS_MAX);
    let (ledger, ledger_out) = mpsc::channel(1);
    let (summary, last_summary) = watch::channel(None);
    let (sender, active) = watch::channel(None);
    let names = Names { cluster: config.cluster.clone(), node: config.node.clone() };
    let mode = LeaseMode::Node {
        key: LeaseKey::Profiler(config.node.clone()),
        length: NODE_LEASE,
        on_standby: "another profiler has this node's name: this one is on standby and sends nothing; stop \
                     one of the two, or configure another `node`",
    };
    // Its sender is dropped when everything is sent.
    let (sending, machine) = watch::channel(());
    let channels = Channels {
        names: names.clone(),
        events: events.clone(),
        active: sender,
        last_summary,
        machine: machine.clone(),
    };
    let counts = metrics.clone();
    tokio::spawn(async move {
        let _sending = sending;
        tokio::join!(
            publish_core(&names, news_out, active.clone(), &counts),
            store_windows(&names, windows_out, active.clone(), &counts),
            store_ledger(&names, ledger_out, active, &events, &counts),
        );
    });
    let task = tokio::spawn(shell.follow::<ProfilerLink, _>(mode, channels, machine));
    Outbox { core, windows, ledger, summary, metrics, task }
}

/// The channels between the machine and the bus.
#[derive(Clone)]
struct Channels {
    names: Names,
    events: mpsc::Sender<Event>,
    /// The bus, while this profiler is the active one of its node.
    active: watch::Sender<Option<Bus>>,
    last_summary: watch::Receiver<Option<NodeSummary>>,
    /// Closed when the machine has ended and everything is sent.
    machine: watch::Receiver<()>,
}

/// The bus side.
struct ProfilerLink {
    bus: Bus,
    channels: Channels,
    _following: JoinSet<()>,
}

impl Link for ProfilerLink {
    type Setup = Channels;

    /// Reports and records are also received on standby.
    async fn open(channels: &Channels, bus: &Bus) -> Result<Self, BusError> {
        let node = channels.names.node.clone();
        let reports = [Reporter::Launcher, Reporter::Power].map(|reporter| reporter.key(&node));
        let actual = bus.bucket(Bucket::Actual).await?.follow(reports.into()).await?;
        let jobs = bus.bucket(Bucket::Jobs).await?.watch().await?;
        let mut following = JoinSet::new();
        let events = channels.events.clone();
        following.spawn(follow(actual, events.clone(), move |change| reported(&node, change)));
        following.spawn(follow(jobs, events, recorded));
        Ok(Self { bus: bus.clone(), channels: channels.clone(), _following: following })
    }

    async fn work(&mut self, registered: Service) -> Result<(), BusError> {
        let Channels { names, active, last_summary, machine, .. } = &self.channels;
        let _connected = Connected::new(active, &self.bus);
        let mut machine = machine.clone();
        tokio::select! {
            () = answer_summaries(names, registered, last_summary.clone()) => {}
            // It carries no values.
            _ = machine.changed() => {}
        }
        Ok(())
    }
}

/// Lets messages be sent until it is dropped.
struct Connected<'a>(&'a watch::Sender<Option<Bus>>);

impl<'a> Connected<'a> {
    fn new(active: &'a watch::Sender<Option<Bus>>, bus: &Bus) -> Self {
        active.send_replace(Some(bus.clone()));
        Self(active)
    }
}

impl Drop for Connected<'_> {
    fn drop(&mut self) {
        self.0.send_replace(None);
    }
}

/// Answers requests for the last summary.
async fn answer_summaries(
    names: &Names,
    service: Service,
    last: watch::Receiver<Option<NodeSummary>>,
) {
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

async fn follow(
    mut watch: Watch,
    events: mpsc::Sender<Event>,
    read: impl Fn(&Change) -> Option<Event>,
) {
    while let Some(change) = watch.next().await {
        // Waits for room; the watch holds later changes.
        if let Some(event) = read(&change)
            && events.send(event).await.is_err()
        {
            break;
        }
    }
    // The watch ends only with the bus client.
    std::future::pending::<()>().await;
}

fn reported(own: &NodeId, change: &Change) -> Option<Event> {
    match Reporter::parse(&change.key)? {
        (Reporter::Launcher, node) if node == *own => {
            let report = change.decode(Bucket::Actual)?;
            checked(change, check_launch_report(&report, clock::now()))?;
            Some(Event::LaunchReported(report))
        }
        (Reporter::Power, node) if node == *own => {
            let report = change.decode(Bucket::Actual)?;
            checked(change, check_power_report(&report, clock::now()))?;
            Some(Event::PowerReported(report))
        }
        _ => None,
    }
}

fn recorded(change: &Change) -> Option<Event> {
    if change.value.is_none() {
        return JobId::new(&change.key).ok().map(Event::RecordDeleted);
    }
    let record = change.decode(Bucket::Jobs)?;
    checked(change, check_record(&record, clock::now()))?;
    Some(Event::JobRecorded(Box::new(record)))
}

/// Logs a number outside its limits, for which the value is ignored.
fn checked(change: &Change, result: Result<(), OutOfBounds>) -> Option<()> {
    result.inspect_err(|error| tracing::error!(key = change.key, %error, "value ignored")).ok()
}

async fn publish_core(
    names: &Names,
    mut core: mpsc::Receiver<CoreMessage>,
    active: watch::Receiver<Option<Bus>>,
    metrics: &ProfilerMetrics,
) {
    while let Some(core) = core.recv().await {
        let Some(bus) = active.borrow().clone() else {
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
    mut active: watch::Receiver<Option<Bus>>,
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
                    tracing::warn!(job = %window.job, error = chain(&error), "window not stored");
                    break;
                }
            }
        }
    }
}

async fn store_ledger(
    names: &Names,
    mut entries: mpsc::Receiver<LedgerEntry>,
    mut active: watch::Receiver<Option<Bus>>,
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
            tracing::warn!(error = chain(error), "ledger entry not stored; retrying");
        }
        metrics.ledger_ended(joules, stored.is_ok());
        let result = Event::LedgerStored { from, stored: stored.is_ok() };
        if events.send(result).await.is_err() {
            return;
        }
    }
}

async fn ready(active: &mut watch::Receiver<Option<Bus>>) -> Option<Bus> {
    let active = active.wait_for(Option::is_some).await.ok()?;
    active.clone()
}
