//! `wattle history`: what predictors keep of workloads comes out as CSV.

use std::process::Command;

use serde_json::{Value, json};
use wattle_common::ClusterId;
use wattle_common::subject::Bucket;
use wattle_runtime::bus::{Bus, BusConfig};
use wattle_runtime::testing::NatsServer;
use wattle_tests::{PATIENCE, program};

fn class() -> Value {
    json!({"updated_at_us": 7, "jobs": [["j1", {
        "levels": [{"gpus": 2, "nodes": 1, "ln_rate": {"mean": 0.0, "sd": 0.02}}],
        "busy": {"mean": 0.5, "sd": 0.03}, "memory_busy": null, "memory_mib": 9000,
        "ln_power": null, "shared": [],
    }]]})
}

#[tokio::test]
async fn what_was_learned_comes_out_as_csv() {
    let server = NatsServer::start().await;
    let config = BusConfig::at(&server.url());
    let cluster = ClusterId::new("any").unwrap();
    let bus = Bus::connect_within(&config, cluster, "test", PATIENCE).await.unwrap();
    let bucket = bus.bucket(Bucket::Knowledge).await.unwrap();
    let history = |more: &[&str]| {
        let mut command = Command::new(program("wattle"));
        command.args(["history", "--cluster", "any", "--nats", &server.url()]).args(more);
        let out = command.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (out.status.success(), text(&out.stdout), text(&out.stderr))
    };
    let (fine, empty, notes) = history(&[]);
    assert!(fine && empty.lines().count() == 1 && notes.contains("no history yet"), "{notes}");
    bucket.put("physical.class.v100.bert-b8", &class()).await.unwrap();
    bucket.put("other.class.v100.bert-b8", &class()).await.unwrap();
    bucket.put("physical.job.j1", &json!({"windows": []})).await.unwrap();
    bucket.put("python.class.v100.bert-b8", &json!({"weights": [1, 2]})).await.unwrap();
    let (fine, all, notes) = history(&[]);
    assert!(fine && notes.contains("1 classes in an unknown format"), "{notes}");
    let lines: Vec<&str> = all.lines().collect();
    assert_eq!(lines.len(), 3, "{all}");
    let columns = lines[0].split(',').count();
    assert!(
        lines[0].starts_with("predictor,gpu_type,class,job,updated_at_us,gpus,nodes,"),
        "{all}"
    );
    assert!(lines.iter().all(|line| line.split(',').count() == columns), "{all}");
    assert!(lines[1].starts_with("other,v100,bert-b8,j1,7,2,1,,,,,1,2,"), "{all}");
    let (fine, _, error) = history(&["--predictor", "nope"]);
    assert!(!fine && error.contains("unknown predictor `nope`"), "{error}");
    assert!(error.contains("other, physical, python"), "{error}");
    let (_, one, _) = history(&["--predictor", "physical"]);
    assert_eq!(one.lines().skip(1).collect::<Vec<_>>(), lines[2..], "{one}");
    let (fine, _, notes) = history(&["--predictor", "no name"]);
    assert!(!fine && notes.contains("no name"), "{notes}");
}
