//! The placer's binary with a real nats-server and simulated node reports.
//!
//! Every wait is for a condition, with a deadline.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use wattle_common::job::{JobPhase, JobSpec};
use wattle_common::messages::{
    CancelJob, JobRecord, LaunchReport, LaunchState, LaunchedJob, NodeDesired, Reply, SubmitJob,
};
use wattle_common::subject::{Bucket, Reporter, RequestTopic};
use wattle_common::{ClusterId, JobId, NodeId};
use wattle_runtime::bus::{Bus, BusConfig, KvBucket};
use wattle_runtime::clock;
use wattle_runtime::testing::{NatsServer, until};
use wattle_testkit::{applied_gpu, job_spec, power_report};

/// Long enough for a machine that runs many tests at once.
const DEADLINE: Duration = Duration::from_secs(30);

struct Site {
    server: NatsServer,
    folder: tempfile::TempDir,
    placer: Option<Child>,
    bus: Bus,
    jobs: KvBucket,
    desired: KvBucket,
    actual: KvBucket,
}

fn node() -> NodeId {
    NodeId::new("n0").unwrap()
}

fn cluster() -> ClusterId {
    ClusterId::new("place").unwrap()
}

fn spec(job: &str, gpus: u32) -> JobSpec {
    JobSpec {
        checkpoint_signal: Some("SIGUSR1".to_owned()),
        consents_to_sharing: true,
        ..job_spec(job, gpus)
    }
}

impl Site {
    async fn new() -> Self {
        let server = NatsServer::start().await;
        let bus = Bus::connect(&BusConfig::at(&server.url()), cluster(), "test").await.unwrap();
        let jobs = bus.bucket(Bucket::Jobs).await.unwrap();
        let desired = bus.bucket(Bucket::Desired).await.unwrap();
        let actual = bus.bucket(Bucket::Actual).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut site = Self { server, folder, placer: None, bus, jobs, desired, actual };
        site.start_placer();
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn start_placer(&mut self) {
        self.placer = Some(self.spawn_placer());
    }

    fn spawn_placer(&self) -> Child {
        // Node timeouts beyond the test's duration: the simulated nodes report only on demand.
        let config = format!(
            "cluster = \"place\"\npolicy = \"fifo\"\nlease_ms = 3000\ntick_ms = 200\n\
             round_delay_ms = 10\nnode_stale_after_ms = 600000\nnode_lost_after_ms = 600000\n\
             nodes_expected = 1\ngpu_cap_w = 200\n[nats]\nurl = \"{}\"\n",
            self.server.url()
        );
        let file = self.path("placer.toml");
        fs::write(&file, config).unwrap();
        let log = fs::OpenOptions::new().create(true).append(true).open(self.path("placer.log"));
        Command::new(env!("CARGO_BIN_EXE_wattle-placer"))
            .arg("--config")
            .arg(file)
            .stdin(Stdio::null())
            .stderr(log.unwrap())
            .spawn()
            .unwrap()
    }

    /// Kills the placer with SIGKILL.
    fn kill_placer(&mut self) {
        let mut placer = self.placer.take().unwrap();
        placer.kill().unwrap();
        placer.wait().unwrap();
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("placer.log")).unwrap_or_default()
    }

    /// Sends a request until there is a reply.
    async fn request<T: serde::Serialize>(&self, topic: RequestTopic, message: &T) -> Reply {
        let subject = self.bus.request_subject(topic);
        self.until("a reply", async || self.bus.request::<T, Reply>(&subject, message).await.ok())
            .await
    }

    async fn submit(&self, spec: JobSpec) -> Reply {
        self.request(
            RequestTopic::JobSubmitted,
            &SubmitJob { spec, submission: None, user_proven: false },
        )
        .await
    }

    async fn until<T>(&self, what: &str, look: impl AsyncFn() -> Option<T>) -> T {
        match until(DEADLINE, look).await {
            Some(found) => found,
            None => panic!("{what}: timed out\nplacer:\n{}", self.log()),
        }
    }

    async fn record(&self, job: &str, wanted: impl Fn(&JobRecord) -> bool) -> JobRecord {
        self.until(job, async || {
            let (record, _) = self.jobs.get::<JobRecord>(job).await.ok()??;
            wanted(&record).then_some(record)
        })
        .await
    }

    async fn order(&self, what: &str, wanted: impl Fn(&NodeDesired) -> bool) -> NodeDesired {
        self.until(what, async || {
            let (desired, _) = self.desired.get::<NodeDesired>("n0").await.ok()??;
            wanted(&desired).then_some(desired)
        })
        .await
    }

    async fn power(&self, gpus: u32) {
        let report =
            power_report("n0", clock::now(), (0..gpus).map(|gpu| applied_gpu(gpu, "v100")));
        self.actual.put(&Reporter::Power.key(&node()), &report).await.unwrap();
    }

    async fn launch(&self, seen: u64, jobs: &[(&str, u32, LaunchState)]) {
        let report = LaunchReport {
            instance: String::new(),
            node: node(),
            at_us: clock::now(),
            observed_generation: seen,
            jobs: jobs
                .iter()
                .map(|(job, attempt, state)| LaunchedJob {
                    job: JobId::new(job).unwrap(),
                    attempt: *attempt,
                    gpus: vec![0],
                    state: state.clone(),
                    processes: None,
                    since_us: clock::now(),
                    log_path: format!("/log/{job}"),
                })
                .collect(),
        };
        self.actual.put(&Reporter::Launcher.key(&node()), &report).await.unwrap();
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Some(mut placer) = self.placer.take() {
            let _ = placer.kill();
            let _ = placer.wait();
        }
    }
}

fn accepted(job: &str) -> Reply {
    Reply::Accepted { job: JobId::new(job).unwrap() }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_placer_resumes_after_a_kill_at_every_stage() {
    let mut site = Site::new().await;
    // A job is stored before it is acknowledged: it survives a kill right after the reply.
    assert_eq!(site.submit(spec("a", 1)).await, accepted("a"));
    site.kill_placer();
    assert_eq!(site.record("a", |_| true).await.phase, JobPhase::Queued);
    site.start_placer();
    assert_eq!(site.submit(spec("a", 1)).await, accepted("a"), "acknowledged again");
    site.power(2).await;
    site.launch(0, &[]).await;
    let order = site.order("a is ordered", |order| order.jobs.len() == 1).await;
    assert_eq!((order.jobs[0].attempt, order.jobs[0].gpus.as_slice()), (1, &[0][..]));
    assert!(order.gpus.iter().all(|gpu| gpu.cap_mw.is_some()), "the site's cap: {order:?}");

    // Killed between order and report; the report arrives while no placer runs.
    site.kill_placer();
    site.launch(order.generation, &[("a", 1, LaunchState::Running)]).await;
    site.start_placer();
    let record = site.record("a", |record| record.phase == JobPhase::Running).await;
    assert_eq!((record.attempt, record.log_paths.as_slice()), (1, &["/log/a".to_owned()][..]));
    let renewed = site.order("renewed", |next| next.issued_at_us > order.issued_at_us).await;
    assert_eq!(renewed.generation, order.generation, "a restart keeps the generation");

    // Cancelled, killed, and then stopped on its node.
    let cancel = CancelJob { job: JobId::new("a").unwrap() };
    assert_eq!(site.request(RequestTopic::JobCancelled, &cancel).await, accepted("a"));
    let stop = site.order("a is to stop", |next| next.jobs.iter().all(|job| job.stop)).await;
    assert!(stop.generation > order.generation);
    site.kill_placer();
    site.launch(stop.generation, &[("a", 1, LaunchState::Stopped)]).await;
    site.start_placer();
    site.record("a", |record| record.phase == JobPhase::Cancelled).await;
    site.order("no orders are left", |next| next.jobs.is_empty()).await;

    // A last job runs to completion, and the service is registered.
    assert_eq!(site.submit(spec("b", 2)).await, accepted("b"));
    let order = site.order("b is ordered", |next| next.jobs.len() == 1).await;
    site.launch(order.generation, &[("b", 1, LaunchState::Exited { code: 0 })]).await;
    let record = site.record("b", |record| record.phase == JobPhase::Finished).await;
    assert_eq!((record.exit_code, record.reasons.len()), (Some(0), 1));
    let answer = ask_services(site.server.port(), "wattle-placer").await;
    assert!(answer.contains("\"cluster\":\"place\""), "{answer}");
}

/// The reply to the request of `nats micro ls`, in the plain NATS protocol.
async fn ask_services(port: u16, name: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let ask = format!(
        "CONNECT {{\"verbose\":false}}\r\nSUB answers 1\r\nPUB $SRV.PING.{name} answers 0\r\n\r\n"
    );
    stream.write_all(ask.as_bytes()).await.unwrap();
    let (mut received, mut piece) = (String::new(), [0; 4096]);
    tokio::time::timeout(DEADLINE, async {
        while !received.contains("io.nats.micro.v1.ping_response") {
            let count = stream.read(&mut piece).await.unwrap();
            assert!(count > 0, "nats-server closed the connection: {received}");
            received.push_str(&String::from_utf8_lossy(&piece[..count]));
        }
        received
    })
    .await
    .expect("a service of that name answers")
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_input_is_refused_or_logged_and_the_placer_continues() {
    let site = Site::new().await;
    // Corrupt values in every bucket the placer reads, under keys it reads.
    site.jobs.put("broken", &"no record").await.unwrap();
    site.actual.put("power.n0", &"no report").await.unwrap();
    site.actual.put("launcher.n0", &7).await.unwrap();
    let mut wrong = spec("a", 1);
    wrong.command.clear();
    let reply = site.submit(wrong).await;
    assert!(matches!(&reply, Reply::Refused { error } if error.contains("command is empty")));
    let reply = site.request(RequestTopic::JobSubmitted, &"no request").await;
    assert!(matches!(&reply, Reply::Refused { error } if error.contains("SubmitJob")), "{reply:?}");
    let log = site.until("both are logged", async || {
        let log = site.log();
        (log.contains("power.n0") && log.contains("launcher.n0")).then_some(log)
    });
    assert_eq!(log.await.matches("\"key\":\"power.n0\"").count(), 1, "once");
    site.power(1).await;
    site.launch(0, &[]).await;
    site.order("the node is known", |_| true).await;
    let reply = site.submit(spec("big", 2)).await;
    assert!(matches!(&reply, Reply::Refused { error } if error.contains("requests 2 GPUs")));
    assert_eq!(site.submit(spec("a", 1)).await, accepted("a"));
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_and_orders_survive_a_bus_restart() {
    let mut site = Site::new().await;
    site.power(1).await;
    site.launch(0, &[]).await;
    assert_eq!(site.submit(spec("a", 1)).await, accepted("a"));
    let order = site.order("a is ordered", |order| order.jobs.len() == 1).await;
    site.launch(order.generation, &[("a", 1, LaunchState::Running)]).await;
    site.record("a", |record| record.phase == JobPhase::Running).await;
    site.server.kill();
    site.server.restart().await;
    let after = site.order("renewed", |next| next.issued_at_us > order.issued_at_us).await;
    assert_eq!((after.generation, after.jobs.len()), (order.generation, 1));
    assert_eq!(site.submit(spec("b", 1)).await, accepted("b"));
    assert_eq!(site.record("a", |_| true).await.phase, JobPhase::Running);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_placer_of_the_cluster_is_detected() {
    let mut site = Site::new().await;
    site.power(1).await;
    site.launch(0, &[]).await;
    site.order("the first placer works", |_| true).await;
    let mut second = site.spawn_placer();
    // The second one to write finds the other's revision and exits.
    let first = site.placer.as_mut().unwrap();
    let ended =
        until(DEADLINE, async || second.try_wait().unwrap().or(first.try_wait().unwrap())).await;
    let _ = second.kill();
    let _ = second.wait();
    assert_eq!(ended.expect("one of them ends").code(), Some(1));
    assert!(site.log().contains("stop the other placer"), "{}", site.log());
}

/// A pending connection must not delay shutdown.
#[tokio::test(flavor = "multi_thread")]
async fn the_placer_stops_on_request_while_the_bus_is_unavailable() {
    let mut site = Site::new().await;
    site.kill_placer();
    site.server.kill();
    let mut placer = site.spawn_placer();
    let retries = async || site.log().contains("nats server not connected; retrying").then_some(());
    let waits = until(DEADLINE, retries).await;
    let id = placer.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    let ended = until(DEADLINE, async || placer.try_wait().unwrap()).await;
    let _ = placer.kill();
    let _ = placer.wait();
    assert!(waits.is_some(), "no retry:\n{}", site.log());
    assert!(ended.expect("the placer stops").success());
}

#[test]
fn invalid_usage_and_configuration_exit_with_code_2() {
    let placer = |arguments: &[&str]| {
        let ran = Command::new(env!("CARGO_BIN_EXE_wattle-placer")).args(arguments).output();
        let ran = ran.unwrap();
        (ran.status.code(), String::from_utf8_lossy(&ran.stderr).into_owned())
    };
    assert_eq!(placer(&[]).0, Some(2));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("placer.toml");
    let good = include_str!("../../../deploy/placer.toml");
    for (right, wrong, names) in [
        ("lease_ms", "lease_s", "lease_s"),
        ("policy = \"wattle\"", "policy = \"magic\"", "with NAME one of"),
        ("max_slowdown = 0.05", "max_slowdown = 50", "give a share from 0 to 10"),
        ("node_lost_after_ms = 120_000", "node_lost_after_ms = 1", "node_stale_after_ms"),
        ("tenants_max = 2", "tenants_max = 0", "greater than 0"),
    ] {
        fs::write(&file, good.replacen(right, wrong, 1)).unwrap();
        let (code, stderr) = placer(&["--config", file.to_str().unwrap()]);
        assert!(code == Some(2) && stderr.contains(names), "{names}: {stderr}");
    }
}

#[test]
fn the_example_configuration_is_valid() {
    let text = include_str!("../../../deploy/placer.toml");
    let config: wattle_placer::Config =
        wattle_runtime::config::parse(text, Path::new("placer.toml")).unwrap();
    config.check().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn full_bucket_refuses_submissions_and_the_placer_keeps_serving() {
    let mut site = Site::new().await;
    site.power(2).await;
    site.launch(0, &[]).await;
    assert_eq!(site.submit(spec("a", 1)).await, accepted("a"));
    let mut fillers = Vec::new();
    for len in [1_000_000, 20_000, 400] {
        let value = "x".repeat(len);
        loop {
            let filler = format!("filler-{}", fillers.len());
            if site.jobs.put(&filler, &value).await.is_err() {
                break;
            }
            fillers.push(filler);
        }
    }
    assert!(fillers.len() > 100);
    for _ in 0..3 {
        let reply = site.submit(spec("b", 1)).await;
        let Reply::Refused { error } = &reply else { panic!("{reply:?}") };
        assert!(error.contains("full"), "{error}");
    }
    assert!(site.log().contains("submissions are refused: bucket jobs is"), "{}", site.log());
    // It still answers, and the state of known jobs changes.
    assert_eq!(site.submit(spec("a", 1)).await, accepted("a"));
    let cancel = CancelJob { job: JobId::new("a").unwrap() };
    assert_eq!(site.request(RequestTopic::JobCancelled, &cancel).await, accepted("a"));
    assert!(site.placer.as_mut().unwrap().try_wait().unwrap().is_none(), "{}", site.log());
    for filler in &fillers {
        site.jobs.delete(filler).await.unwrap();
    }
    site.until("room", async || (site.submit(spec("b", 1)).await == accepted("b")).then_some(()))
        .await;
    let ended = |record: &JobRecord| {
        record.next_phase == Some(JobPhase::Cancelled) || record.phase == JobPhase::Cancelled
    };
    site.record("a", ended).await;
}
