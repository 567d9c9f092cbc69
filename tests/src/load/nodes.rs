//! Simulated nodes: the state machines of power agent and launcher, with GPUs and processes in memory.
//!
//! Each node has two watches of its desired state and two reports, as a node with both services has.
//! Nodes share connections. The services' leases and their registration are absent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::Instant;
use wattle_common::messages::{DesiredJob, JobProcesses, JobWindow, LedgerEntry, NodeDesired};
use wattle_common::subject::{Bucket, JobTopic, NodeTopic, Reporter, Subject};
use wattle_common::{GpuIndex, JobId, NodeId, Power, Timestamp, codec};
use wattle_launcher as launcher;
use wattle_power_agent as power_agent;
use wattle_runtime::bus::{Bus, KvBucket};
use wattle_runtime::clock;
use wattle_runtime::driver;
use wattle_runtime::shell::Shutdown;
use wattle_testkit::{job_window, ledger_entry, workload};

use super::Site;
use crate::{PATIENCE, repository};

/// Nodes of one connection.
const NODES_PER_CONNECTION: usize = 50;
/// Nodes that start at a time.
const STARTS_MAX: usize = 50;
/// Capacity of a machine's event channel: more than the results of all its GPUs.
const EVENTS_MAX: usize = 256;
/// Default cap and limits of a simulated GPU (V100).
const CAP_DEFAULT: Power = Power::from_w(250);
const CAP_MIN: Power = Power::from_w(100);
/// Power of an idle GPU and of a node without its GPUs.
const IDLE_POWER: Power = Power::from_w(40);
const HOST_POWER: Power = Power::from_w(200);
/// Interval of ledger entries and windows.
const LEDGER_INTERVAL: Duration = Duration::from_secs(60);

/// What a node has applied.
#[derive(Debug)]
struct Applied {
    /// The newest desired state that it received.
    desired: Option<NodeDesired>,
    caps: BTreeMap<GpuIndex, Power>,
    jobs: BTreeSet<JobId>,
    /// When caps and jobs were last found to match the desired state after a change, with its
    /// generation.
    matched: Option<(Instant, u64)>,
    power_limited_since: Option<Instant>,
}

impl Applied {
    /// Compares the actual with the desired state.
    fn compare(&mut self) {
        let Some(desired) = &self.desired else { return };
        let caps = desired.gpus.iter().all(|gpu| {
            let wanted = gpu.cap_mw.unwrap_or(CAP_DEFAULT);
            self.caps.get(&gpu.gpu).is_some_and(|cap| *cap == wanted)
        });
        let wanted = desired.jobs.iter().filter(|job| !job.stop).map(|job| &job.job);
        let is_same = caps && wanted.eq(self.jobs.iter());
        if !is_same {
            return;
        }
        if self.matched.is_none_or(|(_, generation)| generation != desired.generation) {
            self.matched = Some((Instant::now(), desired.generation));
        }
        if !desired.power_limited {
            self.power_limited_since = None;
        } else if self.power_limited_since.is_none() {
            self.power_limited_since = Some(Instant::now());
        }
    }
}

/// One node.
#[derive(Clone)]
struct Node {
    id: NodeId,
    applied: Arc<Mutex<Applied>>,
    bus: Bus,
    /// Ends the node's jobs.
    events: mpsc::Sender<launcher::Event>,
}

impl Node {
    fn applied(&self) -> MutexGuard<'_, Applied> {
        self.applied.lock().expect("no task panics while it holds the lock")
    }

    /// Stores a ledger entry of the last minute without jobs: the placer's idle and host power.
    async fn store_idle_energy(&self, gpus: u32) {
        let until = clock::now();
        let from = Timestamp::from_us(until.as_us() - LEDGER_INTERVAL.as_micros() as u64);
        let host = HOST_POWER.over(LEDGER_INTERVAL);
        let idle = IDLE_POWER.over(LEDGER_INTERVAL);
        let entry = LedgerEntry {
            energy_mj_gpus: vec![Some(idle); gpus as usize],
            ..ledger_entry(self.id.as_str(), from, until, host)
        };
        let (cluster, node) = (self.bus.cluster().clone(), self.id.clone());
        let subject = Subject::of_node(cluster, NodeTopic::EnergyMetered, node);
        let id = format!("{}.{}", self.id, from.as_us());
        self.bus.store(&subject, &id, &entry).await.expect("the server stores it");
    }

    /// Stores a window of each running job, as a profiler does once a minute.
    async fn store_windows(&self) {
        let until = clock::now();
        let from = Timestamp::from_us(until.as_us() - LEDGER_INTERVAL.as_micros() as u64);
        let windows: Vec<JobWindow> = {
            let applied = self.applied();
            let desired = applied.desired.iter().flat_map(|desired| &desired.jobs);
            let running = desired.filter(|job| applied.jobs.contains(&job.job));
            let window = |job: &DesiredJob| JobWindow {
                workload: Some(workload("resnet50")),
                node: self.id.clone(),
                attempt: job.attempt,
                gpus: job.gpus.clone(),
                gpus_total: job.gpus.len() as u32,
                ..job_window(job.job.as_str(), from, until)
            };
            running.map(window).collect()
        };
        for window in windows {
            let subject = Subject::of_job(
                self.bus.cluster().clone(),
                JobTopic::WindowClosed,
                self.id.clone(),
                window.job.clone(),
            );
            let id = format!("{}.{}.{}", window.job, self.id, window.from_us.as_us());
            self.bus.store(&subject, &id, &window).await.expect("the server stores it");
        }
    }
}

/// The nodes of a cluster.
pub struct Nodes {
    nodes: Vec<Node>,
    shutdown: Shutdown,
}

impl Nodes {
    /// Starts `count` nodes of `gpus` GPUs, and returns when each has received a desired state.
    pub async fn start(site: &Site, count: usize, gpus: u32) -> Self {
        let text = std::fs::read_to_string(repository("deploy/launcher.toml"));
        let text = text.expect("an example configuration");
        let config: launcher::Config = toml::from_str(&text).expect("a valid configuration");
        let shutdown = Shutdown::default();
        let starts = Arc::new(Semaphore::new(STARTS_MAX));
        let mut nodes = Vec::new();
        let mut bus = site.connect().await;
        for i in 0..count {
            if i % NODES_PER_CONNECTION == NODES_PER_CONNECTION - 1 {
                bus = site.connect().await;
            }
            let id = NodeId::new(&format!("n{i:04}")).expect("an id");
            let caps = (0..gpus).map(|gpu| (gpu, CAP_DEFAULT)).collect();
            let applied = Applied {
                desired: None,
                caps,
                jobs: BTreeSet::new(),
                matched: None,
                power_limited_since: None,
            };
            let (events, inbox) = mpsc::channel(EVENTS_MAX);
            let applied = Arc::new(Mutex::new(applied));
            let node = Node { id: id.clone(), applied, bus: bus.clone(), events };
            let config = launcher::Config { node: id, ..config.clone() };
            let permit = Arc::clone(&starts).acquire_owned().await.expect("it is never closed");
            let (ours, stop) = (node.clone(), shutdown.clone());
            tokio::spawn(async move {
                let desired = ours.bus.bucket(Bucket::Desired).await.expect("the server runs");
                let actual = ours.bus.bucket(Bucket::Actual).await.expect("the server runs");
                ours.store_idle_energy(gpus).await;
                tokio::spawn(power_agent(
                    ours.clone(),
                    desired.clone(),
                    actual.clone(),
                    stop.clone(),
                ));
                tokio::spawn(launcher(ours, config, inbox, desired, actual, stop));
                drop(permit);
            });
            nodes.push(node);
        }
        let this = Self { nodes, shutdown };
        this.until(PATIENCE, "every node has a desired state", |applied| applied.desired.is_some())
            .await;
        this
    }

    /// Waits until `wanted` holds on every node.
    async fn until(&self, patience: Duration, what: &str, wanted: impl Fn(&Applied) -> bool) {
        let all = async || self.nodes.iter().all(|node| wanted(&node.applied())).then_some(());
        let missing = || {
            let missing = self.nodes.iter().filter(|node| !wanted(&node.applied()));
            missing.count()
        };
        let found = wattle_runtime::testing::until(patience, all).await;
        assert!(found.is_some(), "waited {patience:?} for: {what}; {} nodes do not", missing());
    }

    /// Waits until every node has applied an order under a power limit; returns the time from `since` to
    /// the last node's.
    pub async fn until_power_limited(&self, since: Instant, patience: Duration) -> Duration {
        let limited = |applied: &Applied| applied.power_limited_since.is_some_and(|at| at > since);
        self.until(patience, "every node applies the power limit", limited).await;
        let at = self.nodes.iter().filter_map(|node| node.applied().power_limited_since);
        at.max().map_or(Duration::ZERO, |last| last - since)
    }

    /// Waits until `jobs` jobs run; returns the time of the last node's last change since `since`.
    pub async fn until_running(&self, jobs: usize, since: Instant, patience: Duration) -> Duration {
        let running = async || (self.jobs().len() >= jobs).then_some(());
        let found = wattle_runtime::testing::until(patience, running).await;
        assert!(found.is_some(), "waited {patience:?}: {} of {jobs} jobs run", self.jobs().len());
        let at = self.nodes.iter().filter_map(|node| node.applied().matched.map(|(at, _)| at));
        at.max().map_or(Duration::ZERO, |last| last.saturating_duration_since(since))
    }

    /// The running jobs.
    #[must_use]
    pub fn jobs(&self) -> BTreeSet<JobId> {
        self.nodes.iter().flat_map(|node| node.applied().jobs.clone()).collect()
    }

    /// Number of GPUs with a cap below the default.
    #[must_use]
    pub fn capped(&self) -> usize {
        let below =
            |node: &Node| node.applied().caps.values().filter(|c| **c < CAP_DEFAULT).count();
        self.nodes.iter().map(below).sum()
    }

    /// Highest power of the nodes at their caps.
    #[must_use]
    pub fn power_max(&self) -> Power {
        let caps = |node: &Node| node.applied().caps.values().copied().sum::<Power>();
        self.nodes.iter().map(|node| HOST_POWER + caps(node)).sum()
    }

    /// Stores a window of each running job.
    pub async fn store_windows(&self) {
        let each = stream::iter(&self.nodes).map(Node::store_windows);
        each.buffer_unordered(STARTS_MAX).collect::<()>().await;
    }

    /// Completes every running job.
    pub async fn complete_jobs(&self) {
        for node in &self.nodes {
            let jobs: Vec<launcher::Run> = {
                let applied = node.applied();
                let desired = applied.desired.iter().flat_map(|desired| &desired.jobs);
                let running = desired.filter(|job| applied.jobs.contains(&job.job));
                let run = |job: &DesiredJob| launcher::Run {
                    node: node.id.clone(),
                    job: job.job.clone(),
                    admission: job.admission.clone(),
                    attempt: job.attempt,
                };
                running.map(run).collect()
            };
            for run in jobs {
                node.applied().jobs.remove(&run.job);
                let ended = launcher::Status::Ended(launcher::Outcome::Code(0));
                let _ = node.events.send(launcher::Event::StatusChanged(run, ended)).await;
            }
        }
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.shutdown.request();
    }
}

/// Passes the node's desired states on.
async fn follow(node: Node, bucket: KvBucket, each: impl AsyncFn(NodeDesired) -> bool) {
    let mut watch = bucket.watch_keys(node.id.as_str()).await.expect("the server runs");
    while let Some(change) = watch.next().await {
        let Some(value) = change.value else { continue };
        let desired: NodeDesired = codec::decode_json(&value).expect("the placer's own order");
        if !each(desired).await {
            return;
        }
    }
}

fn gpus_read(applied: &Applied) -> power_agent::Event {
    let status = |(gpu, cap): (&GpuIndex, &Power)| {
        let facts = power_agent::GpuFacts {
            uuid: format!("GPU-{gpu}"),
            gpu_type: "v100".to_owned(),
            memory_mib: Some(32_768),
            cap_default: Some(CAP_DEFAULT),
            cap_range: Some((CAP_MIN, CAP_DEFAULT)),
            clock_range: None,
        };
        let status = power_agent::GpuStatus {
            facts,
            cap: Some(*cap),
            clock: None,
            energy_total: None,
            no_meter: false,
            health: wattle_gpu::GpuHealth::default(),
        };
        (*gpu, Ok(status))
    };
    power_agent::Event::GpusRead(applied.caps.iter().map(status).collect())
}

async fn power_agent(node: Node, desired: KvBucket, actual: KvBucket, stop: Shutdown) {
    let (events, mut inbox) = mpsc::channel(EVENTS_MAX);
    let (reports, newest) = watch::channel(None);
    let key = Reporter::Power.key(&node.id);
    let put = tokio::spawn(async move { actual.put_latest(&key, newest).await });
    let (orders, ours) = (events.clone(), node.clone());
    let follow = tokio::spawn(follow(node.clone(), desired, async move |desired| {
        {
            let mut applied = ours.applied();
            applied.desired = Some(desired.clone());
            applied.compare();
        }
        orders.send(power_agent::Event::DesiredChanged(desired)).await.is_ok()
    }));
    let settings = power_agent::Settings::default();
    let mut machine =
        power_agent::PowerMachine::new(node.id.clone(), settings).without_stored_caps();
    let result = |event| events.try_send(event).expect("its capacity covers all results");
    driver::run(&mut machine, &mut inbox, &stop, |action| match action {
        power_agent::Action::ReadGpus => result(gpus_read(&node.applied())),
        power_agent::Action::SetCap { gpu, cap } => {
            let mut applied = node.applied();
            applied.caps.insert(gpu, cap);
            applied.compare();
            result(power_agent::Event::CapSet { gpu, cap, result: Ok(()) });
        }
        power_agent::Action::SetClock { gpu, clock } => {
            result(power_agent::Event::ClockSet { gpu, clock, result: Ok(()) });
        }
        power_agent::Action::Report(report) => drop(reports.send_replace(Some(report))),
        power_agent::Action::Sleep(_)
        | power_agent::Action::StoreCaps(_)
        | power_agent::Action::Log(_) => {}
    })
    .await;
    follow.abort();
    put.abort();
}

async fn launcher(
    node: Node,
    config: launcher::Config,
    mut inbox: mpsc::Receiver<launcher::Event>,
    desired: KvBucket,
    actual: KvBucket,
    stop: Shutdown,
) {
    let (reports, newest) = watch::channel(None);
    let key = Reporter::Launcher.key(&node.id);
    let put = tokio::spawn(async move { actual.put_latest(&key, newest).await });
    let orders = node.events.clone();
    let follow = tokio::spawn(follow(node.clone(), desired, async move |desired| {
        orders.send(launcher::Event::DesiredChanged(desired)).await.is_ok()
    }));
    let mut machine = launcher::Launcher::new(config, launcher::PersistedState::default());
    let status = |run, status| {
        let event = launcher::Event::StatusChanged(run, status);
        node.events.try_send(event).expect("its capacity covers all results");
    };
    driver::run(&mut machine, &mut inbox, &stop, |action| match action {
        launcher::Action::Start(spec) => {
            {
                let mut applied = node.applied();
                applied.jobs.insert(spec.job.clone());
                applied.compare();
            }
            let handle = launcher::Handle {
                id: format!("memory job {}", spec.job),
                processes: JobProcesses::Cgroup(format!("job_{}", spec.job)),
                log_path: spec.log_path.clone(),
            };
            status(spec.run(), launcher::Status::Running(handle));
        }
        launcher::Action::Stop(run, _) => {
            {
                let mut applied = node.applied();
                applied.jobs.remove(&run.job);
                applied.compare();
            }
            status(run, launcher::Status::Ended(launcher::Outcome::Code(0)));
        }
        launcher::Action::Report(report) => drop(reports.send_replace(Some(report))),
        launcher::Action::Forget(_)
        | launcher::Action::StoreObeyed(_)
        | launcher::Action::Test
        | launcher::Action::FaultAlarm(_)
        | launcher::Action::FaultEnded
        | launcher::Action::Alarm(_) => {}
    })
    .await;
    follow.abort();
    put.abort();
}
