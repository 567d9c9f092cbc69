//! How many GPU samples a second go through the bus to one consumer: encoded, published, received,
//! decoded.
//!
//! `cargo bench -p wattle-runtime` runs it against a nats-server that it starts itself, on this
//! machine, with the profiler's own batches: 8 GPUs, 5 sampling instants, two tenants on each GPU.
//! The goal is 100,000 samples a second, which is a thousand nodes' worth (8 GPUs at 10 Hz each).
//! It fails below that. It is no micro-benchmark, so it is timed by hand: publisher, server and
//! consumer share the machine, and the figure is the whole chain's.
#![allow(clippy::print_stdout, reason = "a benchmark's figures are its data")]

use std::time::{Duration, Instant};

use wattle_common::codec::{decode_telemetry, encode_telemetry};
use wattle_common::id::{ClusterId, JobId, NodeId};
use wattle_common::messages::{GpuSample, TelemetryBatch, TenantSample};
use wattle_common::subject::{NodeTopic, Subject, Topic};
use wattle_common::{Frequency, Power, Timestamp, units::Energy};
use wattle_runtime::bus::{Bus, BusConfig, BusError};
use wattle_runtime::testing::NatsServer;

const GPUS: u32 = 8;
const INSTANTS: u64 = 5;
const SAMPLES_A_BATCH: u64 = GPUS as u64 * INSTANTS;
const BATCHES: u64 = 50_000;
/// Enough to see that it works, where it is run as a test.
const BATCHES_TEST: u64 = 2_000;
const ROUNDS: usize = 5;
const GOAL_SAMPLES_A_SECOND: f64 = 100_000.0;
/// Batches under way at once: far fewer than a subscription holds before it drops some.
const AHEAD_MAX: u64 = 8_192;

fn batch(node: &NodeId, jobs: &[JobId; 2], sequence: u64) -> TelemetryBatch {
    let mut samples = Vec::with_capacity(SAMPLES_A_BATCH as usize);
    for instant in 0..INSTANTS {
        for gpu in 0..GPUS {
            let tenants = jobs.iter().zip(10_000..).map(|(job, pid)| TenantSample {
                job: Some(job.clone()),
                pid,
                memory_used_mib: Some(6_200),
                utilization_gpu_percent: Some(47),
            });
            samples.push(GpuSample {
                at_us: Timestamp::from_us(1_700_000_000_000_000 + instant * 100_000),
                gpu,
                power_mw: Some(Power::from_mw(241_337 + u64::from(gpu))),
                energy_mj: Some(Energy::from_mj(24_133)),
                utilization_gpu_percent: Some(94),
                utilization_memory_percent: Some(51),
                memory_used_mib: Some(12_400),
                clock_mhz: Some(Frequency::from_mhz(1_380)),
                cap_mw: Some(Power::from_w(250)),
                temperature_c: Some(61),
                throttle_reasons: Some(4),
                tenants: tenants.collect(),
            });
        }
    }
    TelemetryBatch { node: node.clone(), sequence, samples }
}

fn cpu_name() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{} ({cores} cores)", name.map_or("unknown CPU", |(_, name)| name))
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures wall time")]
fn now() -> Instant {
    Instant::now()
}

/// Sends and receives every batch; gives the time it took, and the bytes of one.
async fn round(publisher: &Bus, consumer: &Bus, batches: u64) -> (Duration, usize) {
    let node = NodeId::new("n0").expect("an id");
    let jobs = ["resnet50-1", "bert-2"].map(|job| JobId::new(job).expect("an id"));
    let pattern = Topic::GpuSampled.pattern(consumer.cluster());
    let mut arriving = consumer.subscribe(&pattern).await.expect("the server is there");
    let subject =
        Subject::of_node(publisher.cluster().clone(), NodeTopic::GpuSampled, node.clone());
    let len = encode_telemetry(&batch(&node, &jobs, 0)).len();
    // The subscription is another connection: it is ready once something sent arrives.
    loop {
        publish(publisher, &subject, &batch(&node, &jobs, 0)).await;
        let waited = tokio::time::timeout(Duration::from_millis(20), arriving.next()).await;
        if waited.is_ok() {
            break;
        }
    }
    while tokio::time::timeout(Duration::from_millis(200), arriving.next()).await.is_ok() {}

    let (taken, mut progress) = tokio::sync::watch::channel(0);
    let started = now();
    let receive = tokio::spawn(async move {
        let mut samples = 0;
        for sequence in 1..=batches {
            let delivery = arriving.next().await.expect("the bus is there");
            let batch = decode_telemetry(&delivery.payload).expect("a telemetry batch");
            assert_eq!(batch.sequence, sequence, "none is lost and none overtakes");
            samples += batch.samples.len() as u64;
            if sequence % 1_024 == 0 {
                taken.send_replace(sequence);
            }
        }
        samples
    });
    for sequence in 1..=batches {
        publish(publisher, &subject, &batch(&node, &jobs, sequence)).await;
        if sequence % 1_024 == 0 {
            let enough = sequence.saturating_sub(AHEAD_MAX);
            progress.wait_for(|taken| *taken >= enough).await.expect("the receiver lives");
        }
    }
    let samples = receive.await.expect("the receiver does not panic");
    assert_eq!(samples, batches * SAMPLES_A_BATCH);
    (started.elapsed(), len)
}

async fn publish(bus: &Bus, subject: &Subject, batch: &TelemetryBatch) {
    // A full queue slows the publisher.
    while let Err(error) = bus.publish_bytes(subject, encode_telemetry(batch)).await {
        assert!(matches!(error, BusError::Busy), "{error}");
    }
}

#[tokio::main]
async fn main() {
    let server = NatsServer::start().await;
    let config = BusConfig::at(&server.url());
    let cluster = ClusterId::new("bench").expect("an id");
    let publisher = Bus::connect(&config, cluster.clone(), "publisher").await.expect("connects");
    let consumer = Bus::connect(&config, cluster, "consumer").await.expect("connects");
    println!("telemetry through NATS to one consumer, on {}", cpu_name());
    // `cargo bench` passes --bench; `cargo test --benches` does not.
    if !std::env::args().any(|argument| argument == "--bench") {
        round(&publisher, &consumer, BATCHES_TEST).await;
        return;
    }
    let mut rates = Vec::new();
    for _ in 0..ROUNDS {
        let (took, len) = round(&publisher, &consumer, BATCHES).await;
        let rate = (BATCHES * SAMPLES_A_BATCH) as f64 / took.as_secs_f64();
        println!(
            "{BATCHES} batches of {SAMPLES_A_BATCH} samples ({len} bytes) in {took:.2?}: {rate:.0} samples/s"
        );
        rates.push(rate);
    }
    rates.sort_by(f64::total_cmp);
    let median = rates[ROUNDS / 2];
    println!("median of {ROUNDS}: {median:.0} samples/s; goal {GOAL_SAMPLES_A_SECOND:.0}");
    assert!(median >= GOAL_SAMPLES_A_SECOND, "below the goal");
}
