//! Load: many nodes, many jobs, more submissions than fit, and messages faster than they are processed.
//!
//! The ignored tests measure the figures of `docs/measurements/overload.md`; run them with
//! `--ignored --nocapture` and release builds of the programs in `WATTLE_PROGRAMS`.

use std::time::Duration;

use tokio::time::Instant;
use wattle_common::Power;
use wattle_common::budget::Budget;
use wattle_common::messages::{BudgetReply, SetBudget};
use wattle_common::subject::RequestTopic;
use wattle_runtime::testing::{self, NatsServer, Weight, turn};
use wattle_tests::chaos::faults::fill;
use wattle_tests::chaos::network;
use wattle_tests::load::Site;
use wattle_tests::load::flood;
use wattle_tests::load::nodes::Nodes;
use wattle_tests::load::requests::{submission, submit_at};

/// Longest wait.
const LONG: Duration = testing::HANG;

fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

async fn limit_power(site: &Site, power: Option<Power>) {
    let budget = Budget { power_mw: power, ..Budget::default() };
    let subject = site.bus.request_subject(RequestTopic::BudgetSet);
    let set = SetBudget { budget, intensity: None };
    // A placer in a long round answers late; the request is repeated as by the command line.
    let stored = testing::until(LONG, async || {
        let reply = site.bus.request::<_, BudgetReply>(&subject, &set).await;
        matches!(reply, Ok(BudgetReply::Stored { .. })).then_some(())
    });
    assert!(stored.await.is_some(), "the power limit is not stored");
}

/// A client that reads nothing, telemetry of 20 nodes at ten times its rate, and 3,000 submissions at once:
/// each submission is answered while its client waits, memory is bounded, and orders reach all nodes.
#[tokio::test(flavor = "multi_thread")]
async fn overload_is_refused_and_orders_continue() {
    let _turn = turn(Weight::Alone);
    let site = Site::start(&[("jobs_max = 10_000", "jobs_max = 1_000")]).await;
    let nodes = Nodes::start(&site, 20, 8).await;
    let url = site.server.url();
    let _slow = flood::never_reads(&url).await;
    // 20 nodes of 8 GPUs at 10 Hz, ten times.
    let samples = format!("wattle.v1.{}.gpu.sampled.n0000", site.bus.cluster());
    let telemetry = flood::publish_at(url.clone(), samples, vec![0; 60], 16_000.0);
    let telemetry = tokio::spawn(telemetry);
    let subject = site.bus.request_subject(RequestTopic::JobSubmitted).to_string();
    let jobs = (0..3_000).map(|i| submission(&format!("job-{i:04}"), 1));
    let replies = flood::submit_at_once(&url, &subject, jobs, LONG).await;
    assert_eq!(replies.count(), 3_000, "{replies:?}");
    assert!(replies.accepted > 0 && replies.accepted <= 1_000, "{replies:?}");
    let busy = replies.refused.keys().filter(|text| text.contains("submissions wait"));
    assert!(busy.count() > 0, "{replies:?}");
    nodes.until_running(160, Instant::now(), LONG).await;
    let start = Instant::now();
    limit_power(&site, Some(Power::from_w(20_000))).await;
    nodes.until_power_limited(start, LONG).await;
    let memory = site.memory("wattle-placer");
    assert!(memory.peak < 200, "{memory}");
    telemetry.abort();
}

/// A thousand nodes of 8 GPUs: orders after submissions, power limits and completions, and memory.
///
/// `LOAD_NODES`, `LOAD_JOBS`, `LOAD_RATE` (submissions per second), `LOAD_SIZES` (1: jobs of one GPU; 3:
/// of 1, 2 and 4), `LOAD_WINDOWS` (windows of each job) and `LOAD_PREDICTORS` change it.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement of minutes, with release builds in WATTLE_PROGRAMS"]
async fn measure_many_nodes() {
    let count = setting("LOAD_NODES", 1_000);
    let sizes = setting("LOAD_SIZES", 3);
    let rate = setting("LOAD_RATE", 200);
    let mut site = Site::start(&[("# nodes_expected = 4", "nodes_expected = 1000")]).await;
    site.run("wattle-registry", "registry.toml", &[("# gpu_type_default", "gpu_type_default")])
        .await;
    let start = Instant::now();
    let nodes = Nodes::start(&site, count, 8).await;
    println!("{count} nodes of 8 GPUs have their first order after {:.1?}", start.elapsed());
    let jobs_max = setting("LOAD_JOBS", 4 * count);
    let jobs =
        (0..jobs_max).map(|i| submission(&format!("job-{i:06}"), 1 << (i % sizes))).collect();
    println!("submissions at {rate}/s: {}", submit_at(&site, rate as f64, jobs).await.text());
    let predictors = ["predictor.toml", "predictor-statistical.toml"];
    for file in predictors.into_iter().take(setting("LOAD_PREDICTORS", 1)) {
        site.run("wattle-predictor", file, &[]).await;
    }
    for _ in 0..setting("LOAD_WINDOWS", 3) {
        nodes.store_windows().await;
        tokio::time::sleep(Duration::from_secs(30)).await;
    }
    println!("{} jobs run", nodes.jobs().len());
    print_memory(&site);
    for watts in [1_400_u64, 1_060, 1_020] {
        let start = Instant::now();
        limit_power(&site, Some(Power::from_w(watts * count as u64))).await;
        let answered = start.elapsed();
        let applied = nodes.until_power_limited(start, LONG).await;
        let limit = Power::from_w(watts * count as u64);
        let held = async || (nodes.power_max() <= limit).then(|| start.elapsed());
        let held = testing::until(Duration::from_secs(30), held).await;
        println!(
            "power limit of {watts} W for each node: accepted after {answered:.1?}, an order under it on \
             all nodes after {applied:.1?}, caps within it after {held:.1?}; {} GPUs below their default \
             cap, {} jobs run, at most {:.0} kW",
            nodes.capped(),
            nodes.jobs().len(),
            nodes.power_max().as_w() / 1e3,
        );
        limit_power(&site, None).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    let running = nodes.jobs().len();
    let queued = jobs_max - running;
    let start = Instant::now();
    nodes.complete_jobs().await;
    let one = async || (!nodes.jobs().is_empty()).then(|| start.elapsed());
    let first = testing::until(LONG, one).await;
    let last = nodes.until_running(queued, start, LONG).await;
    println!(
        "{running} jobs completed at once: the first of {queued} queued jobs runs after {first:.1?}, all run \
         and each node has its last order after {last:.1?}"
    );
    print_memory(&site);
}

/// 20,000 jobs, and 100,000 submissions at once, without nodes.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement of minutes, with release builds in WATTLE_PROGRAMS"]
async fn measure_many_jobs() {
    let count = setting("LOAD_JOBS", 20_000);
    let at_once = setting("LOAD_AT_ONCE", 100_000);
    let mut site = Site::start(&[("jobs_max = 10_000", "jobs_max = 20_000")]).await;
    site.run("wattle-registry", "registry.toml", &[]).await;
    let job = |i: usize| submission(&format!("job-{i:06}"), 1);
    for (rate, jobs) in [(200.0, 0..2_000), (600.0, 2_000..count)] {
        let results = submit_at(&site, rate, jobs.map(job).collect()).await;
        println!("submissions at {rate}/s: {}", results.text());
    }
    for args in [&["jobs"][..], &["jobs", "--limit", "1000"], &["jobs", "--limit", "all"]] {
        let start = Instant::now();
        let output = site.wattle(args);
        let lines = String::from_utf8_lossy(&output.stdout).lines().count();
        println!("wattle {}: {:.2?}, {lines} lines", args.join(" "), start.elapsed());
    }
    print_memory(&site);
    let subject = site.bus.request_subject(RequestTopic::JobSubmitted).to_string();
    let flood = (0..at_once).map(|i| submission(&format!("flood-{i:06}"), 1));
    let url = site.server.url();
    let replies = flood::submit_at_once(&url, &subject, flood, Duration::from_secs(20)).await;
    println!("{at_once} submissions at once: {} answered; {replies:?}", replies.count());
    print_memory(&site);
    let start = Instant::now();
    let one = submit_at(&site, 20.0, vec![submission("after", 1)]).await;
    println!("the next submission is answered after {:.1?}: {one:?}", start.elapsed());
}

/// A full disk of the only NATS server, with running jobs, until its space returns.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement that mounts a file system, as root"]
async fn measure_full_disk() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let disk = folder.path().join("disk");
    network::mount_disk(&disk, 64).expect("root may mount");
    let server = NatsServer::start_in(&disk, "jetstream { max_file_store: 10GB }").await;
    let mut site = Site::start_on(server, &[]).await;
    let nodes = Nodes::start(&site, 4, 8).await;
    let start = Instant::now();
    let jobs = (0..8).map(|i| submission(&format!("job-{i}"), 1)).collect();
    println!("before: {}", submit_at(&site, 20.0, jobs).await.text());
    nodes.until_running(8, start, LONG).await;
    let filler = disk.join("filler");
    fill(&filler).expect("a file on the disk");
    let (start, log_before) = (Instant::now(), site.log("placer.toml").lines().count());
    let one = async |site: &Site, name: String| {
        let sent = Instant::now();
        let mut results = submit_at(site, 20.0, vec![submission(&name, 1)]).await;
        let refusals = results.refused.drain(..).chain(results.unanswered.drain(..));
        (sent.elapsed(), refusals.collect::<Vec<_>>())
    };
    for i in 0..10 {
        let (latency, refused) = one(&site, format!("full-{i}")).await;
        println!("full for {:.1?}: answered after {latency:.1?}: {refused:?}", start.elapsed());
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    println!("jobs that run: {}", nodes.jobs().len());
    std::fs::remove_file(&filler).expect("the file is there");
    for restarted in [false, true] {
        let start = Instant::now();
        if restarted {
            site.server.restart().await;
        }
        let accepted = testing::until(Duration::from_secs(30), async || {
            let name = format!("after-{restarted}-{}", start.elapsed().as_millis());
            one(&site, name).await.1.is_empty().then(|| start.elapsed())
        });
        println!(
            "space is free, server restarted: {restarted}; a submission is accepted after {:.1?}, {} jobs run",
            accepted.await,
            nodes.jobs().len()
        );
    }
    for line in site.log("placer.toml").lines().skip(log_before) {
        println!("{line}");
    }
    drop(site);
    let _ = std::process::Command::new("umount").arg("-l").arg(&disk).status();
}

#[expect(clippy::print_stdout, reason = "results of a measurement")]
fn print_memory(site: &Site) {
    for name in ["wattle-placer", "wattle-registry", "nats-server"] {
        println!("{name}: {}", site.memory(name));
    }
}
