//! The contest of predictors as an operator meets it: the list, a promotion and the way back, with
//! the registry killed in between.

use serde_json::Value;
use wattle_common::messages::Surface;
use wattle_common::subject::Bucket;
use wattle_tests::{System, reflects, until};

const SHIPPED: [&str; 2] = ["physical", "statistical"];

/// The listed predictors and the champion; `None` until all shipped ones are active.
fn listed(system: &System) -> Option<(Vec<Value>, String)> {
    let all = system.json(&["predictors", "--json"]);
    let all = all.as_array()?.clone();
    let well = |one: &&Value| one["state"] == "champion" || one["state"] == "challenger";
    let mut names: Vec<&str> = all.iter().filter(well).filter_map(|s| s["name"].as_str()).collect();
    names.sort_unstable();
    let serves = all.iter().find(|one| one["champion"] == true)?["name"].as_str()?.to_owned();
    (names == SHIPPED).then_some((all, serves))
}

#[tokio::test]
async fn a_predictor_is_promoted_and_taken_back_while_jobs_run() {
    let mut system =
        System::up(&["--simulated", "1x2:v100", "--rate", "60", "--policy", "fifo"]).await;
    let training = ["--workload", "eaco-alexnet", "--steps", "100000000"];
    let job = system.submit("j", &["--workload", "alexnet"], &training);
    let surface = async |by: &str| {
        let bucket = system.bus.bucket(Bucket::Surfaces).await.ok()?;
        let (surface, _): (Surface, u64) = bucket.get(job.as_str()).await.ok()??;
        (surface.predictor.as_str() == by).then_some(surface)
    };
    let (_, serves) = until("both are at work", async || listed(&system)).await;
    assert_eq!(serves, "physical");
    until("the job is predicted", async || surface("physical").await).await;
    until("each is scored", async || {
        let (all, _) = listed(&system)?;
        let scored = |one: &Value| one["power"]["same_config"]["windows"].as_u64() > Some(2);
        all.iter().all(scored).then_some(())
    })
    .await;

    let unknown = system.wattle(&["predictors", "promote", "oracle"]);
    let output = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert_eq!(unknown.status.code(), Some(2), "{output}");
    assert!(SHIPPED.iter().all(|name| output.contains(name)), "{output}");

    let promoted = system.wattle(&["predictors", "promote", "statistical"]);
    let output = String::from_utf8_lossy(&promoted.stdout).into_owned();
    assert!(promoted.status.success(), "{}", String::from_utf8_lossy(&promoted.stderr));
    assert_eq!(output.trim(), "statistical is now the champion; it replaced physical");
    until("its surface is the job's", async || surface("statistical").await).await;

    // Champion and scores survive a restart of the registry.
    system.kill_9("wattle-registry");
    until("the registry takes requests again", async || {
        let again = system.wattle(&["predictors", "promote", "statistical"]);
        let output = String::from_utf8_lossy(&again.stdout).into_owned();
        again
            .status
            .success()
            .then(|| assert_eq!(output.trim(), "statistical is already the champion"))
    })
    .await;
    let again = system.json(&["predictors", "promote", "statistical", "--json"]);
    reflects::promotion(&system.bus, "statistical", &again).await;
    let (all, serves) = until("all are listed again", async || listed(&system)).await;
    assert_eq!(serves, "statistical");
    let scored = |one: &Value| one["power"]["same_config"]["windows"].as_u64() > Some(0);
    assert!(all.iter().all(scored), "{all:#?}");

    let back = system.json(&["predictors", "promote", "physical", "--json"]);
    until("the first one's surface is back", async || surface("physical").await).await;
    for name in ["physical", "statistical"] {
        let status = reflects::promotion(&system.bus, name, &back).await;
        assert_eq!(status.champion, name == "physical");
    }
    let table = system.wattle(&["predictors"]);
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(table.lines().nth(1).unwrap().starts_with("* physical"), "{table}");
    assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
    assert!(system.end().await.success());
}
