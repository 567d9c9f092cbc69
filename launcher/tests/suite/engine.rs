//! The contract of [`Engine`], for every engine.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::mpsc;
use wattle_common::messages::{JobProcesses, LaunchReport, LaunchState};
use wattle_common::subject::{Bucket, Reporter};
use wattle_launcher::engine::local::LocalEngine;
use wattle_launcher::engine::{Engine, StatusSender};
use wattle_launcher::{Event, Found, Outcome, Run, RunSpec, Status, StopStage};
use wattle_runtime::bus::Bus;
use wattle_runtime::shell::Shutdown;
use wattle_runtime::testing::{NatsServer, until};

use crate::memory_engine::{Cluster, MemoryEngine};
use crate::support::{config, desired, desired_job, node};

const DEADLINE: Duration = wattle_runtime::testing::HANG;

/// What a job of the contract does.
#[derive(Clone, Copy)]
enum Program {
    /// Exits with code 3.
    Exits,
    /// Is not installed.
    Missing,
    /// Runs until it is requested to stop.
    UntilStopped,
}

/// Makes engines that share their jobs, as the launchers before and after a restart do.
trait Harness {
    type Engine: Engine;
    fn engine(&self, changes: StatusSender) -> Self::Engine;
    fn command(program: Program) -> Vec<String>;
    fn root(&self) -> &Path;
    /// Waits until a job of [`Program::UntilStopped`] can be stopped; checks that it started once.
    async fn until_ready(&self, job: &str);
}

struct Memory(Cluster);

impl Harness for Memory {
    type Engine = MemoryEngine;
    fn engine(&self, changes: StatusSender) -> MemoryEngine {
        MemoryEngine::new(self.0.clone(), changes)
    }
    fn command(program: Program) -> Vec<String> {
        let command: &[&str] = match program {
            Program::Exits => &["exit", "3"],
            Program::Missing => &["missing"],
            Program::UntilStopped => &["until-stopped"],
        };
        command.iter().map(ToString::to_string).collect()
    }
    fn root(&self) -> &Path {
        Path::new("/")
    }
    async fn until_ready(&self, _: &str) {}
}

struct Local(tempfile::TempDir);

impl Harness for Local {
    type Engine = LocalEngine;
    fn engine(&self, changes: StatusSender) -> LocalEngine {
        let program = PathBuf::from(env!("CARGO_BIN_EXE_wattle-launcher"));
        LocalEngine::new(config(self.root()).state_dir, program, changes)
    }
    fn command(program: Program) -> Vec<String> {
        let wait = "trap 'exit 0' USR1; echo x >> starts; while true; do sleep 0.05; done";
        let command: &[&str] = match program {
            Program::Exits => &["sh", "-c", "exit 3"],
            Program::Missing => &["/no/such/program"],
            Program::UntilStopped => &["sh", "-c", wait],
        };
        command.iter().map(ToString::to_string).collect()
    }
    fn root(&self) -> &Path {
        self.0.path()
    }
    async fn until_ready(&self, job: &str) {
        let starts = self.root().join("c").join(job).join("starts");
        let started = until(DEADLINE, async || {
            std::fs::read_to_string(&starts).ok().filter(|text| !text.is_empty())
        });
        assert_eq!(started.await.as_deref(), Some("x\n"));
    }
}

/// An engine and the changes it reports.
struct Session<E> {
    engine: E,
    found: Vec<Found>,
    changes: mpsc::Receiver<Event>,
}

impl<E: Engine> Session<E> {
    async fn open<H: Harness<Engine = E>>(harness: &H) -> Self {
        let (sender, changes) = mpsc::channel(16);
        let mut engine = harness.engine(StatusSender::new(sender));
        let found = engine.resume().await.unwrap();
        Self { engine, found, changes }
    }

    /// The next change of `run`.
    async fn change(&mut self, run: &Run) -> Status {
        let event = tokio::time::timeout(DEADLINE, self.changes.recv()).await;
        let Event::StatusChanged(of, status) = event.expect("a change in time").unwrap() else {
            panic!("an engine reports changes only")
        };
        assert_eq!(of, *run);
        status
    }

    async fn ended(&mut self, run: &Run) -> Outcome {
        match self.change(run).await {
            Status::Ended(outcome) => outcome,
            Status::Running(_) => match self.change(run).await {
                Status::Ended(outcome) => outcome,
                Status::Running(_) => panic!("running is reported once"),
            },
        }
    }
}

fn spec<H: Harness>(harness: &H, job: &str, program: Program) -> RunSpec {
    let mut desired = desired_job(job, 1);
    desired.command = H::command(program);
    RunSpec::new(&desired, &node(), &config(harness.root())).unwrap()
}

async fn keeps_the_contract<H: Harness>(harness: &H) {
    let mut session = Session::open(harness).await;
    assert!(session.found.is_empty());

    // Exit codes and refusals.
    let exits = spec(harness, "exits", Program::Exits);
    session.engine.start(&exits);
    assert_eq!(session.ended(&exits.run()).await, Outcome::Code(3));
    let missing = spec(harness, "missing", Program::Missing);
    session.engine.start(&missing);
    assert!(matches!(session.ended(&missing.run()).await, Outcome::Refused(_)));

    // A start that a restart interrupts happens once.
    let job = spec(harness, "job", Program::UntilStopped);
    session.engine.start(&job);
    let mut session = Session::open(harness).await;
    let found = session.found.iter().find(|found| found.spec == job).expect("it is stored");
    if found.status.is_none() {
        session.engine.start(&job);
    }
    let handle = match found.status.clone() {
        Some(Status::Running(handle)) => handle,
        _ => match session.change(&job.run()).await {
            Status::Running(handle) => handle,
            Status::Ended(outcome) => panic!("{outcome:?}"),
        },
    };

    // A restart finds it running by the same handle, and every ended run.
    let mut session = Session::open(harness).await;
    let statuses: Vec<_> = session.found.iter().map(|found| found.status.clone()).collect();
    assert_eq!(statuses.len(), 3);
    assert!(statuses.contains(&Some(Status::Running(handle))));
    assert!(statuses.contains(&Some(Status::Ended(Outcome::Code(3)))));

    // Unknown and ended runs cannot be stopped.
    session.engine.stop(&spec(harness, "unknown", Program::Exits).run(), StopStage::Kill);
    session.engine.stop(&exits.run(), StopStage::Terminate);

    // A stop is carried out, stored and reported as the job's own exit code.
    harness.until_ready("job").await;
    session.engine.stop(&job.run(), StopStage::Checkpoint);
    assert_eq!(session.ended(&job.run()).await, Outcome::Code(0));
    let mut session = Session::open(harness).await;
    let stopped = session.found.iter().find(|found| found.spec == job).unwrap();
    assert_eq!(stopped.stop, Some(StopStage::Checkpoint));
    assert_eq!(stopped.status, Some(Status::Ended(Outcome::Code(0))));

    for spec in [&exits, &missing, &job] {
        session.engine.forget(&spec.run());
    }
    assert!(Session::open(harness).await.found.is_empty());
}

#[tokio::test]
async fn the_memory_engine_keeps_the_contract() {
    keeps_the_contract(&Memory(Cluster::default())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_local_engine_keeps_the_contract() {
    keeps_the_contract(&Local(tempfile::tempdir().unwrap())).await;
}

/// The complete service, with a bus and without a local process.
#[tokio::test(flavor = "multi_thread")]
async fn the_service_runs_by_any_engine() {
    let server = NatsServer::start().await;
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path());
    config.nats = wattle_runtime::bus::BusConfig::at(&server.url());
    let bus = Bus::connect(&config.nats, config.cluster.clone(), "test").await.unwrap();
    let (cluster, shutdown) = (Cluster::default(), Shutdown::default());
    let engine = {
        let cluster = cluster.clone();
        move |changes| MemoryEngine::new(cluster, changes)
    };
    let stop = shutdown.clone();
    let service =
        tokio::spawn(async move { wattle_launcher::shell::run_with(config, engine, &stop).await });

    let mut job = desired_job("a", 1);
    job.command = Memory::command(Program::UntilStopped);
    let bucket = bus.bucket(Bucket::Desired).await.unwrap();
    bucket.put("n0", &desired(1, vec![job])).await.unwrap();
    let actual = bus.bucket(Bucket::Actual).await.unwrap();
    let state = async |wanted: LaunchState| {
        let reported = until(DEADLINE, async || {
            let report = actual.get::<LaunchReport>(&Reporter::Launcher.key(&node())).await;
            let (report, _) = report.ok().flatten()?;
            report.jobs.into_iter().find(|job| job.state == wanted)
        });
        reported.await.expect("the state is reported")
    };
    let running = state(LaunchState::Running).await;
    assert_eq!(running.processes, Some(JobProcesses::Cgroup("job_a".to_owned())));
    assert_eq!(running.log_path, "memory logs a");
    let mut job = desired_job("a", 1);
    job.stop = true;
    bucket.put("n0", &desired(2, vec![job])).await.unwrap();
    assert_eq!(state(LaunchState::STOPPED).await.processes, None);
    assert!(cluster.live().is_empty());
    shutdown.request();
    service.await.unwrap().unwrap();
}
