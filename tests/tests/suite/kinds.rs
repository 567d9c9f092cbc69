//! Two GPU types on the whole system: a requested type is honoured, and other jobs are predicted on
//! both types.

use std::collections::BTreeSet;

use wattle_common::JobId;
use wattle_common::job::JobPhase;
use wattle_common::messages::Surface;
use wattle_common::subject::Bucket;
use wattle_tests::{System, until};

async fn surface(system: &System, job: &JobId) -> Option<Surface> {
    let bucket = system.bus.bucket(Bucket::Surfaces).await.ok()?;
    bucket.get(job.as_str()).await.ok()?.map(|(surface, _)| surface)
}

#[tokio::test]
async fn requested_gpu_type_is_honoured_and_other_jobs_are_predicted_on_both() {
    let args = ["--simulated", "1x2:v100,1x2:p100", "--rate", "120", "--policy", "powerflow"];
    let mut system = System::up(&args).await;
    let training =
        ["--workload", "eaco-alexnet", "--steps", "100000000", "--steps-per-epoch", "500"];
    let of_class = ["--workload", "eaco-alexnet"];

    let picky =
        system.submit("picky", &[&of_class[..], &["--gpu-type", "P100"]].concat(), &training);
    let runs = system.until_job(&picky, "it runs", |r| r.phase == JobPhase::Running).await;
    assert_eq!(runs.placement.unwrap().shares[0].node.as_str(), "n1", "the V100s were free, too");
    let seen = until("two windows of it are learned from", async || {
        surface(&system, &picky).await.filter(|surface| surface.windows >= 2)
    })
    .await;
    assert_eq!((seen.gpu_type.as_str(), seen.other_gpu_types.len()), ("p100", 0));

    // Measurements of the class on one type predict the next job on both types.
    let any = system.submit("any", &of_class, &training);
    let runs = system.until_job(&any, "it runs", |r| r.phase == JobPhase::Running).await;
    let node = runs.placement.unwrap().shares[0].node.clone();
    let (here, there) = if node.as_str() == "n1" { ("p100", "v100") } else { ("v100", "p100") };
    let both = until("it is measured on one type and predicted on the other", async || {
        surface(&system, &any).await.filter(|surface| surface.windows >= 1)
    })
    .await;
    assert_eq!(both.gpu_type, here);
    let kinds: BTreeSet<String> = both.clone().by_gpu_type().map(|on| on.gpu_type).collect();
    assert_eq!(kinds, BTreeSet::from(["p100".to_owned(), "v100".to_owned()]));
    let known = |on: &Surface| on.points.iter().any(|point| point.steps_per_s.is_some());
    let p100 = both.by_gpu_type().find(|on| on.gpu_type == "p100").unwrap();
    assert!(known(&p100), "{:?}", p100.basis);

    // The output of the commands.
    let stdout_of = |args: &[&str]| {
        let output = system.wattle(args);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let explained = stdout_of(&["explain", "any"]);
    assert!(explained.contains(&format!("on {there}: ")), "{explained}");
    assert!(stdout_of(&["explain", "picky"]).contains("requests 1 GPU of type p100"));
    assert!(stdout_of(&["jobs"]).contains("1 p100"));
    let refused = system.wattle(&["submit", "--gpu-type", "k80", "--", "true"]);
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{error}");
    assert!(error.contains("requests GPUs of type k80; the cluster has: p100, v100"));
    assert!(system.end().await.success());
}
