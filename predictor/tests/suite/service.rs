//! The service against a real nats-server, beside the registry that passes its surfaces on: what
//! it reads, writes, survives and remembers.

#![cfg(feature = "service")]

use std::path::Path;
use std::time::Duration;

use crate::common::{class, job, point, window};
use wattle_common::id::PredictorId;
use wattle_common::job::{JobPhase, JobSpec};
use wattle_common::messages::{JobRecord, JobWindow, Surface};
use wattle_common::subject::{Bucket, JobTopic, Subject};
use wattle_common::{ClusterId, Timestamp};
use wattle_predictor::PredictorConfig;
use wattle_predictor::method::Method;
use wattle_predictor::shell::{ServiceConfig, run};
use wattle_registry::RegistryConfig;
use wattle_registry::service as registry;
use wattle_runtime::bus::{Bus, BusConfig, BusError, KvBucket};
use wattle_runtime::shell::Shutdown;
use wattle_runtime::testing::{NatsServer, until};
use wattle_testkit::{job_record, job_spec};

/// Far more than any of it takes on a busy machine.
const WITHIN: Duration = Duration::from_secs(30);

struct Bench {
    server: NatsServer,
    bus: Bus,
    jobs: KvBucket,
    surfaces: KvBucket,
}

impl Bench {
    async fn new() -> Self {
        let server = NatsServer::start().await;
        let cluster = ClusterId::new("lab").unwrap();
        let bus = Bus::connect(&BusConfig::at(&server.url()), cluster, "test").await.unwrap();
        let jobs = bus.bucket(Bucket::Jobs).await.unwrap();
        let surfaces = bus.bucket(Bucket::Surfaces).await.unwrap();
        Self { server, bus, jobs, surfaces }
    }

    fn serve(&self) -> (Shutdown, tokio::task::JoinHandle<Result<(), BusError>>) {
        let config = ServiceConfig {
            cluster: self.bus.cluster().clone(),
            write_interval_wall_ms: 50,
            model: PredictorConfig { publish_interval_ms: 50, ..PredictorConfig::shipped() },
            nats: BusConfig::at(&self.server.url()),
        };
        let contest = registry::ServiceConfig {
            cluster: self.bus.cluster().clone(),
            discovery_interval_wall_ms: 1_000,
            lease_wall_ms: 10_000,
            registry: RegistryConfig::shipped(),
            nats: BusConfig::at(&self.server.url()),
        };
        let shutdown = Shutdown::default();
        let stop = shutdown.clone();
        let task = tokio::spawn(async move {
            let (predicted, kept) = tokio::join!(run(config, &stop), registry::run(contest, &stop));
            predicted.and(kept)
        });
        (shutdown, task)
    }

    async fn record(&self, name: &str, phase: JobPhase) {
        let spec = JobSpec {
            workload: Some(class("a")),
            submitted_at_us: Timestamp::from_s(1),
            ..job_spec(name, 1)
        };
        let record = JobRecord { attempt: 1, ..job_record(spec, phase) };
        self.jobs.put(name, &record).await.unwrap();
    }

    async fn close(&self, window: &JobWindow) {
        let cluster = self.bus.cluster().clone();
        let (node, job) = (window.node.clone(), window.job.clone());
        let id = format!("{job}-{}", window.from_us);
        let subject = Subject::of_job(cluster, JobTopic::WindowClosed, node, job);
        self.bus.store(&subject, &id, window).await.unwrap();
    }

    /// The job's surface once `wanted` is true of it.
    async fn surface(&self, name: &str, wanted: impl Fn(&Surface) -> bool) -> Surface {
        let mut watch = self.surfaces.watch().await.unwrap();
        let found = async {
            loop {
                let change = watch.next().await.expect("the bus is there");
                let value = change.value.filter(|_| change.key == name);
                if let Some(surface) = value.and_then(|v| serde_json::from_slice(&v).ok())
                    && wanted(&surface)
                {
                    return surface;
                }
            }
        };
        tokio::time::timeout(WITHIN, found)
            .await
            .unwrap_or_else(|_| panic!("no such surface of {name}"))
    }

    async fn no_surface(&self, name: &str) {
        let mut watch = self.surfaces.watch().await.unwrap();
        let gone = async {
            loop {
                if self.surfaces.get_bytes(name).await.unwrap().is_none() {
                    return;
                }
                watch.next().await.expect("the bus is there");
            }
        };
        tokio::time::timeout(WITHIN, gone)
            .await
            .unwrap_or_else(|_| panic!("{name} is still there"));
    }
}

#[tokio::test]
async fn a_jobs_life_from_prior_to_removal_and_what_outlives_it() {
    let bench = Bench::new().await;
    let (shutdown, task) = bench.serve();
    bench.record("one", JobPhase::Queued).await;
    let prior = bench.surface("one", |_| true).await;
    assert_eq!((prior.windows, prior.class.clone()), (0, Some(class("a"))));

    // A corrupt payload in the stream is passed over; so is a window of nonsense.
    let mut nonsense = window("one", Some("a"), 0);
    nonsense.until_us = nonsense.from_us;
    bench.close(&nonsense).await;
    let subject = Subject::of_job(
        bench.bus.cluster().clone(),
        JobTopic::WindowClosed,
        nonsense.node.clone(),
        job("one"),
    );
    bench.bus.publish_bytes(&subject, b"{\"job\": \x00".to_vec()).await.unwrap();
    for minute in 1..=4 {
        bench.close(&window("one", Some("a"), minute)).await;
    }
    let learned = bench.surface("one", |s| s.windows == 4).await;
    let rate = point(&learned, None, &[]).steps_per_s.unwrap();
    assert!((rate.mean - 10.0).abs() < 0.2 && rate.high / rate.low < 1.2, "{rate:?}");

    // Stopped and started again, it still knows the job, from what it stored.
    shutdown.request();
    task.await.unwrap().unwrap();
    let (shutdown, task) = bench.serve();
    bench.close(&window("one", Some("a"), 5)).await;
    bench.surface("one", |s| s.windows == 5).await;

    // The job ends; its surface goes, and its class stays for the next one.
    bench.record("one", JobPhase::Finished).await;
    bench.no_surface("one").await;
    bench.record("two", JobPhase::Queued).await;
    let next = bench.surface("two", |_| true).await;
    assert_eq!(next.windows, 0);
    assert!((point(&next, None, &[]).steps_per_s.unwrap().mean - 10.0).abs() < 0.3);
    shutdown.request();
    task.await.unwrap().unwrap();

    // Even over a restart, and what ended meanwhile is tidied up.
    bench.record("two", JobPhase::Cancelled).await;
    bench.record("three", JobPhase::Queued).await;
    let (shutdown, task) = bench.serve();
    let next = bench.surface("three", |_| true).await;
    assert!((point(&next, None, &[]).steps_per_s.unwrap().mean - 10.0).abs() < 0.3);
    bench.no_surface("two").await;
    shutdown.request();
    task.await.unwrap().unwrap();
}

/// How far predictions were off is stored: after a restart the intervals are as they were, and not
/// those of a predictor that was never wrong.
#[tokio::test]
async fn intervals_are_the_same_after_a_restart() {
    let bench = Bench::new().await;
    let (shutdown, task) = bench.serve();
    let names = ["a1", "a2", "a3", "one"];
    for name in names {
        bench.record(name, JobPhase::Running).await;
        bench.surface(name, |_| true).await;
        // Far wilder than its windows promise.
        for minute in 1..=8 {
            let mut window = window(name, Some("a"), minute);
            let wild = [1.3, 0.8, 1.0, 1.25][minute as usize % 4];
            window.steps_per_s = window.steps_per_s.map(|rate| rate * wild);
            window.steps_per_s_error = Some(0.01);
            bench.close(&window).await;
        }
        bench.surface(name, |s| s.windows == 8).await;
    }
    let width = |surface: &Surface| {
        let rate = point(surface, None, &[]).steps_per_s.unwrap();
        rate.high / rate.low
    };
    let before = bench.surface("one", |s| s.windows == 8).await;
    shutdown.request();
    task.await.unwrap().unwrap();
    let stored = bench.bus.bucket(Bucket::Knowledge).await.unwrap();
    let keys = stored.keys().await.unwrap();
    let scores: Vec<&String> = keys.iter().filter(|key| key.contains(".scores.")).collect();
    assert!(!scores.is_empty(), "{keys:?}");
    let (shutdown, task) = bench.serve();
    let after = bench.surface("one", |s| s.windows == 8 && s.at_us > before.at_us).await;
    let (was, is) = (width(&before), width(&after));
    assert!((is / was - 1.0).abs() < 0.01, "{is} from {was}");

    // Without what was stored of scores they are others.
    shutdown.request();
    task.await.unwrap().unwrap();
    for key in scores {
        stored.delete(key).await.unwrap();
    }
    let (shutdown, task) = bench.serve();
    let unscored = bench.surface("one", |s| s.windows == 8 && s.at_us > after.at_us).await;
    assert!((width(&unscored) / is - 1.0).abs() > 0.1, "{} and {is}", width(&unscored));
    shutdown.request();
    task.await.unwrap().unwrap();
}

#[tokio::test]
async fn it_outlives_the_server() {
    let mut bench = Bench::new().await;
    let (shutdown, task) = bench.serve();
    bench.record("one", JobPhase::Running).await;
    bench.surface("one", |s| s.windows == 0).await;
    bench.server.restart().await;
    let w = window("one", Some("a"), 1);
    let cluster = bench.bus.cluster().clone();
    let subject = Subject::of_job(cluster, JobTopic::WindowClosed, w.node.clone(), job("one"));
    let stored = async || bench.bus.store(&subject, "w1", &w).await.ok();
    until(WITHIN, stored).await.expect("the server is back");
    bench.surface("one", |s| s.windows == 1).await;
    shutdown.request();
    task.await.unwrap().unwrap();
}

#[test]
fn the_example_file_is_what_ships_and_a_slip_is_named() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/predictor.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let config: ServiceConfig = wattle_runtime::config::parse(&text, &path).unwrap();
    assert_eq!(config.model, PredictorConfig::shipped());
    for method in [Method::Statistical, Method::Neighbour] {
        let name = format!("{method:?}").to_lowercase();
        let path = path.with_file_name(format!("predictor-{name}.toml"));
        let text = std::fs::read_to_string(&path).unwrap();
        let config: ServiceConfig = wattle_runtime::config::parse(&text, &path).unwrap();
        let name = PredictorId::new(&name).unwrap();
        let shipped = PredictorConfig { name, method, ..PredictorConfig::shipped() };
        assert_eq!(config.model, shipped, "{}", path.display());
    }
    let slip = text.replace("jobs_max", "job_max");
    let error = wattle_runtime::config::parse::<ServiceConfig>(&slip, &path).err().unwrap();
    assert!(error.to_string().contains("job_max"), "{error}");
    let zero = text.replace("points_max = 256", "points_max = 0");
    assert!(wattle_runtime::config::parse::<ServiceConfig>(&zero, &path).is_err());
}

#[test]
fn the_registrys_example_file_is_what_ships() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/registry.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let config: registry::ServiceConfig = wattle_runtime::config::parse(&text, &path).unwrap();
    assert_eq!(config.registry, RegistryConfig::shipped());
    let slip = text.replace("silent_after_ms", "silence_ms");
    let error = wattle_runtime::config::parse::<registry::ServiceConfig>(&slip, &path).err();
    assert!(error.unwrap().to_string().contains("silence_ms"));
}
