//! A rolling upgrade while jobs run: the stored values are those of the previous schema, and each service is
//! replaced after the other.
//!
//! The test replaces each program by itself, because two versions are not built in one run;
//! `tests/upgrade/run` does the same with the programs of the previous commit.

use serde_json::Value;
use wattle_common::NodeId;
use wattle_common::job::JobPhase;
use wattle_common::messages::PowerReport;
use wattle_common::subject::{Bucket, Reporter};
use wattle_runtime::testing::{Weight, turn};
use wattle_tests::{System, kill, kill_if_running, until};

/// The services in the order of docs/operations.md, with the signal that ends them. `wattle up` has its
/// launchers stop their jobs at a clean end, unlike the launcher's default, so the launcher is killed.
const SERVICES: [(&str, &str); 6] = [
    ("wattle-placer", "TERM"),
    ("wattle-registry", "TERM"),
    ("wattle-predictor", "TERM"),
    ("wattle-launcher", "KILL"),
    ("wattle-profiler", "TERM"),
    ("wattle-power-agent", "TERM"),
];

/// The fields that the previous schema lacks, in any message.
const NEW_FIELDS: [&str; 19] = [
    "project",
    "instance",
    "node_limit_mw",
    "power_limited",
    "user_proven",
    "unknown",
    "has_ended",
    "released",
    "limit",
    "advise_only",
    "cap_mw_advised",
    "clock_mhz_max_advised",
    "health",
    "driver_error",
    "read_at_us",
    "fault",
    "node_fault",
    "killed_by",
    "attempts_prevented",
];

/// Fields of orders and reports that are new in records and statuses.
const NEW_IN_RECORDS: [&str; 2] = ["generation", "observed_generation"];

/// Removes the new fields; returns whether there were any.
fn strip(value: &mut Value, which: Bucket) -> bool {
    let is_record = matches!(which, Bucket::Jobs | Bucket::Budget);
    match value {
        Value::Object(fields) => {
            let before = fields.len();
            fields.retain(|name, _| {
                let name = name.as_str();
                let is_new = NEW_FIELDS.contains(&name);
                !(is_new || (is_record && NEW_IN_RECORDS.contains(&name)))
            });
            let removed = fields.len() < before;
            fields.values_mut().fold(removed, |any, value| strip(value, which) || any)
        }
        Value::Array(items) => {
            items.iter_mut().map(|item| strip(item, which)).filter(|stripped| *stripped).count() > 0
        }
        _ => false,
    }
}

/// Rewrites the values of a bucket in the previous schema, and adds a field that no version knows.
async fn rewrite(system: &System, which: Bucket) -> usize {
    let bucket = system.bus.bucket(which).await.unwrap();
    let mut changed = 0;
    for key in bucket.keys().await.unwrap() {
        let Some((bytes, _)) = bucket.get_bytes(&key).await.unwrap() else { continue };
        let Ok(mut value) = serde_json::from_slice::<Value>(&bytes) else { continue };
        changed += usize::from(strip(&mut value, which));
        value["field_of_another_version"] = Value::from(7);
        bucket.put(&key, &value).await.unwrap();
    }
    changed
}

#[tokio::test]
async fn each_service_is_replaced_while_jobs_run() {
    let _turn = turn(Weight::Long);
    let args =
        ["--simulated", "1x2:v100", "--rate", "60", "--policy", "fifo", "--gpu-cap-w", "120"];
    let mut system = System::up(&args).await;
    let training = ["--workload", "eaco-alexnet", "--steps", "3000", "--steps-per-epoch", "500"];
    // Two run, one waits behind them.
    let held = system.hold();
    let jobs: Vec<_> = (0..3).map(|i| system.submit(&format!("u{i}"), &[], &training)).collect();
    drop(held);
    for job in &jobs[..2] {
        system.until_started(job).await;
    }
    let node = NodeId::new("n0").unwrap();
    let power = async || {
        let actual = system.bus.bucket(Bucket::Actual).await.ok()?;
        actual.get::<PowerReport>(&Reporter::Power.key(&node)).await.ok()?.map(|(report, _)| report)
    };
    let capped = async || {
        let report = power().await.filter(|report| report.lease_until_us.is_some())?;
        report
            .gpus
            .iter()
            .all(|gpu| gpu.cap_mw.is_some_and(|cap| cap.as_mw() == 120_000))
            .then_some(())
    };
    until("the caps stand", async || capped().await).await;

    // The state that the previous version left. The placer reads it at its start.
    for pid in system.processes("wattle-placer") {
        kill(pid, "STOP");
    }
    let mut changed = 0;
    for bucket in [Bucket::Jobs, Bucket::Desired, Bucket::Actual, Bucket::Surfaces, Bucket::Budget]
    {
        changed += rewrite(&system, bucket).await;
    }
    assert!(changed > 0, "new fields were stored");
    // The previous version has no leases.
    let leases = system.bus.bucket(Bucket::Leases).await.unwrap();
    for key in leases.keys().await.unwrap() {
        leases.delete(&key).await.unwrap();
    }
    system.kill_9("wattle-placer");

    for (service, signal) in SERVICES {
        let before = system.processes(service);
        assert!(service == "wattle-placer" || !before.is_empty(), "{service}");
        for pid in &before {
            // The placer that was killed above may be listed until it has ended.
            kill_if_running(*pid, signal);
        }
        until(&format!("{service} is replaced"), async || {
            let now = system.processes(service);
            (!now.is_empty() && now.iter().all(|pid| !before.contains(pid))).then_some(())
        })
        .await;
        until(&format!("the caps have their lease after {service} is replaced"), async || {
            capped().await
        })
        .await;
        for job in &jobs {
            let record = system.record(job).await.unwrap();
            assert!(record.attempt <= 1, "{service}: {record:#?}\n{}", system.logs());
        }
    }
    let late = system.submit("late", &[], &["--workload", "eaco-alexnet", "--steps", "200"]);
    for job in jobs.iter().chain([&late]) {
        let end = system.until_job(job, "it has ended", |r| r.phase.is_final()).await;
        assert_eq!((end.phase, end.attempt), (JobPhase::Finished, 1), "{end:#?}");
        let output = std::fs::read_to_string(&end.log_paths[0]).unwrap();
        let begun = output.lines().filter(|line| line.contains("step 0 of")).count();
        assert_eq!(begun, 1, "{job}: {output}");
    }
    assert!(system.anywhere("wattle-simjob").is_empty());
    assert!(system.end().await.success());
}
