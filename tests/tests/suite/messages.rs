//! The Python lines of docs/messages.md, one for each subject, run against a system.
//!
//! Without `python3`, or where nats-py cannot be installed, the test prints that it did not run.

use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;

use wattle_common::subject::Topic;
use wattle_tests::{System, repository};

/// A Python with nats-py, or a note that the test did not run. Tests that run at once install it once.
#[expect(clippy::print_stdout, reason = "the note of a test that is not run")]
pub(crate) fn python() -> Option<PathBuf> {
    static INSTALLED: LazyLock<Result<PathBuf, String>> = LazyLock::new(install);
    INSTALLED.as_ref().inspect_err(|reason| println!("SKIPPED: {reason}")).ok().cloned()
}

/// Installs nats-py into a virtual environment beside the programs; an error states what is missing.
fn install() -> Result<PathBuf, String> {
    let folder = wattle_tests::program("wattle").with_file_name("nats-py");
    let python = folder.join("bin/python");
    let has_package = || {
        let check = Command::new(&python).args(["-c", "import nats"]).output();
        check.is_ok_and(|output| output.status.success())
    };
    if has_package() {
        return Ok(python);
    }
    let made = Command::new("python3").args(["-m", "venv"]).arg(&folder).output();
    if !made.is_ok_and(|output| output.status.success()) {
        return Err("python3 with venv is not installed".into());
    }
    let pip = ["60", python.to_str().unwrap_or_default(), "-m", "pip", "install", "nats-py"];
    let output = Command::new("timeout").args(pip).output().map_err(|error| error.to_string())?;
    if has_package() {
        return Ok(python);
    }
    Err(format!("nats-py cannot be installed: {}", String::from_utf8_lossy(&output.stderr)))
}

#[tokio::test]
async fn python_line_of_each_subject_runs() {
    let Some(python) = python() else { return };
    let mut system =
        System::up_as("local", &["--simulated", "1x2:v100", "--rate", "60", "--policy", "fifo"])
            .await;
    let training = ["--workload", "eaco-alexnet", "--steps", "1000000"];
    let job = system.submit("first", &["--gpus", "2", "--workload", "eaco-alexnet"], &training);
    system.until_job(&job, "it reports steps", |r| r.step.is_some_and(|step| step > 0)).await;
    let page = repository("docs/messages.md");
    let output = Command::new(python)
        .arg(repository("tests/messages/try"))
        .arg(system.url())
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
