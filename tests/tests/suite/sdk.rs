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

/// Submits an example of `sdk/python/examples`, whose path follows the words of `command`; then `steps`.
fn submit(system: &System, job: &str, command: &[&str], example: &str, steps: &[&str]) -> JobId {
    let sdk = repository("sdk/python").canonicalize().unwrap();
    let script = sdk.join("examples").join(example).display().to_string();
    let path = std::env::var("PATH").unwrap_or_default();
    let (modules, path) = (format!("PYTHONPATH={}", sdk.display()), format!("PATH={path}"));
    let head = ["submit", "--job", job, "--checkpoint-signal", "USR1", "--gpus", "2", "--env"];
    let environment = [modules.as_str(), "--env", &path, "--"];
    let output = system.wattle(&[&head[..], &environment, command, &[&script], steps].concat());
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{error}\n{}", system.logs());
    JobId::new(String::from_utf8_lossy(&output.stdout).trim()).unwrap()
}

/// Steps of the second attempt.
const LEFT: u64 = 2_000;
/// Runs `loop.py`, `$0`: the first attempt does not end by itself, the next one after [`LEFT`] steps.
const LOOP: &str = "state=$WATTLE_CHECKPOINT_DIR/last.json; total=100000000; \
     if [ -e $state ]; then total=$(($(sed 's/[^0-9]*\\([0-9]*\\).*/\\1/' $state) + 2000)); fi; \
     exec python3 $0 $total";

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
    let job = submit(&system, "loop", &["sh", "-c", LOOP], "loop.py", &[]);
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
    assert!(end.step.is_some_and(|last| (step..=step + LEFT).contains(&last)), "{end:#?}");

    let shell = submit(&system, "shell", &["bash"], "train.sh", &["1000"]);
    system.until_job(&shell, "it reports steps", |r| r.step.is_some_and(|s| s > 0)).await;
    let end = system.until_job(&shell, "it is finished", |r| r.phase.is_final()).await;
    assert_eq!(end.phase, JobPhase::Finished, "{end:#?}");
    assert!(system.end().await.success());
}
