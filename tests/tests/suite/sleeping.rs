//! Node sleep on the whole system: unused nodes sleep, and wake for a queued job.

use wattle_common::job::JobPhase;
use wattle_common::messages::NodeDesired;
use wattle_common::messages::desired::SleepState;
use wattle_common::subject::Bucket;
use wattle_tests::{System, until};

/// Of how many nodes it stands that they sleep.
async fn asleep(system: &System) -> usize {
    let bucket = system.bus.bucket(Bucket::Desired).await.unwrap();
    let mut asleep = 0;
    for node in ["n0", "n1"] {
        let desired: Option<(NodeDesired, _)> = bucket.get(node).await.unwrap();
        let sleep = desired.and_then(|(desired, _)| desired.sleep);
        asleep += usize::from(sleep.is_some_and(|sleep| sleep.state == SleepState::Asleep));
    }
    asleep
}

/// The state of a process as the kernel has it: `T` where it is stopped.
fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

#[tokio::test]
async fn simulated_nodes_sleep_and_wake_for_a_job() {
    let args = ["--simulated", "2x1:v100", "--sleep", "--rate", "120", "--policy", "fifo"];
    let mut system = System::up(&args).await;
    until("both nodes sleep", async || (asleep(&system).await == 2).then_some(())).await;
    let launchers = system.processes("wattle-launcher");
    assert_eq!(launchers.len(), 2);
    until("their services do not run", async || {
        launchers.iter().all(|&pid| state(pid) == Some('T')).then_some(())
    })
    .await;

    let shown = system.wattle(&["nodes"]);
    assert!(String::from_utf8_lossy(&shown.stdout).contains("asleep"), "{shown:?}");

    let training = ["--workload", "eaco-alexnet", "--steps", "500", "--steps-per-epoch", "100"];
    let job = system.submit("wakes", &[], &training);
    let end = system.until_job(&job, "it is finished", |r| r.phase.is_final()).await;
    assert_eq!(end.phase, JobPhase::Finished, "{end:#?}\n{}", system.logs());
    assert_eq!(end.attempt, 1, "{end:#?}");
    until("all nodes sleep again", async || (asleep(&system).await == 2).then_some(())).await;
    // Sleeping nodes are terminated too.
    assert!(system.end().await.success());
    assert!(system.anywhere("wattle-launcher").is_empty());
}
