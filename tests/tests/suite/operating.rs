//! What an operator reads of a running system: energy, logs, explanations, names by prefix.

use std::collections::BTreeMap;

use serde_json::Value;
use wattle_common::codec;
use wattle_common::job::JobPhase;
use wattle_common::messages::{JobRecord, LedgerEntry};
use wattle_common::subject::StreamName;
use wattle_common::{Energy, JobId};
use wattle_tests::{System, kill, until};

const ARGS: [&str; 6] = ["--simulated", "2x1:v100", "--rate", "120", "--policy", "fifo"];

fn training(steps: &str) -> Vec<&str> {
    vec!["--workload", "eaco-resnet50", "--steps", steps, "--steps-per-epoch", "300"]
}

/// The complete ledger.
async fn ledger(system: &System) -> Vec<LedgerEntry> {
    let mut replay = system.bus.replay(StreamName::Ledger, None).await.unwrap();
    let mut entries = Vec::new();
    while let Some(payload) = replay.next().await.unwrap() {
        entries.push(codec::decode_json(&payload).unwrap());
    }
    entries
}

fn text(output: &std::process::Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// The energy of a row or a sum, millijoules.
fn mj(value: &Value) -> u64 {
    value["energy_mj"].as_u64().unwrap_or_else(|| panic!("no energy in {value}"))
}

/// One system for all of it: the CPU time of a test is mostly that of its jobs.
#[tokio::test]
async fn an_operator_reads_logs_explanations_and_energy() {
    let mut system = System::up(&ARGS).await;
    let ended = logs_name_the_nodes_and_follow_a_job_to_its_end(&system).await;
    unique_prefix_names_a_job_and_an_ended_job_is_explained(&system).await;
    energy_agrees_with_the_ledger_in_every_sum(&system, &ended).await;
    assert!(system.end().await.success());
}

/// `ended`: `both-nodes` and `single`, which are finished.
async fn energy_agrees_with_the_ledger_in_every_sum(system: &System, ended: &[JobId; 2]) {
    // The last entries of the jobs are in the ledger, and counted in their records.
    let attributed = async |job: &JobId| {
        let entries = ledger(system).await;
        let parts = entries.iter().flat_map(|entry| &entry.jobs).filter(|part| part.job == *job);
        parts.map(|part| part.energy_mj).sum::<Energy>()
    };
    for job in ended {
        until("the record has the energy of the ledger", async || {
            let record = system.record(job).await?;
            let ended = record.ended_at_us?;
            let entries = ledger(system).await;
            let all_counted = ["n0", "n1"].into_iter().all(|node| {
                let of_node = |entry: &&LedgerEntry| entry.node.as_str() == node;
                entries.iter().filter(of_node).any(|entry| entry.until_us >= ended)
            });
            let counted = record.energy_mj.filter(|_| all_counted)?;
            (counted == attributed(job).await && counted > Energy::ZERO).then_some(())
        })
        .await;
    }
    // No entry arrives while reports are compared.
    let profilers = system.processes("wattle-profiler");
    assert_eq!(profilers.len(), 2);
    profilers.iter().for_each(|profiler| kill(*profiler, "STOP"));
    let mut reports: BTreeMap<&str, Value> = BTreeMap::new();
    let entries = until("four reports of the same ledger", async || {
        for by in ["job", "user", "node", "day"] {
            reports.insert(by, system.json(&["energy", "--by", by, "--json"]));
        }
        let totals: Vec<u64> = reports.values().map(|report| mj(&report["total"])).collect();
        let entries = ledger(system).await;
        let all: Energy = entries
            .iter()
            .map(|e| e.energy_mj_gpus.iter().flatten().copied().sum::<Energy>() + e.energy_mj_host)
            .sum();
        totals.iter().all(|total| *total == all.as_mj()).then_some(entries)
    })
    .await;
    let sum = |value: &Value| value["rows"].as_array().unwrap().iter().map(mj).sum::<u64>();
    let uses = |report: &Value, of: &str| mj(&report["uses"][of]);
    for (by, report) in &reports {
        let rest = match *by {
            "job" | "user" => {
                ["idle_gpus", "unknown", "hosts"].map(|of| uses(report, of)).iter().sum()
            }
            _ => 0,
        };
        assert_eq!(sum(report) + rest, mj(&report["total"]), "by {by}: {report:#}");
    }
    let jobs: Energy = entries.iter().flat_map(|e| &e.jobs).map(|part| part.energy_mj).sum();
    assert_eq!(uses(&reports["node"], "jobs"), jobs.as_mj());
    assert_eq!(reports["node"]["rows"].as_array().unwrap().len(), 2);
    // `wattle jobs` shows the same energy of an ended job.
    let of = |job: &str, list: &Value, id: &str, energy: &str| {
        let find = |one: &&Value| one.pointer(id).and_then(Value::as_str) == Some(job);
        list.as_array().unwrap().iter().find(find).unwrap()[energy].as_u64().unwrap()
    };
    // A busy profiler may attribute a moment of the next interval to a job that has ended.
    until("`wattle jobs` shows the energy of the ledger", async || {
        let shown = system.json(&["jobs", "--all", "--json"]);
        let report = system.json(&["energy", "--by", "job", "--json"]);
        let agrees = |job: &&str| {
            let listed = of(job, &shown, "/spec/job", "energy_mj_total");
            listed == of(job, &report["rows"], "/name", "energy_mj")
        };
        ["both-nodes", "single"].iter().all(agrees).then_some(())
    })
    .await;
    let (code, csv, _) = text(&system.wattle(&["energy", "--by", "user", "--csv"]));
    assert!(
        code == Some(0) && csv.starts_with("use,user,jobs,energy_mj,energy_kwh\njob,"),
        "{csv}"
    );
    let (code, table, _) = text(&system.wattle(&["energy", "--by", "node"]));
    assert!(code == Some(0) && table.contains("n1"), "{table}");
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    profilers.iter().for_each(|profiler| kill(*profiler, "CONT"));
}

async fn logs_name_the_nodes_and_follow_a_job_to_its_end(system: &System) -> [JobId; 2] {
    let both = system.submit("both-nodes", &["--gpus", "2"], &training("1200"));
    system.until_job(&both, "it runs", |r| r.step.is_some_and(|step| step > 0)).await;
    // Follows to the end of the job.
    let (code, followed, notes) = text(&system.wattle(&["logs", "-f", "both"]));
    assert_eq!(code, Some(0), "{notes}");
    let end = system.until_job(&both, "it is finished", |r| r.phase.is_final()).await;
    assert_eq!(end.phase, JobPhase::Finished, "{}", system.logs());
    assert_eq!(end.log_paths.len(), 2);
    assert_ne!(end.log_paths[0], end.log_paths[1], "each node has its own file");
    // Each line of each file, whole and with its node.
    let (_, all, _) = text(&system.wattle(&["logs", "both-nodes"]));
    let lines = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(lines(&followed), lines(&all));
    for node in ["n0", "n1"] {
        // The paths are in the order of the ranks.
        let of_node = |path: &&String| path.ends_with(&format!(".{node}.log"));
        let path = end.log_paths.iter().find(of_node).unwrap();
        let prefix = format!("{node} | ");
        let file = std::fs::read_to_string(path).unwrap();
        let printed: Vec<&str> =
            all.lines().filter_map(|line| line.strip_prefix(prefix.as_str())).collect();
        assert_eq!(printed, file.lines().collect::<Vec<_>>(), "{node}");
        assert!(file.contains("epoch"), "the job's own output: {file}");
    }
    // The output of one node is printed as it is.
    let single = system.submit("single", &[], &training("300"));
    let end = system.until_job(&single, "it is finished", |r| r.phase.is_final()).await;
    let (_, printed, _) = text(&system.wattle(&["logs", "single"]));
    assert_eq!(printed, std::fs::read_to_string(&end.log_paths[0]).unwrap());
    [both, single]
}

async fn unique_prefix_names_a_job_and_an_ended_job_is_explained(system: &System) {
    let done = system.submit("train-a", &["--workload", "eaco-resnet50"], &training("1200"));
    // On a busy machine the predictors may need longer than the job.
    until("train-a has a predicted speed", async || {
        text(&system.wattle(&["explain", "train-a"])).1.contains("alternatives").then_some(())
    })
    .await;
    let end = system.until_job(&done, "it is finished", |r| r.phase.is_final()).await;
    assert_eq!(end.phase, JobPhase::Finished, "{}", system.logs());
    let long = system.submit("train-b", &[], &training("100000000"));
    let runs = |r: &JobRecord| r.phase == JobPhase::Running && r.step.is_some_and(|step| step > 0);
    system.until_job(&long, "it runs", runs).await;

    for args in [&["explain", "train"][..], &["logs", "train"], &["cancel", "train"]] {
        let (code, _, error) = text(&system.wattle(args));
        assert_eq!(code, Some(2), "{args:?}: {error}");
        assert!(error.contains("train-a, train-b"), "{args:?}: {error}");
    }
    let (code, _, error) = text(&system.wattle(&["explain", "other"]));
    assert!(code == Some(2) && error.contains("no job `other`"), "{error}");

    let (code, explained, error) = text(&system.wattle(&["explain", "train-a"]));
    assert_eq!(code, Some(0), "{error}");
    assert!(!explained.contains("no prediction yet"), "{explained}");
    for part in ["train-a has finished", "used ", "predicted by ", "fifo: ", "alternatives"] {
        assert!(explained.contains(part), "`{part}` is missing: {explained}");
    }
    let (code, jobs, _) = text(&system.wattle(&["jobs"]));
    assert!(code == Some(0) && jobs.starts_with("1 running, 0 queued"), "{jobs}");
    assert!(jobs.lines().all(|line| line.chars().count() <= 80), "{jobs}");
    // The power is that of a summary, which follows the record by up to a second.
    until("its power and its rest are shown", async || {
        let view = &system.json(&["jobs", "--json"])[0];
        let draws = view["power_mw"].as_u64().is_some_and(|mw| mw > 30_000);
        (draws && view["rest_ms"].as_u64().is_some_and(|ms| ms > 0)).then_some(())
    })
    .await;

    let (code, cancelled, _) = text(&system.wattle(&["cancel", "train-b"]));
    assert!(code == Some(0) && cancelled.contains("train-b is being cancelled"), "{cancelled}");
    let (code, _, error) = text(&system.wattle(&["top"]));
    assert!(code == Some(2) && error.contains("needs a terminal"), "{error}");
}
