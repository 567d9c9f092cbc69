//! GPUs that fail or change their mode under running jobs, on the whole system: what `wattle nodes` shows,
//! where no new job starts, and how the GPUs return.

use std::process::Command;

use serde_json::Value;
use wattle_common::JobId;
use wattle_common::job::JobPhase;
use wattle_tests::{System, until};

const CAP_W: u64 = 200;

fn simnode(system: &System, arguments: &[&str]) {
    let mut command = Command::new(wattle_tests::program("wattle-simnode"));
    command.args(&arguments[..1]).arg("--state").arg(system.node_state("n0"));
    let output = command.args(&arguments[1..]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn fault(system: &System, gpu: &str, fault: &str) {
    simnode(system, &["fault", "--gpu", gpu, fault]);
}

/// The conditions of the node's GPUs in `wattle nodes --json`.
fn conditions(report: &Value) -> Vec<Vec<&str>> {
    let gpus = report["gpus"].as_array().unwrap().iter();
    let of_gpu = |gpu: &'_ Value| gpu["health"]["conditions"].as_array().cloned();
    let names = gpus.map(|gpu| {
        let count = of_gpu(gpu).map_or(0, |all| all.len());
        let name = |at: usize| gpu["health"]["conditions"][at]["condition"].as_str().unwrap();
        (0..count).map(name).collect()
    });
    names.collect()
}

/// Waits until the power agent's report in `wattle nodes --json` satisfies `enough`.
async fn report(system: &System, what: &str, enough: impl Fn(&Value) -> bool) -> Value {
    until(what, async || {
        let nodes = system.json(&["nodes", "--json"]);
        Some(nodes[0]["power"].clone()).filter(|report| report.is_object() && enough(report))
    })
    .await
}

/// The table of `wattle nodes` and the lines below it.
fn shown(system: &System) -> String {
    let output = system.wattle(&["nodes"]);
    assert!(output.status.success(), "{output:?}");
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    text.concat()
}

fn submit(system: &System, job: &str) -> JobId {
    let training =
        ["--workload", "eaco-resnet50", "--steps", "100000000", "--steps-per-epoch", "100000"];
    system.submit(job, &[], &training)
}

async fn runs_on(system: &System, job: &JobId) -> String {
    let record = system.until_job(job, "it runs", |r| r.phase == JobPhase::Running).await;
    record.placement.unwrap().to_string()
}

#[tokio::test]
async fn faulty_gpus_get_no_new_jobs_and_return() {
    let cap = CAP_W.to_string();
    let mut system = System::up(&[
        "--simulated",
        "1x3:a100",
        "--rate",
        "60",
        "--policy",
        "fifo",
        "--gpu-cap-w",
        &cap,
    ])
    .await;
    let stays = submit(&system, "stays");
    assert_eq!(runs_on(&system, &stays).await, "n0:0");

    // Memory errors under the running job, and an idle GPU that becomes MIG.
    fault(&system, "0", "ecc-errors:2");
    fault(&system, "1", "mig");
    report(&system, "both conditions are reported", |r| {
        let all = conditions(r);
        all[0] == ["ecc-errors"] && all[1] == ["mig-enabled"] && all[2].is_empty()
    })
    .await;
    // The jobs of a GPU are those of a summary, which follows the record.
    for part in [
        "uncorrected memory errors",
        "MIG",
        "1 with jobs, 1 idle, 1 without new jobs",
        "nvidia-smi -r",
    ] {
        until(&format!("`wattle nodes` shows `{part}`"), async || {
            shown(&system).contains(part).then_some(())
        })
        .await;
    }
    let second = submit(&system, "second");
    let third = submit(&system, "third");
    assert_eq!(runs_on(&system, &second).await, "n0:2");
    assert_eq!(system.record(&third).await.unwrap().phase, JobPhase::Queued);

    // A GPU falls off the bus under its job.
    fault(&system, "2", "lost");
    let lost = report(&system, "it is lost", |r| conditions(r)[2] == ["lost"]).await;
    assert!(lost["gpus"][2]["health"]["conditions"][0]["detail"].is_string(), "{lost:#}");
    assert!(shown(&system).contains("1 lost"), "{}", shown(&system));
    let lost_it = "its program failed with the GPU";
    let second_ended = system.until_job(&second, lost_it, |r| r.phase == JobPhase::Queued).await;
    let why = second_ended.reasons.iter().any(|reason| reason.reason.contains("does not answer"));
    assert!(why, "{second_ended:#?}");
    assert_eq!(system.record(&third).await.unwrap().phase, JobPhase::Queued);
    let first = system.record(&stays).await.unwrap();
    assert_eq!((first.phase, first.attempt), (JobPhase::Running, 1), "{}", system.logs());

    // The driver is loaded again: caps are set again, the lost GPU and the one with errors return.
    simnode(&system, &["driver", "unload"]);
    report(&system, "the driver has failed", |r| r["driver_error"].is_string()).await;
    assert!(shown(&system).contains("the driver does not work"), "{}", shown(&system));
    system.until_job(&stays, "it is to be placed again", |r| r.phase == JobPhase::Queued).await;
    simnode(&system, &["driver", "load"]);
    let default = 400_000;
    let back = report(&system, "the GPUs return", |r| {
        let caps: Vec<u64> =
            (0..3).filter_map(|gpu: usize| r["gpus"][gpu]["cap_mw"].as_u64()).collect();
        let returned = caps == [CAP_W * 1_000, default, CAP_W * 1_000];
        let jobs = [0, 2].iter().all(|gpu| r["gpus"][*gpu]["health"]["no_new_jobs"].is_null());
        returned && jobs
    })
    .await;
    assert!(back["driver_error"].is_null(), "{back:#}");
    assert_eq!(
        conditions(&back),
        [vec!["persistence-off"], vec!["mig-enabled", "persistence-off"], vec!["persistence-off"]]
    );
    assert!(shown(&system).contains("run nvidia-persistenced"), "{}", shown(&system));
    let mut placed = [runs_on(&system, &stays).await, runs_on(&system, &second).await];
    placed.sort();
    assert_eq!(placed, ["n0:0", "n0:2"]);
    assert_eq!(system.record(&third).await.unwrap().phase, JobPhase::Queued);

    // MIG mode ends: the GPU gets its cap.
    fault(&system, "1", "clear");
    report(&system, "the GPU is Wattle's again", |r| {
        conditions(r)[1].is_empty() && r["gpus"][1]["cap_mw"] == CAP_W * 1_000
    })
    .await;
    assert_eq!(runs_on(&system, &third).await, "n0:1");
    // Each condition is alarmed once.
    let logs = std::fs::read_dir(system.folder().join("logs")).unwrap().map(|file| file.unwrap());
    let of_agent =
        |file: &std::fs::DirEntry| file.file_name().to_string_lossy().contains("power-agent");
    let logs: String =
        logs.filter(of_agent).map(|file| std::fs::read_to_string(file.path()).unwrap()).collect();
    for alarm in
        ["GPU 1 is in MIG mode", "GPU 0 has uncorrected memory errors", "no GPU can be read"]
    {
        assert_eq!(logs.matches(alarm).count(), 1, "{alarm}: {logs}");
    }
    assert!(system.end().await.success());
}
