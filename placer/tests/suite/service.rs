//! The placer's binary with a real nats-server and simulated node reports.
//!
//! Every wait is for a condition, with a deadline.

use std::fs;
use std::path::Path;
use std::process::Command;

use wattle_common::JobId;
use wattle_common::job::JobPhase;
use wattle_common::messages::{CancelJob, JobRecord, LaunchState, Reply};
use wattle_common::subject::RequestTopic;
use wattle_runtime::testing::until;

use crate::site::{DEADLINE, Site, accepted, cancelled, spec};

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
    assert_eq!(site.request(RequestTopic::JobCancelled, &cancel).await, cancelled("a"));
    let stop = site.order("a is to stop", |next| next.jobs.iter().all(|job| job.stop)).await;
    assert!(stop.generation > order.generation);
    site.kill_placer();
    site.launch(stop.generation, &[("a", 1, LaunchState::STOPPED)]).await;
    site.start_placer();
    site.record("a", |record| record.phase == JobPhase::Cancelled).await;
    site.order("no orders are left", |next| next.jobs.is_empty()).await;

    // A last job runs to completion, and the service is registered.
    assert_eq!(site.submit(spec("b", 2)).await, accepted("b"));
    let order = site.order("b is ordered", |next| next.jobs.len() == 1).await;
    site.launch(order.generation, &[("b", 1, LaunchState::exited(0))]).await;
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
        (
            "policy = \"wattle\"",
            "policy = \"tiresias\"",
            "with NAME one of fifo, fifo-packed, eaco, powerflow, greenflow, wattle; the policies of the \
             laboratory (`wattle-lab simulate`) place no live jobs",
        ),
        ("max_slowdown = 0.05", "max_slowdown = 50", "give a share from 0 to 1,"),
        ("node_lost_after_ms = 120_000", "node_lost_after_ms = 1", "node_stale_after_ms"),
        ("tenants_max = 2", "tenants_max = 0", "greater than 0"),
        (
            "[sleep]",
            "[[power_groups]]\nname = \"r\"\nnodes = []\nlimit_kw = 1\n[sleep]",
            "no nodes",
        ),
        (
            "[sleep]",
            "[[power_groups]]\nname = \"r\"\nnodes = [\"n0\"]\nlimit_kw = 0\n[sleep]",
            "limit_kw of group r must be greater than 0",
        ),
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
    assert!(config.power_groups.is_empty());
    let mut text = text.to_owned();
    for line in
        ["[[power_groups]]", "name = \"rack-1\"", "nodes = [\"n0\", \"n1\"]", "limit_kw = 12.5"]
    {
        text = text.replacen(&format!("# {line}"), line, 1);
    }
    let config: wattle_placer::Config =
        wattle_runtime::config::parse(&text, Path::new("placer.toml")).unwrap();
    config.check().unwrap();
    assert_eq!(config.power_groups[0].nodes.len(), 2);
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
    assert_eq!(site.request(RequestTopic::JobCancelled, &cancel).await, cancelled("a"));
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
