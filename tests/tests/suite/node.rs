//! Power agent and profiler in isolation: real binaries, a real nats-server, simulated GPUs.
//!
//! The test itself writes the messages of placer and launcher.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use wattle_common::job::{JobPhase, JobSpec, NodeShare, Placement};
use wattle_common::messages::{
    AppliedGpu, DesiredGpu, JobProcesses, JobRecord, JobWindow, LaunchReport, LaunchState,
    LaunchedJob, LedgerEntry, NodeDesired, NodeSummary, PowerReport,
};
use wattle_common::subject::{Bucket, Reporter, StreamName, Topic};
use wattle_common::units::Energy;
use wattle_common::{
    ClusterId, Frequency, JobId, NodeId, Power, Timestamp, WorkloadId, codec, env,
};
use wattle_runtime::bus::{Bus, BusConfig, KvBucket};
use wattle_runtime::testing::NatsServer;
use wattle_testkit as testkit;
use wattle_tests::simulated_clock::{SimulatedClock, environment};

/// Seconds of system time per second of wall time.
const RATE: &str = "20";
/// Deadline of every condition, wall time; generous for a loaded machine.
const PATIENCE: Duration = wattle_runtime::testing::HANG;
const WORKLOAD: &str = "bert-squad-b32";

/// The folder of the built programs.
pub(crate) fn programs() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let programs =
            ["libnvml_sim.so", "wattle-simnode", "wattle-profiler", "wattle-power-agent"];
        let paths = programs.map(wattle_tests::program);
        paths[0].parent().unwrap().to_owned()
    })
}

/// A process that ends with the test.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    pub(crate) fn signal(&self, signal: libc::c_int) {
        let status = Command::new("kill")
            .args([format!("-{signal}"), self.0.id().to_string()])
            .status()
            .unwrap();
        assert!(status.success());
    }

    pub(crate) fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One simulated node, its bus, and a hand on both.
pub(crate) struct Node {
    server: NatsServer,
    bus: Bus,
    desired: KvBucket,
    actual: KvBucket,
    jobs: KvBucket,
    folder: tempfile::TempDir,
    clock: SimulatedClock,
}

fn id() -> NodeId {
    NodeId::new("n0").unwrap()
}

impl Node {
    pub(crate) async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("node");
        let mut create = Command::new(programs().join("wattle-simnode"));
        create.arg("create").arg("--state").arg(&state);
        create.args(["--node", "n0", "--gpus", "2", "--gpu-type", "v100", "--rate", RATE]);
        let made = create.output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let server = NatsServer::start_with_environment(environment(&state)).await;
        let clock = SimulatedClock::start(&[state]);
        let cluster = ClusterId::new("test").unwrap();
        let bus = Bus::connect(&BusConfig::at(&server.url()), cluster, "test").await.unwrap();
        let desired = bus.bucket(Bucket::Desired).await.unwrap();
        let actual = bus.bucket(Bucket::Actual).await.unwrap();
        let jobs = bus.bucket(Bucket::Jobs).await.unwrap();
        Self { server, bus, desired, actual, jobs, folder, clock }
    }

    /// The system's time. This process lives by the wall clock, the services by the node's.
    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn config(&self, service: &str, more: &str) -> PathBuf {
        let path = self.path(&format!("{service}.toml"));
        let library = programs().join("libnvml_sim.so");
        let text = format!(
            "cluster = \"test\"\nnode = \"n0\"\nnvml_library = {library:?}\n{more}\n[nats]\nurl = {:?}\n",
            self.server.url()
        );
        std::fs::write(&path, text).unwrap();
        path
    }

    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(programs().join(program));
        command.env(env::CLOCK, self.path("node")).env(env::SIM_NODE, self.path("node"));
        command.env_remove(env::NATS_URL).stdin(Stdio::null());
        command
    }

    pub(crate) fn service(&self, name: &str, more: &str) -> Running {
        let log = self.path(&format!("{name}.log"));
        let log = std::fs::File::options().create(true).append(true).open(log).unwrap();
        let mut command = self.command(name);
        command.arg("--config").arg(self.config(name, more)).stderr(log);
        Running(command.spawn().unwrap())
    }

    fn agent(&self) -> Running {
        self.service("wattle-power-agent", &agent_settings())
    }

    fn profiler(&self) -> Running {
        let (socket, state) = (self.path("progress.sock"), self.path("state"));
        let more = format!(
            "progress_socket = {socket:?}\nstate_dir = {state:?}\nhost_power_w = 100\nledger_ms = 20_000"
        );
        self.service("wattle-profiler", &more)
    }

    pub(crate) fn fault(&self, gpu: &str, fault: &str) {
        let mut command = self.command("wattle-simnode");
        command.arg("fault").arg("--state").arg(self.path("node")).args(["--gpu", gpu, fault]);
        assert!(command.status().unwrap().success());
    }

    pub(crate) async fn order(
        &self,
        generation: u64,
        lease: Duration,
        gpus: Vec<DesiredGpu>,
    ) -> Timestamp {
        let now = self.now();
        let desired = NodeDesired {
            node: id(),
            generation,
            issued_at_us: now,
            expires_at_us: now + lease,
            gpus,
            jobs: Vec::new(),
            power_limited: false,
            caps_ahead: Vec::new(),
            event_until_us: None,
            sleep: None,
        };
        self.desired.put("n0", &desired).await.unwrap();
        desired.expires_at_us
    }

    /// Waits for a report that satisfies `enough`. A new agent's first report may be without GPUs; it is skipped.
    pub(crate) async fn report(
        &self,
        what: &str,
        enough: impl Fn(&PowerReport) -> bool,
    ) -> PowerReport {
        let mut watch = self.actual.watch().await.unwrap();
        let mut last = None;
        let seen = async {
            while let Some(change) = watch.next().await {
                if change.key == Reporter::Power.key(&id())
                    && let Some(value) = change.value
                {
                    let report: PowerReport = codec::decode_json(&value).unwrap();
                    if !report.gpus.is_empty() && enough(&report) {
                        return report;
                    }
                    last = Some(report);
                }
            }
            panic!("the watch ended")
        };
        match tokio::time::timeout(PATIENCE, seen).await {
            Ok(report) => report,
            Err(_) => panic!("{what}: not within {PATIENCE:?}; last {last:#?}\n{}", self.logs()),
        }
    }

    /// Waits for a summary that satisfies `enough`.
    async fn summary(&self, what: &str, enough: impl Fn(&NodeSummary) -> bool) -> NodeSummary {
        let pattern = Topic::NodeSummarized.pattern(self.bus.cluster());
        let mut summaries = self.bus.subscribe(&pattern).await.unwrap();
        let mut last = None;
        let seen = async {
            while let Some(delivery) = summaries.next().await {
                let summary: NodeSummary = codec::decode_json(&delivery.payload).unwrap();
                if enough(&summary) {
                    return summary;
                }
                last = Some(summary);
            }
            panic!("the subscription ended")
        };
        match tokio::time::timeout(PATIENCE, seen).await {
            Ok(summary) => summary,
            Err(_) => panic!("{what}: not within {PATIENCE:?}; last {last:#?}\n{}", self.logs()),
        }
    }

    /// Reads a stream until the messages satisfy `enough`.
    async fn stored<T: std::fmt::Debug>(
        &self,
        stream: StreamName,
        reader: &str,
        read: fn(&[u8]) -> Result<T, codec::CodecError>,
        mut enough: impl FnMut(&[T]) -> bool,
    ) -> Vec<T> {
        let mut consumer = self.bus.consume(stream, reader).await.unwrap();
        let mut all = Vec::new();
        let reading = async {
            while !enough(&all) {
                let delivery = consumer.next().await.unwrap();
                delivery.ack().await.unwrap();
                all.push(read(&delivery.payload).unwrap());
            }
        };
        if tokio::time::timeout(PATIENCE, reading).await.is_err() {
            panic!("{stream:?}: not within {PATIENCE:?}; so far {all:#?}\n{}", self.logs());
        }
        all
    }

    pub(crate) fn logs(&self) -> String {
        ["wattle-power-agent.log", "wattle-profiler.log"]
            .map(|log| std::fs::read_to_string(self.path(log)).unwrap_or_default())
            .concat()
    }

    /// Starts a job and publishes the messages of launcher and placer about it.
    async fn job(&self, name: &str, gpus: &[u32]) -> Running {
        let job = JobId::new(name).unwrap();
        let visible: Vec<String> = gpus.iter().map(ToString::to_string).collect();
        let mut command = self.command("wattle-simjob");
        command.args(["--workload", WORKLOAD, "--steps", "100000000", "--steps-per-epoch", "200"]);
        command.env("CUDA_VISIBLE_DEVICES", visible.join(",")).env(env::JOB, name);
        command.env(env::PROGRESS, self.path("progress.sock"));
        command.env(env::CHECKPOINT_DIR, self.path(name));
        command.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let running = Running(command.spawn().unwrap());
        // The group is its own but the session is still this test's: it serves as the job's.
        let own = std::fs::read_to_string("/proc/self/stat").unwrap();
        let session = own.rsplit_once(')').unwrap().1.split_ascii_whitespace().nth(3).unwrap();
        let report = LaunchReport {
            instance: String::new(),
            node: id(),
            at_us: self.now(),
            observed_generation: 1,
            has_ended: false,
            fault: None,
            site: None,
            jobs: vec![LaunchedJob {
                job: job.clone(),
                admission: None,
                attempt: 1,
                gpus: gpus.to_vec(),
                state: LaunchState::Running,
                processes: session.parse().ok().map(JobProcesses::Session),
                since_us: self.now(),
                log_path: String::new(),
            }],
        };
        self.actual.put(&Reporter::Launcher.key(&id()), &report).await.unwrap();
        let share = NodeShare { node: id(), gpus: gpus.to_vec() };
        let spec = JobSpec {
            workload: Some(WorkloadId::new(WORKLOAD).unwrap()),
            submitted_at_us: self.now(),
            ..testkit::job_spec(name, gpus.len() as u32)
        };
        let record = JobRecord {
            placement: Some(Placement { shares: vec![share] }),
            ..testkit::job_record(spec, JobPhase::Running)
        };
        self.jobs.put(name, &record).await.unwrap();
        running
    }
}

pub(crate) fn w(watts: u64) -> Power {
    Power::from_w(watts)
}

pub(crate) fn cap(gpu: u32, watts: u64) -> DesiredGpu {
    DesiredGpu { gpu, cap_mw: Some(w(watts)), clock_mhz_max: None }
}

/// The lease of an order that only a later order ends: 18 days of wall time.
pub(crate) const LASTING: Duration = Duration::from_secs(365 * 24 * 3_600);
/// The lease of an order whose end is awaited.
pub(crate) const SHORT: Duration = Duration::from_secs(40);
/// Difference of the clocks of two processes: each reads the wall clock and the boot-time clock at two instants, on a
/// busy machine milliseconds apart, which the rate multiplies.
const CLOCKS: Duration = Duration::from_secs(1);
/// The interval of an agent's reports, and its longest lease.
pub(crate) fn agent_settings() -> String {
    format!("heartbeat_ms = 4_000\nlease_max_ms = {}", LASTING.as_millis())
}

#[tokio::test]
async fn a_cap_ordered_is_a_cap_applied_and_shows_in_power() {
    let node = Node::new().await;
    let (_agent, _profiler) = (node.agent(), node.profiler());
    let _job = node.job("burner", &[0]).await;
    let free = node
        .summary("the job draws power", |s| {
            s.gpus.first().is_some_and(|gpu| gpu.power_mw_mean > Some(w(180)))
        })
        .await;
    assert_eq!(free.gpus[0].jobs, [JobId::new("burner").unwrap()]);

    let until = node.order(1, LASTING, vec![cap(0, 150)]).await;
    let report = node.report("the cap stands", |r| r.gpus[0].cap_mw == Some(w(150))).await;
    assert_eq!(report.observed_generation, 1);
    let ends = report.lease_until_us.unwrap();
    assert!(ends <= until + CLOCKS && until <= ends + CLOCKS, "{ends} and {until}");
    assert_eq!(report.gpus[1].cap_mw, report.gpus[1].cap_mw_default, "its neighbour is free");
    node.summary("the cap shows in power", |s| {
        s.gpus[0].cap_mw == Some(w(150))
            && s.gpus[0].power_mw_mean.is_some_and(|mean| mean <= w(151) && mean > w(100))
    })
    .await;

    // A short lease that is not renewed.
    let until = node.order(2, SHORT, vec![cap(0, 150)]).await;
    let ended = |r: &PowerReport| r.observed_generation == 2 && r.lease_until_us.is_none();
    let safe = node.report("the lease ends", ended).await;
    assert!(safe.at_us + CLOCKS >= until, "not before its time: {} and {until}", safe.at_us);
    let safe =
        node.report("the safe cap stands", |r| r.gpus[0].cap_mw == r.gpus[0].cap_mw_default).await;
    assert!(safe.gpus.iter().all(|gpu| gpu.healthy && gpu.last_error.is_none()));
    node.summary("power is free again", |s| s.gpus[0].power_mw_mean > Some(w(180))).await;
}

#[tokio::test]
async fn a_killed_agent_leaves_no_cap_behind_its_restart() {
    let node = Node::new().await;
    let agent = node.agent();
    node.report("it runs", |r| r.gpus.len() == 2).await;
    let order = DesiredGpu { clock_mhz_max: Some(Frequency::from_mhz(1_200)), ..cap(1, 120) };
    node.order(1, LASTING, vec![order]).await;
    let capped = node.report("the cap stands", |r| {
        r.gpus[1].cap_mw == Some(w(120))
            && r.gpus[1].clock_mhz_max == Some(Frequency::from_mhz(1_200))
    });
    let capped = capped.await;
    agent.kill();

    // What a supervisor runs after a kill.
    let mut reset = node.command("wattle-power-agent");
    reset.arg("--config").arg(node.config("wattle-power-agent", "")).arg("reset");
    let done = reset.output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert!(String::from_utf8_lossy(&done.stderr).contains("GPU is in its safe state"));

    // The next agent finds an order whose lease ends.
    let until = node.order(2, SHORT, vec![order]).await;
    let agent = node.agent();
    let free = node.report("it is safe in the end", |r| {
        let is_default = |gpu: &AppliedGpu| gpu.cap_mw == gpu.cap_mw_default;
        r.instance != capped.instance && r.at_us > until && is_default(&r.gpus[1])
    });
    assert_eq!(free.await.lease_until_us, None);

    // A lease that still runs is taken up again by a restarted agent. The reports of the two are distinguished
    // by the process, not by the time: two processes may read a fast clock some milliseconds apart.
    node.order(3, LASTING, vec![cap(1, 110)]).await;
    let capped = node.report("the cap stands", |r| r.gpus[1].cap_mw == Some(w(110))).await;
    agent.kill();
    let mut agent = node.agent();
    node.report("the lease is taken up", |r| {
        let stands = r.gpus[1].cap_mw == Some(w(110)) && r.observed_generation == 3;
        r.instance != capped.instance && stands
    })
    .await;

    // A clean stop sets the safe cap and reports it.
    agent.signal(libc::SIGTERM);
    assert!(agent.0.wait().unwrap().success());
    let last = node.report("the last word", |r| r.lease_until_us.is_none()).await;
    assert_eq!(last.gpus[1].cap_mw, last.gpus[1].cap_mw_default);
}

#[tokio::test]
async fn the_agent_outlives_nonsense_lost_gpus_and_the_bus() {
    let mut node = Node::new().await;
    let _agent = node.agent();
    node.report("it runs", |r| r.gpus.len() == 2).await;
    node.desired.put("n0", &"nonsense").await.unwrap();
    node.order(5, LASTING, vec![cap(0, 9_999), cap(1, 130)]).await;
    let report = node.report("what can be is obeyed", |r| r.gpus[1].cap_mw == Some(w(130))).await;
    let refused = report.gpus[0].last_error.as_ref().unwrap();
    assert!(refused.contains("9999 W"), "{refused}");
    assert_eq!(report.gpus[0].cap_mw, report.gpus[0].cap_mw_default, "the previous stands");

    // An older order is not obeyed; the newer one after it is, so the older has been read by then.
    node.order(4, LASTING, vec![cap(1, 140)]).await;
    node.order(6, LASTING, vec![cap(1, 130), cap(0, 160)]).await;
    let report = node.report("the newer one", |r| r.gpus[0].cap_mw == Some(w(160))).await;
    assert_eq!(report.gpus[1].cap_mw, Some(w(130)));

    node.fault("0", "lost");
    let report = node.report("a GPU is lost", |r| !r.gpus[0].healthy).await;
    assert!(report.gpus[1].healthy);
    assert_eq!(report.gpus[0].cap_mw, None);
    node.fault("0", "clear");
    node.report("it is back, as desired", |r| {
        r.gpus[0].healthy && r.gpus[0].cap_mw == Some(w(160))
    })
    .await;

    node.server.kill();
    node.server.restart().await;
    node.report("the bus is back", |_| true).await;
    node.order(7, LASTING, vec![cap(0, 170)]).await;
    node.report("it obeys again", |r| r.gpus[0].cap_mw == Some(w(170))).await;
}

#[tokio::test]
async fn windows_say_how_a_job_runs() {
    let node = Node::new().await;
    let (_agent, profiler) = (node.agent(), node.profiler());
    let mut sink =
        node.bus.subscribe(&Topic::GpuSampled.pattern(node.bus.cluster())).await.unwrap();
    let _job = node.job("burner", &[1]).await;
    let rated = |windows: &[JobWindow]| {
        windows.iter().filter(|window| window.steps_per_s.is_some()).count() >= 2
    };
    let windows: Vec<JobWindow> =
        node.stored(StreamName::Windows, "test-1", codec::decode_json, rated).await;
    let window = windows.iter().rfind(|window| window.steps_per_s.is_some()).unwrap();
    assert_eq!((window.gpu_type.as_str(), window.gpus.as_slice()), ("v100", &[1][..]));
    assert_eq!((window.gpus_total, window.nodes_total, window.early), (1, 1, true));
    assert!(window.neighbours.is_empty());
    let power = window.power_mw_gpus.unwrap();
    assert!((w(150)..w(260)).contains(&power), "{power}");
    let share = window.power_mw_job.unwrap().ratio(power);
    assert!(share > 0.99, "alone on its GPU it pays for all: {window:?}");
    assert!(window.steps_per_s_error.is_some() && window.cap_mw.is_some(), "{window:?}");
    let batch = tokio::time::timeout(PATIENCE, sink.next()).await.unwrap().unwrap();
    let batch = codec::decode_telemetry(&batch.payload).unwrap();
    assert!(batch.samples.iter().all(|sample| sample.power_mw.is_some()));

    // A cap divides windows: none has both.
    node.order(1, LASTING, vec![cap(1, 140)]).await;
    let capped = |windows: &[JobWindow]| {
        windows.iter().any(|window| window.cap_mw == Some(w(140)) && window.steps_per_s.is_some())
    };
    let more: Vec<JobWindow> =
        node.stored(StreamName::Windows, "test-2", codec::decode_json, capped).await;
    let slow = more.iter().rfind(|window| window.cap_mw == Some(w(140))).unwrap();
    assert!(slow.power_mw_gpus.unwrap() <= w(141), "{slow:?}");
    assert!(slow.steps_per_s.unwrap() < window.steps_per_s.unwrap(), "{slow:?}\n{window:?}");

    // After a kill and a restart the ledger continues without a gap, and the next windows belong to
    // the same job.
    profiler.kill();
    let killed = node.now();
    node.fault("0", "lost");
    let _profiler = node.profiler();
    let later = |entries: &[LedgerEntry]| entries.iter().any(|e| e.from_us > killed);
    let mut entries: Vec<LedgerEntry> =
        node.stored(StreamName::Ledger, "test", codec::decode_json, later).await;
    entries.sort_by_key(|entry| entry.from_us);
    for pair in entries.windows(2) {
        assert_eq!(pair[0].until_us, pair[1].from_us, "{pair:#?}");
    }
    let span = entries.last().unwrap().until_us.since(entries[0].from_us);
    let host: Energy = entries.iter().map(|entry| entry.energy_mj_host).sum();
    assert!(host.as_mj().abs_diff(w(100).over(span).as_mj()) <= entries.len() as u64);
    // Of the time in which the job runs.
    entries.retain(|entry| entry.from_us >= window.from_us);
    let span = entries.last().unwrap().until_us.since(entries[0].from_us);
    let gpu: Energy = entries.iter().filter_map(|entry| entry.energy_mj_gpus[1]).sum();
    assert!(gpu > w(100).over(span) && gpu < w(260).over(span), "{gpu} in {span:?}");
    let mine: Energy = entries.iter().flat_map(|e| &e.jobs).map(|job| job.energy_mj).sum();
    assert!(mine > Energy::ZERO && mine <= gpu);
    assert_eq!(entries.last().unwrap().energy_mj_gpus[0], None, "a lost GPU has no reading");
    let again = |windows: &[JobWindow]| windows.iter().any(|window| window.from_us > killed);
    let _: Vec<JobWindow> =
        node.stored(StreamName::Windows, "test-3", codec::decode_json, again).await;
    node.summary("the lost GPU is named", |s| s.gpus[0].error.is_some()).await;
}
