//! Every process may be killed at any instant: no job is lost or doubled, no cap outlives its lease but to keep a power
//! limit.

use std::time::Duration;

use wattle_common::job::JobPhase;
use wattle_common::messages::{NodeDesired, PowerReport};
use wattle_common::subject::{Bucket, Reporter};
use wattle_common::{NodeId, Power, Timestamp, codec};
use wattle_tests::{System, program, until};

const SERVICES: [&str; 7] = [
    "wattle-placer",
    "wattle-predictor",
    "wattle-registry",
    "wattle-profiler",
    "wattle-power-agent",
    "wattle-launcher",
    "nats-server",
];

/// One service after another is killed while jobs run; every job still finishes, and none
/// was started more often than it should have been.
#[tokio::test]
async fn killing_any_service_loses_no_job() {
    let mut system =
        System::up(&["--simulated", "1x2:v100", "--rate", "60", "--policy", "fifo"]).await;
    let training = ["--workload", "eaco-alexnet", "--steps", "1500", "--steps-per-epoch", "500"];
    // Two run, two wait behind them.
    let held = system.hold();
    let jobs: Vec<_> = (0..4).map(|i| system.submit(&format!("k{i}"), &[], &training)).collect();
    drop(held);
    for job in &jobs[..2] {
        system.until_started(job).await;
    }
    for service in SERVICES {
        let before = system.processes(service);
        system.kill_9(service);
        until(&format!("{service} runs again"), async || {
            let now = system.processes(service);
            (now.len() == before.len() && now.iter().all(|pid| !before.contains(pid))).then_some(())
        })
        .await;
    }
    // The restarted services accept a new job.
    until("the placer takes jobs again", async || {
        let simjob = program("wattle-simjob");
        let mut args = vec!["submit", "--job", "late", "--", simjob.to_str().unwrap()];
        args.extend(training);
        let output = system.wattle(&args);
        // A submission whose reply was lost is accepted.
        let exists = String::from_utf8_lossy(&output.stderr).contains("`late` exists already");
        (output.status.success() || exists).then_some(())
    })
    .await;
    for job in jobs.iter().map(wattle_common::JobId::as_str).chain(["late"]) {
        let job = job.parse().unwrap();
        let end = system.until_job(&job, "it is finished", |r| r.phase.is_final()).await;
        assert_eq!(end.phase, JobPhase::Finished, "{end:#?}\n{}", system.logs());
        assert_eq!(end.attempt, 1, "{job} was started {} times\n{}", end.attempt, system.logs());
        // A duplicated job would start twice in its output.
        let output = std::fs::read_to_string(&end.log_paths[0]).unwrap();
        let begun = output.lines().filter(|line| line.contains(" attempt ")).count();
        assert!(begun <= 1, "{job}: {output}");
    }
    assert!(system.anywhere("wattle-simjob").is_empty(), "no training process is left");
    assert!(system.end().await.success());
}

/// `wattle up` is killed with all its processes; restarted in the same folder, it continues
/// with the same jobs, from their checkpoints.
#[tokio::test]
async fn killing_wattle_up_loses_no_job() {
    let args = ["--simulated", "1x1:v100", "--rate", "60", "--policy", "fifo"];
    let mut system = System::up(&args).await;
    let training = ["--workload", "eaco-alexnet", "--steps", "1200", "--steps-per-epoch", "200"];
    let first = system.submit("first", &[], &training);
    let second = system.submit("second", &[], &training);
    system.until_job(&first, "it has trained", |r| r.epoch.is_some_and(|epoch| epoch > 0)).await;
    system.kill_9_up_and_start_again(&args).await;
    for job in [first, second] {
        let end = system.until_job(&job, "it is finished", |r| r.phase.is_final()).await;
        assert_eq!(end.phase, JobPhase::Finished, "{end:#?}\n{}", system.logs());
        let output = std::fs::read_to_string(&end.log_paths[0]).unwrap();
        let from_nothing = output.lines().filter(|line| line.contains("step 0 of")).count();
        assert_eq!(from_nothing, 1, "its steps were not lost: {output}");
    }
    assert!(system.end().await.success());
}

/// A job that ignores termination ends with `wattle up`; meanwhile the folder is locked.
#[tokio::test]
async fn no_training_continues_after_the_end() {
    let shape = ["--simulated", "1x1:v100"];
    let mut system = System::up(&shape).await;
    let file = system.folder().join("pid");
    let deaf =
        format!("trap '' USR1 TERM; echo $$ > {}; while true; do sleep 0.1; done", file.display());
    let submit = ["submit", "--job", "deaf", "--checkpoint-signal", "USR1", "--", "sh", "-c"];
    assert!(system.wattle(&[&submit[..], &[deaf.as_str()]].concat()).status.success());
    let pid =
        until("it runs", async || std::fs::read_to_string(&file).ok()?.trim().parse::<u32>().ok())
            .await;

    let folder = system.folder().to_str().unwrap().to_owned();
    let second = system.wattle(&[&["up", "--dir", &folder][..], &shape].concat());
    let error = String::from_utf8_lossy(&second.stderr).into_owned();
    assert_eq!(second.status.code(), Some(2), "{error}");
    assert!(error.contains("choose another --dir"), "{error}");

    // The job has time for a checkpoint; a second signal ends the wait.
    system.signal("INT");
    until("it prints what it waits for", async || {
        system.stderr().contains("Ctrl-C ends all at once").then_some(())
    })
    .await;
    system.signal("INT");
    assert!(system.end().await.success());
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "it still runs");
}

/// Without a placer its leases expire and the GPUs return to their default cap; the job continues.
#[tokio::test]
async fn no_cap_outlives_its_lease() {
    let system = System::up(&[
        "--simulated",
        "1x1:v100",
        "--rate",
        "60",
        "--policy",
        "fifo",
        "--gpu-cap-w",
        "120",
    ])
    .await;
    let node = NodeId::new("n0").unwrap();
    let actual = system.bus.bucket(Bucket::Actual).await.unwrap();
    // Each report of the power agent: the last one alone may be later than the change by any number of heartbeats.
    let mut reports = actual.watch().await.unwrap();
    let mut capped = async |watts: u64| {
        let change = reports.next().await?;
        let value = change.value.filter(|_| change.key == Reporter::Power.key(&node))?;
        let report: PowerReport = codec::decode_json(&value).unwrap();
        let cap = report.gpus.first()?.cap_mw?;
        (cap.as_mw() == watts * 1_000).then_some(report)
    };
    let job = system.submit("j", &[], &["--workload", "eaco-alexnet", "--steps", "3000"]);
    system.until_started(&job).await;
    until("the cap stands", async || capped(120).await).await;

    // Stopped, not killed: a process that hangs holds its lease no longer than a dead one.
    for pid in system.processes("wattle-placer") {
        wattle_tests::kill(pid, "STOP");
    }
    let desired = system.bus.bucket(Bucket::Desired).await.unwrap();
    let (last, _): (NodeDesired, u64) = desired.get(node.as_str()).await.unwrap().unwrap();
    let safe = until("the GPU has its default cap again", async || capped(250).await).await;
    // The report has the time of the change, shortly after the end of the lease.
    // The clocks of placer and agent differ by milliseconds of wall time on a busy machine, which the rate multiplies.
    let clocks = Duration::from_secs(3);
    assert!(safe.at_us + clocks >= last.expires_at_us, "{safe:?}");
    let late = safe.at_us.since(last.expires_at_us);
    let heartbeat_and_load = Duration::from_secs(60 * 10);
    assert!(late < heartbeat_and_load, "the cap outlived its lease by {late:?} of system time");
    let record = system.record(&job).await.unwrap();
    assert!(!record.phase.is_final() || record.phase == JobPhase::Finished);
    for pid in system.processes("wattle-placer") {
        wattle_tests::kill(pid, "CONT");
    }
    let end = system.until_job(&job, "it is finished", |r| r.phase.is_final()).await;
    assert_eq!((end.phase, end.attempt), (JobPhase::Finished, 1), "{}", system.logs());
}

/// Placer and power agent end before a grid event: its steps are followed all the same, and end with it.
#[tokio::test]
async fn a_grid_event_is_followed_without_a_placer() {
    let system = System::up(&["--simulated", "1x2:v100", "--rate", "60", "--policy", "fifo"]).await;
    let node = NodeId::new("n0").unwrap();
    let training = ["--workload", "resnet50-imagenet-b128", "--steps", "100000000"];
    let job = system.submit("j", &["--gpus", "2"], &training);
    system.until_job(&job, "it runs", |r| r.phase == JobPhase::Running).await;
    let event = ["event", "add", "--id", "peak", "--start", "4m", "--to", "0.45kW"];
    let event = [&event[..], &["--duration", "5m", "--ramp-up", "1m", "--json"]].concat();
    assert!(system.wattle(&event).status.success());
    let desired = system.bus.bucket(Bucket::Desired).await.unwrap();
    let ordered = async || {
        let (order, _): (NodeDesired, u64) = desired.get(node.as_str()).await.ok()??;
        order.caps_ahead.iter().any(|bound| bound.cap_mw.is_some()).then_some(order)
    };
    until("the order names the steps", ordered).await;
    for pid in system.processes("wattle-placer") {
        wattle_tests::kill(pid, "STOP");
    }
    let order = ordered().await.expect("it named them before");
    assert!(!order.power_limited, "the event has not begun: {order:?}");
    system.kill_9("wattle-power-agent");

    let bound_at = |at: Timestamp| {
        let begun = order.caps_ahead.iter().rev().find(|bound| bound.from_us <= at);
        begun.and_then(|bound| bound.cap_mw)
    };
    let lowest = order.caps_ahead.iter().filter_map(|bound| bound.cap_mw).min().unwrap();
    assert!(lowest < Power::from_w(200), "{order:?}");
    let settled = order.caps_ahead.last().unwrap();
    assert_eq!(settled.cap_mw, None, "{order:?}");
    let actual = system.bus.bucket(Bucket::Actual).await.unwrap();
    let mut reports = actual.watch().await.unwrap();
    // The clocks of placer and agent differ by milliseconds of wall time, which the rate multiplies, and a restart takes
    // its time.
    let grace = Duration::from_secs(60);
    let mut was_low = false;
    until("the caps are those of before the event", async || {
        let change = reports.next().await?;
        let value = change.value.filter(|_| change.key == Reporter::Power.key(&node))?;
        let report: PowerReport = codec::decode_json(&value).unwrap();
        let (at, before) = (report.at_us, report.at_us - grace);
        for cap in report.gpus.iter().filter_map(|gpu| gpu.cap_mw) {
            let bounds = [bound_at(at), bound_at(before)];
            let most = bounds.into_iter().collect::<Option<Vec<Power>>>();
            if let Some(most) = most.and_then(|bounds| bounds.into_iter().max()) {
                assert!(cap <= most, "{cap} above {most}: {report:?}");
            }
            was_low |= cap <= lowest;
        }
        let default = report.gpus.iter().all(|gpu| gpu.cap_mw == gpu.cap_mw_default);
        (at >= settled.from_us && default && !report.gpus.is_empty()).then_some(())
    })
    .await;
    assert!(was_low, "the steps down were followed");
    for pid in system.processes("wattle-placer") {
        wattle_tests::kill(pid, "CONT");
    }
    system.until_job(&job, "it still runs", |r| r.phase == JobPhase::Running).await;
}
