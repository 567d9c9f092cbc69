//! The placer's binary with a real nats-server and simulated node reports.
//!
//! Every wait is for a condition, with a deadline.

use std::fs;
use std::path::Path;
use std::process::Command;

use wattle_common::budget::Budget;
use wattle_common::job::JobPhase;
use wattle_common::messages::{
    BudgetRecord, BudgetReply, CancelJob, JobRecord, LaunchState, Reply, SetBudget,
};
use wattle_common::subject::{BUDGET_SET, Bucket, RequestTopic};
use wattle_common::{JobId, Power};
use wattle_runtime::bus::KvBucket;
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
            "with NAME one of fifo, backfill, fifo-packed, eaco, powerflow, greenflow, wattle; the policies of the \
             laboratory (`wattle-lab simulate`) place no live jobs",
        ),
        ("#max_slowdown = 0.05", "max_slowdown = 50", "give a share from 0 to 1,"),
        ("#by = 0.0", "by = -1.0", "give a share from 0 to 1,"),
        ("#by = 0.0", "by = 0.1\nmax_slowdown = 0.1", "two bounds of one aim"),
        ("\"backfill\"", "\"slurm\"", "backfill"),
        ("node_lost_after_ms = 120_000", "node_lost_after_ms = 1", "node_stale_after_ms"),
        ("tenants_max = 2", "tenants_max = 0", "greater than 0"),
    ] {
        let bad = good.replacen(right, wrong, 1);
        assert_ne!(bad, good, "{right}");
        fs::write(&file, bad).unwrap();
        let (code, stderr) = placer(&["--config", file.to_str().unwrap()]);
        assert!(code == Some(2) && stderr.contains(names), "{names}: {stderr}");
    }
}

/// Each wrong tree of feeders ends the placer with exit code 2, the file, the line and the remedy.
#[test]
fn a_wrong_tree_of_feeders_is_refused_with_its_line() {
    let placer = |args: &[&str]| {
        let run = Command::new(env!("CARGO_BIN_EXE_wattle-placer")).args(args).output().unwrap();
        (run.status.code(), String::from_utf8(run.stderr).unwrap())
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("placer.toml");
    let base = "cluster = \"main\"\n[nats]\nurl = \"nats://127.0.0.1:1\"\n";
    let board = "[[feeder]]\nname = \"a\"\nlimit_w = 5000\n";
    let pdu = "[[feeder]]\nname = \"p\"\nparent = \"a\"\nlimit_w = 1000\n";
    let on = |feeds: &str| format!("[[node]]\nname = \"n0\"\nfeeds = {feeds}\n");
    let of = |rest: &str| format!("{board}{pdu}{rest}");
    for (tables, line, names) in [
        (
            format!("{}{pdu}", board.replace("limit_w", "parent = \"p\"\nlimit_w")),
            4,
            "form a cycle",
        ),
        (
            of(&pdu.replace("\"p\"", "\"q\"").replace("\"a\"", "\"b\"")),
            11,
            "the parent of feeder q, b, is unknown",
        ),
        (of(board), 11, "two feeders have the name a; rename one"),
        (of(&on("[]")), 11, "node n0 is on no feeder"),
        (of(&on("[\"r\"]")), 11, "node n0 is on the unknown feeder r"),
        (
            of(&format!("{}{}", on("[\"p\"]"), on("[\"a\"]"))),
            14,
            "node n0 is in two tables [[node]]",
        ),
        (
            of(&format!("{}min_feeds = 2", on("[\"p\"]"))),
            11,
            "min_feeds = 2 of node n0: give 1 to 1",
        ),
        (
            of(&format!("{}idle_w = 1000.5", on("[\"p\"]"))),
            7,
            "the limit of feeder p, 1000 W, is below what its nodes draw without jobs: give at least 1001 W",
        ),
        (
            of(&on("[\"p\"]")).replace("limit_w = 1000", "limit_w = 1000\nstatic_load_w = 1200"),
            7,
            "at least 1200 W",
        ),
        (
            of("").replace("limit_w = 1000", "voltage = 400"),
            7,
            "lacks amperage, phases, power_factor, max_utilization",
        ),
        (
            of("").replace("limit_w = 1000", "voltage = 400\nlimit_w = 1"),
            7,
            "keep limit_w or the others",
        ),
        (of("").replace("limit_w = 1000\n", ""), 7, "feeder p has no limit; add limit_w"),
        (
            of("").replace("limit_w = 1000", "limit_w = -5"),
            7,
            "limit_w = -5 of p: give a number greater than 0",
        ),
        (
            "[[power_groups]]\nname = \"r\"\nnodes = [\"n0\"]\nlimit_kw = 1\n".to_owned(),
            4,
            "is replaced by feeders",
        ),
    ] {
        fs::write(&file, format!("{base}{tables}")).unwrap();
        let (code, stderr) = placer(&["--config", file.to_str().unwrap()]);
        let place = format!("{}:{line}: ", file.display());
        assert!(
            code == Some(2) && stderr.contains(&place) && stderr.contains(names),
            "{tables}\n{stderr}"
        );
    }
    for (wrong, names) in [
        ("phases = 2", "give 1 or 3"),
        ("max_utilization = 0.8", "as in 80"),
        ("power_factor = 1.1", "a share above 0 to 1"),
    ] {
        let circuit =
            "voltage = 400\namperage = 32\nphases = 3\npower_factor = 0.9\nmax_utilization = 80";
        let key = wrong.split(' ').next().unwrap();
        let circuit: Vec<&str> =
            circuit.lines().map(|line| if line.starts_with(key) { wrong } else { line }).collect();
        fs::write(
            &file,
            format!("{base}{}", of("").replace("limit_w = 1000", &circuit.join("\n"))),
        )
        .unwrap();
        let (code, stderr) = placer(&["--config", file.to_str().unwrap()]);
        assert!(code == Some(2) && stderr.contains(names), "{stderr}");
    }
}

#[test]
fn the_example_configuration_is_valid() {
    let text = include_str!("../../../deploy/placer.toml");
    let config: wattle_placer::Config =
        wattle_runtime::config::parse(text, Path::new("placer.toml")).unwrap();
    config.check().unwrap();
    assert!(config.feeders().unwrap().is_empty());
    // The commented example of feeders.
    let from = text.find("# [[feeder]]").unwrap();
    let len = text[from..].find("\n\n").unwrap();
    let tables = text[from..from + len].lines().filter_map(|line| line.strip_prefix("# "));
    let tables = tables.filter(|line| line.starts_with("[[") || line.contains(" = "));
    let example = tables.collect::<Vec<_>>().join("\n");
    let text = format!("{}{example}{}", &text[..from], &text[from + len..]);
    let config: wattle_placer::Config =
        wattle_runtime::config::parse(&text, Path::new("placer.toml")).unwrap();
    config.check().unwrap();
    let tree = config.feeders().unwrap();
    let limits: Vec<(&str, u64)> = tree
        .feeders()
        .iter()
        .map(|feeder| (feeder.name.as_str(), feeder.limit_mw.as_mw() / 1_000))
        .collect();
    // 400 V x 63 A x sqrt 3 x 0.95 x 80 %.
    assert_eq!(
        limits,
        [("board-a", 33_172), ("board-b", 33_172), ("pdu-a1", 17_000), ("pdu-b1", 17_000)]
    );
    assert_eq!(tree.connections()[0].nodes.len(), 2);
}

/// Fills a bucket; returns the keys.
async fn fill(bucket: &KvBucket) -> Vec<String> {
    let mut fillers = Vec::new();
    for len in [1_000_000, 20_000, 400, 20] {
        let value = "x".repeat(len);
        loop {
            let filler = format!("filler-{}", fillers.len());
            if bucket.put(&filler, &value).await.is_err() {
                break;
            }
            fillers.push(filler);
        }
    }
    assert!(fillers.len() > 100);
    fillers
}

/// A restart would not know the budget.
#[tokio::test(flavor = "multi_thread")]
async fn a_budget_that_is_not_stored_is_not_acknowledged() {
    let site = Site::new().await;
    let bucket = site.bus.bucket(Bucket::Budget).await.unwrap();
    let set = async |power: Power| {
        let budget = Budget { power_mw: Some(power), ..Budget::default() };
        let subject = site.bus.request_subject(RequestTopic::BudgetSet);
        let request = SetBudget { budget, intensity: None };
        site.until("a reply", async || {
            site.bus.request::<_, BudgetReply>(&subject, &request).await.ok()
        })
        .await
    };
    let stored = async || {
        let record = bucket.get::<BudgetRecord>(BUDGET_SET).await.unwrap();
        record.map(|(record, _)| record.budget.power_mw)
    };
    let first = Power::from_w(900);
    assert!(matches!(set(first).await, BudgetReply::Stored { .. }));
    let fillers = fill(&bucket).await;
    let reply = set(Power::from_w(800)).await;
    assert_eq!(stored().await, Some(Some(first)), "there was no room");
    let BudgetReply::Refused { error } = &reply else { panic!("{reply:?}") };
    assert!(error.contains("not stored") && error.contains("set it again"), "{error}");
    for filler in &fillers {
        bucket.delete(filler).await.unwrap();
    }
    let second = Power::from_w(800);
    assert!(matches!(set(second).await, BudgetReply::Stored { .. }));
    assert_eq!(stored().await, Some(Some(second)));
}

#[tokio::test(flavor = "multi_thread")]
async fn full_bucket_refuses_submissions_and_the_placer_keeps_serving() {
    let mut site = Site::new().await;
    site.power(2).await;
    site.launch(0, &[]).await;
    assert_eq!(site.submit(spec("a", 1)).await, accepted("a"));
    let fillers = fill(&site.jobs).await;
    for _ in 0..3 {
        let reply = site.submit(spec("b", 1)).await;
        let Reply::Refused { error } = &reply else { panic!("{reply:?}") };
        assert!(error.contains("full"), "{error}");
    }
    assert!(site.log().contains("submissions are refused: bucket jobs is"), "{}", site.log());
    // It still answers, and the state of known jobs changes.
    assert_eq!(site.submit(spec("a", 1)).await, accepted("a"));
    let cancel = CancelJob { job: JobId::new("a").unwrap() };
    let reply = site.request(RequestTopic::JobCancelled, &cancel).await;
    let stored = site.jobs.get::<JobRecord>("a").await.unwrap();
    let is_stored = stored.is_some_and(|(record, _)| record.generation > 1);
    match &reply {
        Reply::Accepted { .. } => assert!(is_stored, "accepted and not stored"),
        Reply::Refused { error } => {
            assert!(!is_stored && error.contains("not stored"), "{error}");
        }
    }
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
    assert_eq!(site.request(RequestTopic::JobCancelled, &cancel).await, cancelled("a"));
}
