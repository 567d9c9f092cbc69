//! The Python lines of docs/messages.md, one for each subject, run against a system.
//!
//! Without `python3`, or where nats-py cannot be installed, the test prints that it did not run.

use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;

use wattle_common::subject::Topic;
use wattle_runtime::testing::skipped;
use wattle_tests::{System, repository};

/// A Python with nats-py, or a note that the test did not run. Tests that run at once install it once.
pub(crate) fn python() -> Option<PathBuf> {
    static INSTALLED: LazyLock<Result<PathBuf, String>> = LazyLock::new(install);
    INSTALLED.as_ref().inspect_err(|reason| skipped(reason)).ok().cloned()
}

/// Runs `tests/python`, which installs nats-py where it is missing; an error states what prevents that.
fn install() -> Result<PathBuf, String> {
    let output = Command::new(repository("tests/python")).output();
    let output = output.map_err(|error| error.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    match output.status.code() {
        Some(0) => Ok(text(&output.stdout).into()),
        Some(3) => Err(text(&output.stderr)),
        _ => panic!("tests/python: {}: {}", output.status, text(&output.stderr)),
    }
}

#[tokio::test]
async fn python_line_of_each_subject_runs() {
    let Some(python) = python() else { return };
    let mut system =
        System::up_as("local", &["--simulated", "1x2:v100", "--rate", "60", "--policy", "fifo"])
            .await;
    let training = ["--workload", "eaco-alexnet", "--steps", "100000000"];
    let job = system.submit("first", &["--gpus", "2", "--workload", "eaco-alexnet"], &training);
    system.until_job(&job, "it reports steps", |r| r.step.is_some_and(|step| step > 0)).await;
    let page = repository("docs/messages.md");
    let output = Command::new(python)
        .arg(repository("tests/messages/try"))
        .arg(system.url())
        .arg(system.key())
        .arg(page)
        .output();
    let output = output.unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}{error}\n{}", system.logs());
    // A line for each subject, and one for a bucket.
    assert!(text.contains(&format!("lines: {}", Topic::ALL.len() + 1)), "{text}");
    for topic in Topic::ALL {
        assert!(text.contains(&format!("{}: ", topic.token())), "{}: {text}", topic.token());
    }
    assert!(system.end().await.success());
}
