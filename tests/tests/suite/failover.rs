//! Two placers with real nodes: one is paused or killed while jobs run, the other continues.

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use wattle_common::job::JobPhase;
use wattle_tests::{System, kill, until};

/// The lease of the active placer.
const LEASE: Duration = Duration::from_secs(3);

/// A second process of a service with the configuration and environment of a running one.
struct Second(Child);

impl Second {
    fn of(pid: u32, log: &std::path::Path) -> Self {
        let read = |file| std::fs::read(format!("/proc/{pid}/{file}")).unwrap();
        let words = |bytes: Vec<u8>| {
            let text = String::from_utf8(bytes).unwrap();
            text.split('\0').filter(|word| !word.is_empty()).map(str::to_owned).collect::<Vec<_>>()
        };
        let command = words(read("cmdline"));
        let environment = words(read("environ"));
        let child = Command::new(&command[0])
            .args(&command[1..])
            .env_clear()
            .envs(environment.iter().filter_map(|variable| variable.split_once('=')))
            .stdin(Stdio::null())
            .stderr(std::fs::File::create(log).unwrap())
            .spawn();
        Self(child.unwrap())
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn states(system: &System) -> BTreeMap<u32, String> {
    let found = system.bus.services("wattle-placer", Duration::from_millis(200)).await;
    let found = found.unwrap_or_default();
    found
        .iter()
        .map(|s| (s.metadata["pid"].parse().unwrap(), s.metadata["state"].clone()))
        .collect()
}

async fn until_state(system: &System, pid: u32, state: &str) {
    until(&format!("placer {pid} is {state}"), async || {
        (states(system).await.get(&pid).map(String::as_str) == Some(state)).then_some(())
    })
    .await;
}

/// The active placer is paused past its lease, and later the other one is killed, while jobs run and
/// users submit and cancel: every accepted job completes, in one attempt that one process carries out.
#[tokio::test]
async fn another_placer_continues_when_the_active_one_is_paused_or_killed() {
    let mut system =
        System::up(&["--simulated", "1x2:v100", "--rate", "60", "--policy", "fifo"]).await;
    // A shorter lease than the example's, from the placer's next start.
    let file = system.folder().join("config/placer.toml");
    let config = std::fs::read_to_string(&file).unwrap();
    let shorter = format!("service_lease_wall_ms = {}", LEASE.as_millis());
    assert!(config.contains("service_lease_wall_ms = 5000"), "{config}");
    std::fs::write(&file, config.replace("service_lease_wall_ms = 5000", &shorter)).unwrap();
    system.kill_9("wattle-placer");
    let first = until("one placer is active", async || {
        let states = states(&system).await;
        let placers = system.processes("wattle-placer");
        placers.first().copied().filter(|pid| states.get(pid).is_some_and(|s| s == "active"))
    })
    .await;
    let log = system.folder().join("logs/placer-second.log");
    let mut second = Second::of(first, &log);
    until_state(&system, first, "active").await;
    until_state(&system, second.0.id(), "standby").await;
    let training = ["--workload", "eaco-alexnet", "--steps", "2000", "--steps-per-epoch", "500"];
    let short = ["--workload", "eaco-alexnet", "--steps", "200"];
    // Two run and one waits behind them, all submitted at one instant.
    let held = system.hold();
    let mut jobs: Vec<_> =
        (0..2).map(|i| system.submit(&format!("f{i}"), &[], &training)).collect();
    let endless = ["--workload", "eaco-alexnet", "--steps", "100000000"];
    let cancelled = system.submit("f2", &[], &endless);
    drop(held);
    for job in &jobs {
        system.until_started(job).await;
    }

    kill(first, "STOP");
    until_state(&system, second.0.id(), "active").await;
    jobs.push(system.submit("late", &[], &short));
    let output = system.wattle(&["cancel", cancelled.as_str()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    kill(first, "CONT");
    until_state(&system, first, "standby").await;
    // The state of a job that the first one knew as queued is not restored.
    system.until_job(&cancelled, "it is cancelled", |r| r.phase == JobPhase::Cancelled).await;

    // Killed, and its process id remains until it is waited for.
    second.0.kill().unwrap();
    until_state(&system, first, "active").await;
    jobs.push(system.submit("last", &[], &short));
    for job in &jobs {
        let end = system.until_job(job, "it is finished", |r| r.phase.is_final()).await;
        assert_eq!((end.phase, end.attempt), (JobPhase::Finished, 1), "{end:#?}");
        let output = std::fs::read_to_string(&end.log_paths[0]).unwrap();
        let begun = output.lines().filter(|line| line.contains("step 0 of")).count();
        assert_eq!(begun, 1, "{job}: {output}");
    }
    assert!(system.anywhere("wattle-simjob").is_empty());
    drop(second);
    assert!(system.end().await.success());
}
