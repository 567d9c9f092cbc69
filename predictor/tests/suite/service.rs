//! The service with a real nats-server: inputs, proposed surfaces, restarts and stored state.

#![cfg(feature = "service")]

use std::path::Path;
use std::time::Duration;

use crate::common::{class, job, point, window};
use wattle_common::id::PredictorId;
use wattle_common::job::{JobPhase, JobSpec};
use wattle_common::messages::{JobRecord, JobWindow, Surface};
use wattle_common::subject::{Bucket, JobTopic, PredictorKey, Subject};
use wattle_common::{AdmissionId, ClusterId, Timestamp};
use wattle_predictor::PredictorConfig;
use wattle_predictor::method::Method;
use wattle_predictor::shell::{ServiceConfig, run};
use wattle_runtime::bus::{Bus, BusConfig, BusError, KvBucket};
use wattle_runtime::shell::Shutdown;
use wattle_runtime::testing::{NatsServer, until};
use wattle_testkit::{job_record, job_spec};

/// Limit of each wait, far above the usual duration on a loaded machine.
const WITHIN: Duration = wattle_runtime::testing::HANG;
/// Interval at which surfaces are requested.
const REQUEST_INTERVAL: Duration = Duration::from_millis(500);

struct Bench {
    server: NatsServer,
    bus: Bus,
    jobs: KvBucket,
}

impl Bench {
    async fn new() -> Self {
        let server = NatsServer::start().await;
        let cluster = ClusterId::new("lab").unwrap();
        let bus = Bus::connect(&BusConfig::at(&server.url()), cluster, "test").await.unwrap();
        let jobs = bus.bucket(Bucket::Jobs).await.unwrap();
        Self { server, bus, jobs }
    }

    fn serve(&self) -> (Shutdown, tokio::task::JoinHandle<Result<(), BusError>>) {
        let config = ServiceConfig {
            cluster: self.bus.cluster().clone(),
            write_interval_wall_ms: 50,
            service_lease_wall_ms: 1_000,
            model: PredictorConfig { publish_interval_ms: 50, ..PredictorConfig::shipped() },
            metrics: wattle_common::config::MetricsConfig::default(),
            nats: BusConfig::at(&self.server.url()),
        };
        let shutdown = Shutdown::default();
        let stop = shutdown.clone();
        let task = tokio::spawn(async move { run(config, &stop).await });
        (shutdown, task)
    }

    async fn record(&self, name: &str, phase: JobPhase) {
        self.record_submission(name, phase, None).await;
    }

    async fn record_submission(&self, name: &str, phase: JobPhase, admission: Option<AdmissionId>) {
        let spec = JobSpec {
            workload: Some(class("a")),
            submitted_at_us: Timestamp::from_s(1),
            ..job_spec(name, 1)
        };
        let record = JobRecord { admission, attempt: 1, ..job_record(spec, phase) };
        self.jobs.put(name, &record).await.unwrap();
    }

    async fn close(&self, window: &JobWindow) {
        let cluster = self.bus.cluster().clone();
        let (node, job) = (window.node.clone(), window.job.clone());
        let id = format!("{job}-{}", window.from_us);
        let subject = Subject::of_job(cluster, JobTopic::WindowClosed, node, job);
        self.bus.store(&subject, &id, window).await.unwrap();
    }

    /// The first proposed surface of the job for which `wanted` is true. Requests all surfaces, as the
    /// registry does, until it arrives.
    async fn surface(&self, name: &str, wanted: impl Fn(&Surface) -> bool) -> Surface {
        let cluster = self.bus.cluster().clone();
        let predictor = PredictorConfig::shipped().name;
        let subject = Subject::of_proposal(cluster, predictor, job(name)).to_string();
        let mut proposals = self.bus.subscribe(&subject).await.unwrap();
        self.bus.flush().await;
        let predictors = self.bus.bucket(Bucket::Predictors).await.unwrap();
        let key = PredictorKey::Champion.to_string();
        let found = async {
            loop {
                predictors.put(&key, &"physical").await.unwrap();
                let next = tokio::time::timeout(REQUEST_INTERVAL, proposals.next()).await;
                let Ok(delivery) = next else { continue };
                let payload = delivery.expect("the bus is connected").payload;
                let surface: Surface = serde_json::from_slice(&payload).unwrap();
                if wanted(&surface) {
                    return surface;
                }
            }
        };
        tokio::time::timeout(WITHIN, found)
            .await
            .unwrap_or_else(|_| panic!("no such surface of {name}"))
    }

    /// Waits until the stored state of the job is deleted.
    async fn until_removed(&self, name: &str) {
        let knowledge = self.bus.bucket(Bucket::Knowledge).await.unwrap();
        let key = format!("{}.job.{name}", PredictorConfig::shipped().name);
        let gone = async || knowledge.get_bytes(&key).await.unwrap().is_none().then_some(());
        until(WITHIN, gone).await.unwrap_or_else(|| panic!("{key} is still stored"));
    }
}

#[tokio::test]
async fn class_history_survives_the_job_and_a_restart() {
    let bench = Bench::new().await;
    let (shutdown, task) = bench.serve();
    bench.record("one", JobPhase::Queued).await;
    let prior = bench.surface("one", |_| true).await;
    assert_eq!((prior.windows, prior.class.clone()), (0, Some(class("a"))));

    // A corrupt payload and an invalid window are skipped.
    let mut invalid = window("one", Some("a"), 0);
    invalid.until_us = invalid.from_us;
    bench.close(&invalid).await;
    let subject = Subject::of_job(
        bench.bus.cluster().clone(),
        JobTopic::WindowClosed,
        invalid.node.clone(),
        job("one"),
    );
    bench.bus.publish_bytes(&subject, b"{\"job\": \x00".to_vec()).await.unwrap();
    for minute in 1..=4 {
        bench.close(&window("one", Some("a"), minute)).await;
    }
    let learned = bench.surface("one", |s| s.windows == 4).await;
    let rate = point(&learned, None, &[]).steps_per_s.unwrap();
    assert!((rate.mean - 10.0).abs() < 0.2 && rate.high / rate.low < 1.2, "{rate:?}");

    // A restart restores the job's windows.
    shutdown.request();
    task.await.unwrap().unwrap();
    let (shutdown, task) = bench.serve();
    bench.close(&window("one", Some("a"), 5)).await;
    bench.surface("one", |s| s.windows == 5).await;

    // The job's state is removed at its end; the class history is the prior of the next job.
    bench.record("one", JobPhase::Finished).await;
    bench.until_removed("one").await;
    bench.record("two", JobPhase::Queued).await;
    let next = bench.surface("two", |_| true).await;
    assert_eq!(next.windows, 0);
    assert!((point(&next, None, &[]).steps_per_s.unwrap().mean - 10.0).abs() < 0.3);
    shutdown.request();
    task.await.unwrap().unwrap();

    // The same after a restart; jobs that ended meanwhile are removed.
    bench.record("two", JobPhase::Cancelled).await;
    bench.record("three", JobPhase::Queued).await;
    let (shutdown, task) = bench.serve();
    let next = bench.surface("three", |_| true).await;
    assert!((point(&next, None, &[]).steps_per_s.unwrap().mean - 10.0).abs() < 0.3);
    bench.until_removed("two").await;
    shutdown.request();
    task.await.unwrap().unwrap();
}

/// A name is submitted again while the service is down: its stored windows are of another job.
#[tokio::test]
async fn a_restart_restores_no_windows_of_another_submission() {
    let bench = Bench::new().await;
    let (shutdown, task) = bench.serve();
    let [first, second] = [1, 2].map(|s| Some(AdmissionId::accepted(Timestamp::from_s(s), 1)));
    bench.record_submission("one", JobPhase::Running, first.clone()).await;
    let windows = JobWindow { admission: first, ..window("one", Some("a"), 1) };
    bench.close(&windows).await;
    bench.surface("one", |surface| surface.windows == 1).await;
    shutdown.request();
    task.await.unwrap().unwrap();
    bench.record_submission("one", JobPhase::Queued, second.clone()).await;
    let (shutdown, task) = bench.serve();
    let next = bench.surface("one", |_| true).await;
    assert_eq!((next.windows, next.admission), (0, second));
    shutdown.request();
    task.await.unwrap().unwrap();
}

/// Prediction errors are stored, so that intervals are calibrated after a restart.
#[tokio::test]
async fn intervals_are_the_same_after_a_restart() {
    let bench = Bench::new().await;
    let (shutdown, task) = bench.serve();
    let names = ["a1", "a2", "a3", "one"];
    for name in names {
        bench.record(name, JobPhase::Running).await;
        bench.surface(name, |_| true).await;
        // The scatter exceeds the stated error.
        for minute in 1..=8 {
            let mut window = window(name, Some("a"), minute);
            let factor = [1.3, 0.8, 1.0, 1.25][minute as usize % 4];
            window.steps_per_s = window.steps_per_s.map(|rate| rate * factor);
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

    // Without the stored scores the intervals differ.
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
async fn service_continues_after_a_server_restart() {
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
fn example_file_has_the_defaults_and_errors_name_the_key() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/predictor.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let config: ServiceConfig = wattle_runtime::config::parse(&text, &path).unwrap();
    assert_eq!(config.model, PredictorConfig::shipped());
    let statistical = path.with_file_name("predictor-statistical.toml");
    let of_statistical = std::fs::read_to_string(&statistical).unwrap();
    let config: ServiceConfig =
        wattle_runtime::config::parse(&of_statistical, &statistical).unwrap();
    let name = PredictorId::new("statistical").unwrap();
    let method = Method::Statistical;
    assert_eq!(config.model, PredictorConfig { name, method, ..PredictorConfig::shipped() });
    let misspelt = text.replace("jobs_max", "job_max");
    let error = wattle_runtime::config::parse::<ServiceConfig>(&misspelt, &path).err().unwrap();
    assert!(error.to_string().contains("job_max"), "{error}");
    // A limit of the code is no key.
    let internal = text.replace("[model]", "[model]\npoints_max = 256");
    let error = wattle_runtime::config::parse::<ServiceConfig>(&internal, &path).err().unwrap();
    assert!(error.to_string().contains("points_max"), "{error}");
    let zero = text.replace("jobs_max = 20_000", "jobs_max = 0");
    assert!(wattle_runtime::config::parse::<ServiceConfig>(&zero, &path).is_err());
}
