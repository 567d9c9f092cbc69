//! The predictor in Python (`predictor/examples/python`) in a live system: scored beside the others,
//! promoted while a job runs, and replaced again when it is gone.
//!
//! Without Python or nats-py the test prints that it did not run.

use std::process::{Child, Command, Stdio};

use wattle_tests::{System, repository, until};

use crate::messages::python;

const NAME: &str = "python-mean";

/// The example as a child that does not outlive the test.
struct Example(Child);

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The predictor of a job's prediction.
fn predicted_by(system: &System, job: &str) -> Option<String> {
    let explained = system.json(&["explain", job, "--json"]);
    explained["surface"]["predictor"].as_str().map(str::to_owned)
}

#[tokio::test]
async fn predictor_in_python_serves_a_running_job() {
    let Some(python) = python() else { return };
    let mut system =
        System::up(&["--simulated", "1x2:v100", "--rate", "60", "--policy", "fifo"]).await;
    let example = Command::new(python)
        .arg(repository("predictor/examples/python/predict.py"))
        .args(["--nats", system.url(), "--cluster", "test", "--key"])
        .arg(system.key())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn();
    let example = Example(example.unwrap());
    let training = ["--workload", "eaco-resnet50", "--steps", "100000000"];
    system.submit("one", &["--gpus", "2", "--workload", "eaco-resnet50"], &training);
    until("the example is scored", async || {
        let all = system.json(&["predictors", "--json"]);
        let own = all.as_array()?.iter().find(|one| one["name"] == NAME)?.clone();
        assert_eq!((&own["refused"], &own["error"]), (&0.into(), &serde_json::Value::Null));
        let windows = |quantity: &str| own[quantity]["same_config"]["windows"].as_u64();
        (windows("speed") > Some(2) && windows("power") > Some(2)).then_some(())
    })
    .await;
    until("the shipped champion serves", async || {
        (predicted_by(&system, "one")? == "physical").then_some(())
    })
    .await;

    let promoted = system.wattle(&["predictors", "promote", NAME]);
    assert!(promoted.status.success(), "{}", String::from_utf8_lossy(&promoted.stderr));
    until("the example serves", async || (predicted_by(&system, "one")? == NAME).then_some(()))
        .await;
    drop(example);
    let back = system.wattle(&["predictors", "promote", "physical"]);
    assert!(back.status.success(), "{}", String::from_utf8_lossy(&back.stderr));
    until("physical serves again", async || {
        (predicted_by(&system, "one")? == "physical").then_some(())
    })
    .await;
    assert!(system.end().await.success());
}
