//! Two clusters on one NATS server never see each other.

use wattle_common::job::JobPhase;
use wattle_common::subject::Bucket;
use wattle_tests::{System, until};

#[tokio::test]
async fn two_clusters_on_one_server_never_see_each_other() {
    let args = ["--simulated", "1x1:v100", "--rate", "120", "--policy", "fifo"];
    let a = System::up_as("left", &args).await;
    let b = System::up_beside(&a, "right", &args).await;
    let training = ["--workload", "eaco-alexnet", "--steps", "500"];
    let left = a.submit("same-name", &[], &training);
    let done = a.until_job(&left, "it is finished", |r| r.phase.is_final()).await;
    assert_eq!(done.phase, JobPhase::Finished, "{}", a.logs());

    assert_eq!(b.json(&["jobs", "--all", "--json"]).as_array().unwrap().len(), 0);
    let orders = b.bus.bucket(Bucket::Desired).await.unwrap();
    let keys = until("the orders are read", async || orders.keys().await.ok()).await;
    assert!(keys.len() <= 1, "{keys:?}");
    let right = b.submit("same-name", &["--gpus", "1"], &training);
    let done = b.until_job(&right, "it is finished", |r| r.phase.is_final()).await;
    assert_eq!(done.phase, JobPhase::Finished, "{}", b.logs());
    assert_eq!(a.json(&["jobs", "--all", "--json"]).as_array().unwrap().len(), 1);
    // The first has the server.
    for mut system in [b, a] {
        assert!(system.end().await.success());
    }
}
