//! The web page of 1,000 nodes and 10,000 jobs with ten viewers: processor time and memory of the service,
//! time to the first view, and memory of the page.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::Instant;
use wattle_common::job::JobPhase;
use wattle_common::messages::{
    AppliedGpu, GpuSummary, JobEnergy, JobRecord, JobSummary, LaunchState, LedgerEntry,
    NodeSummary, Prediction, RecordedReason,
};
use wattle_common::subject::{Bucket, NodeTopic, Subject};
use wattle_common::{ClusterId, Energy, Frequency, Power, Timestamp};
use wattle_runtime::bus::{Bus, BusConfig, KvBucket};
use wattle_runtime::clock;
use wattle_runtime::testing::NatsServer;
use wattle_testkit as testkit;
use wattle_tests::browser::{self, Browser};
use wattle_tests::examples::example;
use wattle_tests::http::http;
use wattle_tests::load::Memory;
use wattle_tests::{PATIENCE, program, until};

const GPUS: u32 = 8;
/// The pages of the ten viewers.
const VIEWERS: [&str; 10] = [
    "overview",
    "overview",
    "overview",
    "overview",
    "jobs",
    "jobs&show=queued",
    "jobs&q=user-7",
    "nodes",
    "energy",
    "job&job=job-00007",
];

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Number that varies with node, GPU and time, watts.
fn watts(node: u64, gpu: u32, second: u64) -> u64 {
    120 + (node * 7 + u64::from(gpu) * 13 + second * 11) % 130
}

fn job_id(number: u64) -> String {
    format!("job-{number:05}")
}

/// A running job for each GPU of half of the cluster; the others wait.
fn record(number: u64, running: u64, second: u64) -> JobRecord {
    let mut spec = testkit::job_spec(&job_id(number), 1);
    spec.user = Some(format!("user-{}", number % 50));
    spec.workload = Some(testkit::workload("resnet50-imagenet-b128"));
    spec.submitted_at_us = Timestamp::from_us(clock::now().as_us() - number * 1_000_000);
    let phase = if number < running { JobPhase::Running } else { JobPhase::Queued };
    let mut placed = testkit::point(1, 10.0, 220.0);
    placed.cap_mw = Some(Power::from_w(200));
    let alternatives = (0..12).map(|i| testkit::point(1, 9.0 + f64::from(i), 200.0)).collect();
    let prediction = Prediction {
        at_us: clock::now(),
        predictor: testkit::predictor("physical"),
        gpu_type: "a100".to_owned(),
        windows: 12,
        basis: Some("12 windows of this job on a100".to_owned()),
        placed: Some(placed),
        alternatives,
    };
    let reason = |number: u32| {
        let (decision, share) = (
            format!("placed on n{number}:0"),
            "1 GPU: its share of the GPUs, which the policy divides among all jobs",
        );
        RecordedReason::new(clock::now(), "wattle", decision, share.to_owned())
    };
    let node = format!("n{:04}", number / u64::from(GPUS));
    JobRecord {
        placement: (phase == JobPhase::Running)
            .then(|| testkit::placement([(node.as_str(), [(number % u64::from(GPUS)) as u32])])),
        started_at_us: (phase == JobPhase::Running).then(clock::now),
        attempt: u32::from(phase == JobPhase::Running),
        step: Some(1_000 + second),
        steps_total: Some(100_000),
        step_at_us: Some(clock::now()),
        steps_per_s: Some(10.0),
        energy_mj: Some(Energy::from_j(1_000 * (second + 1))),
        prediction_placed: Some(Box::new(prediction.clone())),
        prediction_last: Some(Box::new(prediction)),
        reasons: (0..4).map(reason).collect(),
        ..testkit::job_record(spec, phase)
    }
}

/// The jobs of a node that run.
fn jobs_of(node: u64, running: u64) -> impl Iterator<Item = (u64, u32)> {
    (0..GPUS)
        .map(move |gpu| (node * u64::from(GPUS) + u64::from(gpu), gpu))
        .filter(move |j| j.0 < running)
}

fn summary(node: u64, running: u64, second: u64) -> NodeSummary {
    let gpu = |gpu| GpuSummary {
        gpu,
        power_mw_mean: Some(Power::from_w(watts(node, gpu, second))),
        energy_mj_total: Some(Energy::from_j(second * 200)),
        utilization_gpu_percent_mean: Some((second % 100) as u8),
        meter: None,
        memory_used_mib: Some(20_000 + second),
        memory_free_mib: None,
        clock_mhz: Some(Frequency::from_mhz(1_410)),
        cap_mw: Some(Power::from_w(300)),
        cap_mw_enforced: None,
        temperature_c: Some(60),
        throttle_reasons: Some(0),
        jobs: jobs_of(node, running)
            .filter(|job| job.1 == gpu)
            .map(|job| testkit::job(&job_id(job.0)))
            .collect(),
        error: None,
    };
    let job = |(number, gpu): (u64, u32)| JobSummary {
        job: testkit::job(&job_id(number)),
        admission: None,
        power_mw_mean: Some(Power::from_w(watts(node, gpu, second))),
        energy_mj_open: Some(Energy::from_j(second % 60 * 200)),
        unmetered_ms_open: 0,
    };
    NodeSummary {
        node: testkit::node(&format!("n{node:04}")),
        at_us: clock::now(),
        span_ms: 1_000,
        observed_generation: 0,
        samples: 80,
        readings_failed: 0,
        gpus: (0..GPUS).map(gpu).collect(),
        jobs: jobs_of(node, running).map(job).collect(),
        power_mw_host: Some(Power::from_w(500)),
        ledger_from_us: Some(clock::now()),
    }
}

/// Writes what services write: at the beginning all of it, then at their rates.
struct Cluster {
    bus: Bus,
    actual: KvBucket,
    jobs: KvBucket,
    nodes: u64,
    running: u64,
}

impl Cluster {
    async fn report(&self, node: u64) {
        let name = format!("n{node:04}");
        let gpu = |gpu| AppliedGpu {
            cap_mw: Some(Power::from_w(300)),
            ..testkit::applied_gpu(gpu, "a100")
        };
        let report = testkit::power_report(&name, clock::now(), (0..GPUS).map(gpu));
        self.actual.put(&format!("power.{name}"), &report).await.expect("it is stored");
        let job = |(number, gpu): (u64, u32)| {
            testkit::launched_job(&job_id(number), 1, [gpu], LaunchState::Running, clock::now())
        };
        let jobs = jobs_of(node, self.running).map(job);
        let report = testkit::launch_report(&name, clock::now(), 1, jobs);
        self.actual.put(&format!("launcher.{name}"), &report).await.expect("it is stored");
    }

    async fn store(&self, job: u64, second: u64) {
        let record = record(job, self.running, second);
        self.jobs.put(&job_id(job), &record).await.expect("it is stored");
    }

    /// One second: all summaries, heartbeats every ten seconds, ledger entries and records once a minute.
    async fn second(&self, second: u64) {
        let cluster = || self.bus.cluster().clone();
        for node in 0..self.nodes {
            let summary = summary(node, self.running, second);
            let subject =
                Subject::of_node(cluster(), NodeTopic::NodeSummarized, summary.node.clone());
            let _ = self.bus.publish(&subject, &summary).await;
            if node % 10 == second % 10 {
                self.report(node).await;
            }
            if node % 60 == second % 60 {
                let now = clock::now();
                let from = Timestamp::from_us(now.as_us() - 60_000_000);
                let job = |(number, _): (u64, u32)| JobEnergy {
                    job: testkit::job(&job_id(number)),
                    admission: None,
                    energy_mj: Energy::from_j(12_000),
                    user: Some(format!("user-{}", number % 50)),
                    project: None,
                    compared: None,
                };
                let entry = LedgerEntry {
                    energy_mj_gpus: vec![Some(Energy::from_j(13_000)); GPUS as usize],
                    jobs: jobs_of(node, self.running).map(job).collect(),
                    ..testkit::ledger_entry(
                        summary.node.as_str(),
                        from,
                        now,
                        Energy::from_j(30_000),
                    )
                };
                let subject = Subject::of_node(cluster(), NodeTopic::EnergyMetered, summary.node);
                let _ = self.bus.publish(&subject, &entry).await;
            }
        }
        for job in (0..self.running).filter(|job| job % 60 == second % 60) {
            self.store(job, second).await;
        }
    }
}

/// The service.
struct Page {
    child: Child,
    port: u16,
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Page {
    async fn start(folder: &std::path::Path, url: &str) -> Self {
        let mut table = example("web", url, folder).unwrap();
        table.insert("listen".into(), "127.0.0.1:0".into());
        let (file, log) = (folder.join("web.toml"), folder.join("web.log"));
        std::fs::write(&file, table.to_string()).unwrap();
        let output = std::fs::File::create(&log).unwrap();
        let child = Command::new(program("wattle-web"))
            .arg("--config")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap();
        let port = until("the page is served", async || {
            let text = std::fs::read_to_string(&log).ok()?;
            text.split("http://127.0.0.1:").nth(1)?.split('"').next()?.parse().ok()
        });
        Self { port: port.await, child }
    }

    /// Processor time so far.
    fn time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let after = stat.rsplit(')').next().unwrap();
        let ticks: u64 = after
            .split_whitespace()
            .skip(11)
            .take(2)
            .map(|text| text.parse::<u64>().unwrap())
            .sum();
        // Linux counts a hundred ticks per second.
        Duration::from_millis(ticks * 10)
    }
}

/// A viewer that reads events until it is dropped; the bytes are counted.
async fn view(port: u16, topic: &str, bytes: std::sync::Arc<std::sync::atomic::AtomicU64>) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let request = format!("GET /events?topic={topic} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut buffer = vec![0; 64 << 10];
    loop {
        match stream.read(&mut buffer).await.unwrap() {
            0 => panic!("the stream of {topic} has ended"),
            len => {
                bytes.fetch_add(len as u64, std::sync::atomic::Ordering::Relaxed);
            }
        }
    }
}

/// Measures; `LOAD_NODES`, `LOAD_JOBS`, `LOAD_SECONDS` and `LOAD_PAGE_SECONDS`, how long the page stays open in
/// Chromium, change it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement of minutes, with release builds in WATTLE_PROGRAMS"]
async fn measure_web_page() {
    let (nodes, jobs) = (setting("LOAD_NODES", 1_000), setting("LOAD_JOBS", 10_000));
    let seconds = setting("LOAD_SECONDS", 60);
    let server = NatsServer::start().await;
    let cluster = ClusterId::new("main").unwrap();
    let bus = Bus::connect_within(&BusConfig::at(&server.url()), cluster, "load", PATIENCE)
        .await
        .unwrap();
    bus.create_storage().await.unwrap();
    let running = (jobs / 2).min(nodes * u64::from(GPUS));
    let cluster = Cluster {
        actual: bus.bucket(Bucket::Actual).await.unwrap(),
        jobs: bus.bucket(Bucket::Jobs).await.unwrap(),
        bus,
        nodes,
        running,
    };
    for node in 0..nodes {
        cluster.report(node).await;
    }
    for job in 0..jobs {
        cluster.store(job, 0).await;
    }
    let folder = tempfile::tempdir().unwrap();
    let page = Page::start(folder.path(), &server.url()).await;
    let port = page.port;
    let writer = tokio::spawn(async move {
        let mut tick = tokio::time::interval(Duration::from_secs(1));
        for second in 1.. {
            tick.tick().await;
            cluster.second(second).await;
        }
    });
    let total = format!("\"queued\":{}", jobs - running);
    until("the page knows all nodes and jobs", async || {
        let answer = http(port, "GET", "/api/content?topic=overview", &[], "").await.ok()?;
        (answer.body.contains(&total) && answer.body.contains("\"now_w\"")).then_some(())
    })
    .await;
    let start = Instant::now();
    let answer = http(port, "GET", "/api/content?topic=overview", &[], "").await.unwrap();
    println!(
        "{nodes} nodes, {jobs} jobs: overview of {} kB after {:.0?}",
        answer.body.len() / 1_000,
        start.elapsed()
    );
    let idle = page.time();
    tokio::time::sleep(Duration::from_secs(20)).await;
    let idle = (page.time() - idle).as_secs_f64() / 20.0;
    println!("without a viewer: {:.2} % of a core", 100.0 * idle);

    let bytes = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let mut viewers = JoinSet::new();
    for topic in VIEWERS {
        viewers.spawn(view(port, topic, std::sync::Arc::clone(&bytes)));
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (before, sent, start) =
        (page.time(), bytes.load(std::sync::atomic::Ordering::Relaxed), Instant::now());
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let took = start.elapsed().as_secs_f64();
    let used = (page.time() - before).as_secs_f64() / took;
    let rate = (bytes.load(std::sync::atomic::Ordering::Relaxed) - sent) as f64 / took / 1e3;
    let memory = Memory::of(page.child.id());
    println!(
        "{} viewers over {took:.0} s: {:.2} % of a core, {rate:.0} kB/s in all, memory {memory}",
        VIEWERS.len(),
        100.0 * used
    );
    assert!(viewers.try_join_next().is_none(), "a viewer was disconnected");
    viewers.abort_all();

    if browser::is_installed() {
        let browser = Browser::start().await;
        browser.open(&format!("http://127.0.0.1:{port}/")).await;
        browser.until_text("main h1", "running").await;
        let first = browser
            .run("return performance.getEntriesByName('first-view')[0]?.startTime ?? -1")
            .await;
        println!("first view in Chromium: {first} ms after the navigation");
        let (open, pause) = (setting("LOAD_PAGE_SECONDS", seconds), seconds.max(60) / 3);
        for second in (0..=open).step_by(pause as usize) {
            let (memory, elements) = browser.memory().await;
            let service = Memory::of(page.child.id());
            println!(
                "page after {second} s: {memory:.1} MB, {elements} elements; service {service}"
            );
            tokio::time::sleep(Duration::from_secs(pause)).await;
        }
        browser.end().await;
    }
    writer.abort();
}
