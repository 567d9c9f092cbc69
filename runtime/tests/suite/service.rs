//! The shell of services on a real nats-server: which process works, in which order, and what follows a stop.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use wattle_common::config::MetricsConfig;
use wattle_common::id::NodeId;
use wattle_common::subject::{Bucket, LeaseKey};
use wattle_common::{Machine, Timestamp};
use wattle_runtime::bus::{self, Bus, BusConfig, BusError};
use wattle_runtime::service::{End, Identity, LeaseMode, Link, Phase, Service, Shell};
use wattle_runtime::shell::Shutdown;
use wattle_runtime::testing::NatsServer;

use crate::common::{cluster, connect, until, within};

/// Far longer than a test: a process follows another one because the lease was released.
const LENGTH: Duration = Duration::from_secs(600);

/// Repeats each number, and returns 0 when woken, once after each number.
#[derive(Default)]
struct Echo(Option<Timestamp>);

impl Machine for Echo {
    type Event = u32;
    type Action = u32;
    fn handle(&mut self, now: Timestamp, event: u32, out: &mut Vec<u32>) {
        out.push(event);
        self.0 = Some(now);
    }
    fn wake(&mut self, _: Timestamp, out: &mut Vec<u32>) {
        out.push(0);
        self.0 = None;
    }
    fn next_wake(&self) -> Option<(Timestamp, &'static str)> {
        self.0.map(|at| (at, "a number was repeated"))
    }
}

/// What happened in all processes of a test.
type Log = Arc<Mutex<Vec<String>>>;

struct Setup {
    name: &'static str,
    log: Log,
    inputs: Mutex<Option<mpsc::Receiver<u32>>>,
    /// A bucket that it opens.
    needed: Option<Bucket>,
}

impl Setup {
    fn note(&self, text: &str) {
        self.log.lock().unwrap().push(format!("{} {text}", self.name));
    }
}

struct EchoService {
    echo: Echo,
    inputs: mpsc::Receiver<u32>,
    name: &'static str,
    log: Log,
    _registered: bus::Service,
}

impl Service for EchoService {
    type Machine = Echo;
    type Input = u32;
    type Setup = Setup;
    type Failure = BusError;

    async fn open(setup: &Setup, phase: Phase<'_>) -> Result<Self, End<BusError>> {
        setup.note("opens");
        if let Some(needed) = setup.needed {
            phase.bus.bucket(needed).await?;
        }
        let inputs = setup.inputs.lock().unwrap().take().expect("one phase");
        let registered = phase.register().await?;
        let (name, log) = (setup.name, setup.log.clone());
        Ok(Self { echo: Echo::default(), inputs, name, log, _registered: registered })
    }

    fn set_active(setup: &Setup, active: bool) {
        setup.note(if active { "is active" } else { "is not active" });
    }

    fn machine(&mut self) -> &mut Echo {
        &mut self.echo
    }

    async fn next(&mut self) -> Option<u32> {
        self.inputs.recv().await
    }

    async fn handle(&mut self, input: u32, out: &mut Vec<u32>) -> Result<(), End<BusError>> {
        self.echo.handle(Timestamp::EPOCH, input, out);
        Ok(())
    }

    async fn act(&mut self, out: &mut Vec<u32>) -> Result<(), End<BusError>> {
        let done = out.drain(..).map(|number| format!("{} does {number}", self.name));
        self.log.lock().unwrap().extend(done);
        Ok(())
    }

    async fn close(&mut self) -> Result<(), End<BusError>> {
        self.log.lock().unwrap().push(format!("{} closes", self.name));
        Ok(())
    }
}

/// The states of the processes of the test's service, in order.
async fn states(bus: &Bus) -> Vec<String> {
    let found = bus.services("wattle-example", Duration::from_millis(100)).await;
    let mut states: Vec<String> =
        found.unwrap_or_default().iter().map(|found| found.state().to_owned()).collect();
    states.sort();
    states
}

/// The first process works until its shutdown and completes its work before it releases the lease; the second
/// one follows.
#[tokio::test]
async fn one_process_of_a_service_works_at_a_time() {
    let server = NatsServer::start().await;
    let bus = connect(&server, "main").await;
    let log = Log::default();
    let start = |name: &'static str| {
        let (sender, inputs) = mpsc::channel(4);
        let identity = Identity::of_cluster("wattle-example", "repeats numbers", bus.cluster());
        let nats = BusConfig::at(&server.url());
        let shell = Shell::start(identity, &MetricsConfig::default(), &nats);
        let setup =
            Setup { name, log: log.clone(), inputs: Mutex::new(Some(inputs)), needed: None };
        let shutdown = Shutdown::default();
        let stop = shutdown.clone();
        let mode = LeaseMode::Checked { key: LeaseKey::Slurm, length: LENGTH };
        let task = tokio::spawn(async move { shell.run::<EchoService>(mode, setup, &stop).await });
        (sender, shutdown, task)
    };
    let has = async |text: &str| log.lock().unwrap().iter().any(|line| line == text);
    let (a, stop_a, task_a) = start("a");
    a.send(7).await.unwrap();
    until("a is woken", async || has("a does 0").await).await;
    let (b, stop_b, task_b) = start("b");
    b.send(8).await.unwrap();
    until("b is on standby", async || states(&bus).await == ["active", "standby"]).await;
    stop_a.request();
    within("a ends", task_a).await.unwrap().unwrap();
    until("b is woken", async || has("b does 0").await).await;
    until("b alone is registered", async || states(&bus).await == ["active"]).await;
    stop_b.request();
    within("b ends", task_b).await.unwrap().unwrap();
    let lines = |name: &str, number: u32| {
        let does = format!("does {number}");
        ["is active", "opens", does.as_str(), "does 0", "closes", "is not active"]
            .map(|word| format!("{name} {word}"))
    };
    assert_eq!(*log.lock().unwrap(), [lines("a", 7), lines("b", 8)].concat());
}

/// The server answers calls about the leases and none about the bucket that the first process needs, as when the
/// bucket has no leader: the process gives its lease up, and the next one works.
#[tokio::test]
async fn a_process_without_an_answer_about_a_bucket_gives_its_lease_up() {
    let server = NatsServer::start_with(
        "authorization: { users: [ { user: u, password: p, permissions: { publish: { deny: \
         \"$JS.API.STREAM.INFO.KV_wattle-v1-main-actual\" } } } ] }\nno_auth_user: u\n",
    )
    .await;
    let log = Log::default();
    let stop = Shutdown::default();
    let start = |name: &'static str, needed| {
        let (sender, inputs) = mpsc::channel(4);
        let identity = Identity::of_cluster("wattle-example", "repeats numbers", &cluster("main"));
        let nats = BusConfig::at(&server.url());
        let shell = Shell::start(identity, &MetricsConfig::default(), &nats);
        let shell = shell.waiting_at_most(Duration::from_secs(1));
        let setup = Setup { name, log: log.clone(), inputs: Mutex::new(Some(inputs)), needed };
        let mode = LeaseMode::Checked { key: LeaseKey::Slurm, length: LENGTH };
        let stop = stop.clone();
        (sender, tokio::spawn(async move { shell.run::<EchoService>(mode, setup, &stop).await }))
    };
    let has = async |text: &str| log.lock().unwrap().iter().any(|line| line == text);
    let (_a, task_a) = start("a", Some(Bucket::Actual));
    until("a opens", async || has("a opens").await).await;
    let (_b, task_b) = start("b", None);
    until("b opens", async || has("b opens").await).await;
    let lines = ["a is active", "a opens", "a is not active", "b is active", "b opens"];
    assert_eq!(*log.lock().unwrap(), lines);
    stop.request();
    for task in [task_a, task_b] {
        within("it ends", task).await.unwrap().unwrap();
    }
}

/// A link that works until its machine has ended.
struct Station {
    setup: StationSetup,
}

#[derive(Clone)]
struct StationSetup {
    name: usize,
    working: Arc<AtomicUsize>,
    began: mpsc::Sender<(usize, usize)>,
    machine: watch::Receiver<()>,
}

impl Link for Station {
    type Setup = StationSetup;

    async fn open(setup: &StationSetup, _: &Bus) -> Result<Self, BusError> {
        Ok(Self { setup: setup.clone() })
    }

    async fn work(&mut self, _registered: bus::Service) -> Result<(), BusError> {
        let StationSetup { name, working, began, machine } = &mut self.setup;
        let others = working.fetch_add(1, Ordering::SeqCst);
        began.send((*name, others)).await.unwrap();
        // Until its sender is gone.
        let _ = machine.changed().await;
        working.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    }
}

/// Of two processes with one node's name one works on the bus; the other one follows when the machine of the
/// first has ended.
#[tokio::test]
async fn one_process_of_a_node_works_on_the_bus() {
    let server = NatsServer::start().await;
    let bus = connect(&server, "main").await;
    let node = NodeId::new("n0").unwrap();
    let (began, mut begun) = mpsc::channel(4);
    let working = Arc::new(AtomicUsize::new(0));
    let start = |name: usize| {
        let (running, machine) = watch::channel(());
        let about = "watches a node";
        let identity = Identity::of_node("wattle-example", about, &cluster("main"), &node);
        let nats = BusConfig::at(&server.url());
        let shell = Shell::start(identity, &MetricsConfig::default(), &nats);
        let (working, began) = (working.clone(), began.clone());
        let setup = StationSetup { name, working, began, machine: machine.clone() };
        let mode = LeaseMode::Node {
            key: LeaseKey::Power(node.clone()),
            length: LENGTH,
            on_standby: "another example has this node's name",
        };
        (Some(running), Some(tokio::spawn(shell.follow::<Station, _>(mode, setup, machine))))
    };
    let mut processes = [start(0), start(1)];
    let (first, others) = within("one works", begun.recv()).await.unwrap();
    assert_eq!(others, 0);
    until("the other is on standby", async || states(&bus).await == ["active", "standby"]).await;
    drop(processes[first].0.take());
    within("it ends", processes[first].1.take().unwrap()).await.unwrap();
    let (second, others) = within("the other works", begun.recv()).await.unwrap();
    assert_eq!((second, others), (1 - first, 0));
    until("it is active", async || states(&bus).await == ["active"]).await;
    drop(processes[second].0.take());
    within("it ends too", processes[second].1.take().unwrap()).await.unwrap();
    assert!(states(&bus).await.is_empty(), "none is registered any more");
}
