//! A backup while jobs are submitted, the loss of the server's storage, and the restoration.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use wattle_common::job::JobPhase;
use wattle_common::messages::{LaunchReport, LedgerEntry, NodeDesired};
use wattle_common::subject::{Bucket, Reporter, STORE_RESTORED, StreamName};
use wattle_common::units::Energy;
use wattle_common::{JobId, NodeId, Timestamp, codec};
use wattle_runtime::testing::{Weight, turn};
use wattle_tests::{System, kill, until};

/// The folder of the server's storage.
fn storage(folder: &Path) -> PathBuf {
    let holds = |path: &PathBuf| path.join("jetstream").is_dir();
    let mut folders = vec![folder.to_owned()];
    while let Some(path) = folders.pop() {
        if holds(&path) {
            return path.join("jetstream");
        }
        let entries = std::fs::read_dir(&path).into_iter().flatten().flatten();
        folders.extend(entries.map(|entry| entry.path()).filter(|path| path.is_dir()));
    }
    panic!("no storage below {}", folder.display());
}

fn signal(system: &System, services: &[&str], name: &str) {
    for pid in services.iter().flat_map(|service| system.processes(service)) {
        kill(pid, name);
    }
}

/// The energy of a job in the entries of the ledger that begin at `from` or later.
async fn energy_in_ledger(system: &System, job: &JobId, from: Timestamp) -> Option<Energy> {
    let mut replay = system.bus.replay(StreamName::Ledger, None).await.ok()?;
    let mut sum = Energy::default();
    while let Some(payload) = replay.next().await.ok()? {
        let entry: LedgerEntry = codec::decode_json(&payload).ok()?;
        if entry.from_us < from {
            continue;
        }
        sum += entry.jobs.iter().filter(|of| of.job == *job).map(|of| of.energy_mj).sum();
    }
    Some(sum)
}

fn starts(record: &wattle_common::messages::JobRecord) -> usize {
    let output = std::fs::read_to_string(&record.log_paths[0]).unwrap_or_default();
    output.lines().filter(|line| line.contains("step 0 of")).count()
}

/// Jobs run, end and start between the backup and the loss; none is lost and none runs twice.
#[tokio::test]
async fn jobs_survive_the_loss_of_the_storage() {
    let _turn = turn(Weight::Long);
    let mut system =
        System::up(&["--simulated", "1x2:v100", "--rate", "60", "--policy", "fifo"]).await;
    let training = |steps: &'static str| {
        ["--workload", "eaco-alexnet", "--steps", steps, "--steps-per-epoch", "500"]
    };
    let held = system.hold();
    let long = system.submit("long", &[], &training("5000"));
    let first = system.submit("first", &[], &training("1000"));
    let second = system.submit("second", &[], &training("500"));
    drop(held);
    for job in [&long, &first] {
        system.until_started(job).await;
    }
    // The backup is taken while jobs are submitted.
    let folder = system.folder().join("backup");
    let (backup, meanwhile) = std::thread::scope(|scope| {
        let backup = scope.spawn(|| system.wattle(&[OsStr::new("backup"), folder.as_os_str()]));
        let jobs = ["m0", "m1", "m2"].map(|job| system.submit(job, &[], &training("100")));
        (backup.join().unwrap(), jobs)
    });
    assert!(backup.status.success(), "{}", String::from_utf8_lossy(&backup.stderr));
    println!("{}", String::from_utf8_lossy(&backup.stdout));

    let refused = system.wattle(&["restore", folder.to_str().unwrap()]);
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && error.contains("wattle-placer runs on"), "{error}");

    // After the backup: jobs end, and a later one starts.
    for job in [&first, &second].into_iter().chain(&meanwhile) {
        let end = system.until_job(job, "it has ended", |r| r.phase.is_final()).await;
        assert_eq!(end.phase, JobPhase::Finished, "{}", system.logs());
    }
    // It is cancelled: it must not end before, however long the restoration takes.
    let late = system.submit("late", &[], &training("100000000"));
    system.until_job(&late, "it runs", |r| r.phase == JobPhase::Running).await;
    let node = NodeId::new("n0").unwrap();
    let desired = async || {
        let bucket = system.bus.bucket(Bucket::Desired).await.ok()?;
        bucket.get::<NodeDesired>(node.as_str()).await.ok()?.map(|(order, _)| order)
    };
    let obeyed = until("the node has an order", desired).await.generation;

    // The storage is lost; placer and registry are away.
    let control = ["wattle-placer", "wattle-registry"];
    signal(&system, &control, "STOP");
    system.signal("STOP");
    system.kill_9("nats-server");
    // A server that is being killed may still create a file.
    until("the server has ended", async || {
        system.processes("nats-server").is_empty().then_some(())
    })
    .await;
    std::fs::remove_dir_all(storage(system.folder())).unwrap();
    system.signal("CONT");
    until("the server answers", async || system.bus.stream_messages("none").await.ok()).await;
    let restored = system.wattle(&["restore", folder.to_str().unwrap(), "--replace"]);
    let error = String::from_utf8_lossy(&restored.stderr).into_owned();
    assert!(restored.status.success(), "{error}\n{}", system.logs());
    let restored_record = system.until_job(&long, "it is restored", |_| true).await;
    // A submission during the backup may be in it or not. An ended job that is not in it gets no record: nodes
    // are compared for running jobs and for jobs with a record.
    let mut kept = Vec::new();
    for job in meanwhile {
        if system.record(&job).await.is_some() {
            kept.push(job);
        }
    }
    signal(&system, &control, "KILL");

    until("the records are compared with the nodes", async || {
        let bucket = system.bus.bucket(Bucket::Budget).await.ok()?;
        bucket.get_bytes(STORE_RESTORED).await.ok()?.is_none().then_some(())
    })
    .await;
    for job in [&first, &second].into_iter().chain(&kept) {
        let end = system.until_job(job, "its end is known", |r| r.phase.is_final()).await;
        assert_eq!((end.phase, end.attempt), (JobPhase::Finished, 1), "{end:#?}");
        assert_eq!(starts(&end), 1, "{job} ran once");
    }
    for job in [&long, &late] {
        let record = system.until_job(job, "it is known", |_| true).await;
        let may_have_ended = job == &long && record.phase == JobPhase::Finished;
        assert!(record.phase == JobPhase::Running || may_have_ended, "{record:#?}");
        assert_eq!(record.attempt, 1, "{record:#?}");
    }
    // The node obeys the placer again.
    until("the node has a newer order", async || {
        let order = desired().await?;
        let actual = system.bus.bucket(Bucket::Actual).await.ok()?;
        let key = Reporter::Launcher.key(&node);
        let (report, _) = actual.get::<LaunchReport>(&key).await.ok()??;
        let newer = order.generation > obeyed && report.observed_generation == order.generation;
        newer.then_some(())
    })
    .await;
    let after = system.submit("after", &[], &training("100"));
    assert!(system.wattle(&["cancel", late.as_str()]).status.success());
    for job in [&long, &after] {
        let end = system.until_job(job, "it has ended", |r| r.phase.is_final()).await;
        assert_eq!((end.phase, end.attempt), (JobPhase::Finished, 1), "{end:#?}");
        assert_eq!(starts(&end), 1, "{job} ran once");
    }
    system.until_job(&late, "it is cancelled", |r| r.phase == JobPhase::Cancelled).await;
    // Each entry of the ledger counts once: those that the restored record does not count, and later ones.
    let before = restored_record.energy_mj.unwrap_or_default();
    let until_us = restored_record.energy_until_us.get(&node).copied().unwrap_or_default();
    until("the ledger is counted", async || {
        let later = energy_in_ledger(&system, &long, until_us).await?;
        (system.record(&long).await?.energy_mj == Some(before + later)).then_some(())
    })
    .await;
    assert!(system.end().await.success());
}
