//! Proof of delivery with all services: the minutes of a report have the energy of the ledger, also after the placer was
//! killed, and text, CSV and JSON state the same.

use std::collections::BTreeMap;

use serde_json::Value;
use wattle_common::messages::LedgerEntry;
use wattle_common::subject::StreamName;
use wattle_common::{Timestamp, codec};
use wattle_tests::{System, until};

const ARGS: [&str; 6] = ["--simulated", "2x2:v100", "--rate", "120", "--policy", "fifo"];
const MINUTE_US: u64 = 60_000_000;

/// The energy of the ledger in a minute, J.
fn joules(entries: &BTreeMap<(String, Timestamp), LedgerEntry>, from_us: u64) -> f64 {
    let (from, until) = (from_us, from_us + MINUTE_US);
    let parts = entries.values().map(|entry| {
        let (begin, end) = (entry.from_us.as_us(), entry.until_us.as_us());
        let within = end.min(until).saturating_sub(begin.max(from));
        (entry.gpus() + entry.energy_mj_host).as_j() * within as f64 / (end - begin) as f64
    });
    parts.sum()
}

/// The entries of the ledger, each once.
async fn ledger(system: &System) -> BTreeMap<(String, Timestamp), LedgerEntry> {
    let mut replay = system.bus.replay(StreamName::Ledger, None).await.unwrap();
    let mut entries = BTreeMap::new();
    while let Some(payload) = replay.next().await.unwrap() {
        let entry: LedgerEntry = codec::decode_json(&payload).unwrap();
        if entry.until_us > entry.from_us {
            entries.insert((entry.node.to_string(), entry.from_us), entry);
        }
    }
    entries
}

/// The minutes of the report with a record.
fn minutes(report: &Value) -> Vec<&Value> {
    let all = report["minutes"].as_array().unwrap();
    all.iter().filter(|minute| minute["site"].is_object()).collect()
}

#[tokio::test]
async fn a_report_has_the_energy_of_the_ledger() {
    let mut system = System::up(&ARGS).await;
    let training =
        ["--workload", "eaco-resnet50", "--steps", "100000000", "--steps-per-epoch", "300"];
    for job in ["first", "second"] {
        let id = system.submit(job, &["--gpus", "2", "--workload", "eaco-resnet50"], &training);
        system.until_started(&id).await;
    }
    // The power before it is measured.
    until("a percentage is accepted", async || {
        let added = system.wattle(&[
            "event",
            "add",
            "--id",
            "peak",
            "--start",
            "12m",
            "--ramp-down",
            "2m",
            "--reduce",
            "15%",
            "--duration",
            "6m",
            "--ramp-up",
            "2m",
            "--mandatory",
        ]);
        added.status.success().then_some(())
    })
    .await;
    let planned = system.wattle(&["event", "report", "peak"]);
    let text = String::from_utf8_lossy(&planned.stdout).into_owned();
    assert!(text.starts_with("grid event peak begins at "), "{text}");

    let report = || system.json(&["event", "report", "peak", "--json"]);
    until("the target is reached", async || {
        let report = report();
        let reached = minutes(&report).iter().filter(|minute| minute["phase"] == "target").count();
        (reached >= 2).then_some(())
    })
    .await;
    let so_far = system.wattle(&["event", "report", "peak"]);
    let text = String::from_utf8_lossy(&so_far.stdout).into_owned();
    assert!(text.starts_with("grid event peak, active, so far: the site was within"), "{text}");
    system.kill_9("wattle-placer");
    let last = until("the report is final", async || {
        let report = report();
        (report["is_final"] == true).then_some(report)
    })
    .await;

    // Each minute has the energy of the ledger, before and after the placer was killed.
    let entries = ledger(&system).await;
    let mut sum = 0.0;
    let rows = minutes(&last);
    assert!(rows.len() >= 22, "{} minutes", rows.len());
    for row in rows {
        let from_us = row["minute_us"].as_u64().unwrap();
        let stated = row["site"]["energy_mj"].as_u64().unwrap() as f64 / 1e3;
        let metered = joules(&entries, from_us);
        assert!((stated - metered).abs() < 0.1, "{stated} J and {metered} J in {row}");
        if row["phase"] != "return" && row["measured_mw"].is_u64() {
            sum += stated;
        }
    }
    let energy = last["energy_mj"].as_u64().unwrap() as f64 / 1e3;
    assert!((energy - sum).abs() < 0.1 && energy > 0.0, "{energy} J, {sum} J");

    // The means are within the target, and the verdict is of these figures.
    let kept = &last["compliance"]["target"];
    assert_eq!(
        (&kept["minutes"], &kept["within"]),
        (&kept["measured"], &kept["measured"]),
        "{kept}"
    );
    assert!(kept["measured"].as_u64() >= Some(4), "{kept}");
    let before = &last["baselines"][1];
    assert_eq!(before["method"], "meter-before");
    let share = before["delivered"]["less_mw"].as_f64().unwrap()
        / before["delivered"]["baseline_mw"].as_f64().unwrap();
    assert!((0.12..0.9).contains(&share), "{before}");
    let text = system.wattle(&["event", "report", "peak"]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    let within = kept["within"].as_u64().unwrap();
    assert!(text.contains(&format!("{within} of {within} minutes (100 %)")), "{text}");
    assert!(text.contains(&format!("({:.1} %) less than before", 100.0 * share)), "{text}");

    // The file has the same minutes.
    let csv = system.wattle(&["event", "report", "peak", "--csv"]);
    let csv = String::from_utf8_lossy(&csv.stdout).into_owned();
    let mut lines = csv.lines();
    let columns: Vec<&str> = lines.next().unwrap().split(',').collect();
    let energy_at = columns.iter().position(|name| *name == "energy_kwh").unwrap();
    let phase_at = columns.iter().position(|name| *name == "phase").unwrap();
    let cells: Vec<Vec<&str>> = lines.map(|line| line.split(',').collect()).collect();
    assert_eq!(cells.len(), last["minutes"].as_array().unwrap().len());
    let of_file: f64 = cells
        .iter()
        .filter(|row| row[phase_at] != "return")
        .filter_map(|row| row[energy_at].parse::<f64>().ok())
        .sum();
    assert!((of_file * 3.6e6 - energy).abs() < 1.0, "{of_file} kWh, {energy} J");
    assert!(system.end().await.success());
}
