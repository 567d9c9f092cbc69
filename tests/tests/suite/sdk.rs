//! The Python module for training programs (`sdk/python`): its own tests, and its examples as jobs of a
//! system.
//!
//! Without `python3` the tests print that they did not run.

use std::process::Command;

use wattle_common::JobId;
use wattle_common::job::JobPhase;
use wattle_runtime::testing::{Weight, skipped, turn};
use wattle_tests::{System, repository};

/// Whether `python3` is missing; prints a note then.
fn no_python() -> bool {
    let missing =
        !Command::new("python3").arg("--version").output().is_ok_and(|o| o.status.success());
    if missing {
        skipped("the Python module: python3 is not installed");
    }
    missing
}

/// Submits an example of `sdk/python/examples` that runs until `steps`.
fn submit(system: &System, job: &str, program: &str, example: &str, steps: u64) -> JobId {
    let sdk = repository("sdk/python").canonicalize().unwrap();
    let script = sdk.join("examples").join(example).display().to_string();
    let path = std::env::var("PATH").unwrap_or_default();
    let (modules, path) = (format!("PYTHONPATH={}", sdk.display()), format!("PATH={path}"));
    let steps = steps.to_string();
    let head = ["submit", "--job", job, "--checkpoint-signal", "USR1", "--gpus", "2", "--env"];
    let tail = [modules.as_str(), "--env", &path, "--", program, &script, &steps];
    let output = system.wattle(&[&head[..], &tail].concat());
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{error}\n{}", system.logs());
    JobId::new(String::from_utf8_lossy(&output.stdout).trim()).unwrap()
}

/// The tests of the module that need Python alone.
#[test]
fn tests_of_the_python_module_pass() {
    if no_python() {
        return;
    }
    let output = Command::new(repository("sdk/python/test")).output().unwrap();
    let text =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success(), "{}", text.concat());
    assert!(text.concat().contains("\nOK"), "{}", text.concat());
}

/// A Python loop reports its steps, writes a checkpoint when the system ends, and continues from it in the
/// next attempt; then a loop in bash completes.
#[tokio::test]
async fn python_loop_reports_steps_and_continues_from_its_checkpoint() {
    let _turn = turn(Weight::Long);
    if no_python() {
        return;
    }
    let args = ["--simulated", "1x2:v100"];
    let mut system = System::up(&args).await;
    // At least 14 s of steps, of which the first attempt runs a part.
    let job = submit(&system, "loop", "python3", "loop.py", 7_000);
    let running =
        system.until_job(&job, "it reports steps", |r| r.step.is_some_and(|s| s > 0)).await;
    assert_eq!(running.attempt, 1, "{running:#?}");
    let shown = system.wattle(&["jobs"]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    let line = shown.lines().find(|line| line.starts_with("loop")).unwrap_or_default();
    assert!(line.contains('%'), "its progress: {shown}");

    system.end_and_start_again(&args).await;
    let end = system.until_job(&job, "it is finished", |r| r.phase.is_final()).await;
    assert_eq!((end.phase, end.attempt), (JobPhase::Finished, 2), "{end:#?}\n{}", system.logs());
    let output = std::fs::read_to_string(&end.log_paths[0]).unwrap();
    assert!(output.contains("attempt 1 from step 0 on 2 GPUs"), "{output}");
    let resumed = output.split("attempt 2 from step ").nth(1).unwrap_or_else(|| panic!("{output}"));
    let step: u64 = resumed.split(' ').next().unwrap().parse().unwrap();
    assert!(step >= running.step.unwrap(), "it continues after {:?}: {output}", running.step);
    assert!(resumed.contains("completed"), "{output}");
    // The last report may arrive after the end.
    assert!(end.step.is_some_and(|last| (step..=7_000).contains(&last)), "{end:#?}");

    let shell = submit(&system, "shell", "bash", "train.sh", 1_000);
    system.until_job(&shell, "it reports steps", |r| r.step.is_some_and(|s| s > 0)).await;
    let end = system.until_job(&shell, "it is finished", |r| r.phase.is_final()).await;
    assert_eq!(end.phase, JobPhase::Finished, "{end:#?}");
    assert!(system.end().await.success());
}
