//! A time that is held, a paused placer, clocks that are set, a placer that is away under a power limit, and a lost store, each
//! while jobs run on real launchers and power agents.

use std::time::Duration;

use nvml_sim::node::Node;
use wattle_common::job::JobPhase;
use wattle_common::messages::JobRecord;
use wattle_common::{JobId, Power};
use wattle_tests::examples::faketime;
use wattle_tests::services::{CONTROL, LEASE, LOST_AFTER, RATE, Services};
use wattle_tests::{reflects, until};

/// A job that outlasts its test.
const LONG: u32 = 100_000_000;
/// A step of a clock, wall time: an hour of system time.
const STEP_S: i64 = 3_600 / RATE as i64;

fn runs(record: &JobRecord) -> bool {
    record.phase == JobPhase::Running
}

async fn two_running_jobs(services: &Services) -> Vec<JobId> {
    let jobs = ["a", "b"].map(|job| services.submit(job, "eaco-resnet50", LONG));
    for job in &jobs {
        services.until_job(job, "it runs", runs).await;
    }
    jobs.to_vec()
}

/// No job was started again: neither by its record nor by its output.
async fn no_job_was_restarted(services: &Services, jobs: &[JobId]) {
    for job in jobs {
        let record = services.record(job).await.unwrap();
        let state = (record.phase, record.attempt);
        assert_eq!(state, (JobPhase::Running, 1), "{:#?}\n{}", record.reasons, services.logs());
        let output = std::fs::read_to_string(&record.log_paths[0]).unwrap();
        assert_eq!(output.matches(" attempt ").count(), 1, "{output}");
    }
}

/// Orders continue: each node gets a new lease, and a new job runs and completes.
async fn orders_continue(services: &Services, job: &str) {
    services.until_ordered().await;
    let job = services.submit(job, "eaco-resnet50", 20);
    let end = services.until_job(&job, "it has ended", |record| record.phase.is_final()).await;
    assert_eq!((end.phase, end.attempt), (JobPhase::Finished, 1), "{end:#?}");
}

/// Waits while everything runs until the services have seen `span` of wall time, which the rate multiplies.
async fn pass(services: &Services, span: Duration) {
    let end = services.now() + span * RATE;
    until("time passes", async || (services.now() >= end).then_some(())).await;
}

/// A test that holds the time gives commands at one instant.
#[tokio::test]
async fn time_that_is_held_stands_while_commands_are_answered() {
    let services = Services::start(1).await;
    let held = services.hold();
    let began = services.now();
    let job = services.submit("held", "eaco-resnet50", 20);
    assert_eq!(services.record(&job).await.unwrap().phase, JobPhase::Queued);
    let passed = services.now().since(began);
    assert!(passed < Duration::from_millis(1), "{passed:?}");
    drop(held);
    let end = services.until_job(&job, "it has ended", |record| record.phase.is_final()).await;
    assert_eq!((end.phase, end.attempt), (JobPhase::Finished, 1), "{end:#?}");
}

#[tokio::test]
async fn placer_that_was_paused_restarts_no_job() {
    let services = Services::start(2).await;
    let jobs = two_running_jobs(&services).await;
    services.signal("placer", CONTROL, "STOP");
    pass(&services, LOST_AFTER + LEASE).await;
    services.signal("placer", CONTROL, "CONT");
    services.until_alarm("the placer was paused or blocked for").await;
    orders_continue(&services, "after").await;
    no_job_was_restarted(&services, &jobs).await;
}

#[expect(clippy::print_stdout, reason = "the note of a test that is not run")]
fn note(text: &str) {
    println!("{text}");
}

/// All clocks are set while everything runs; then the placer restarts with the new time, then the launchers.
async fn all_clocks_are_set(seconds: i64) {
    if faketime().is_none() {
        note("not run, 1 test: faketime is not installed");
        return;
    }
    let side = if seconds > 0 { "ahead of" } else { "behind" };
    let other = if seconds > 0 { "behind" } else { "ahead of" };
    let mut services = Services::start(2).await;
    let jobs = two_running_jobs(&services).await;
    for host in [CONTROL, "n0", "n1"] {
        services.set_clock(host, seconds);
    }
    orders_continue(&services, "set").await;
    // The placer has the new time, the nodes the earlier one.
    services.kill_9("placer", CONTROL);
    services.run("placer", CONTROL);
    services.until_alarm(&format!("s {other} the placer's")).await;
    orders_continue(&services, "placer-restarted").await;
    no_job_was_restarted(&services, &jobs).await;
    for node in ["n0", "n1"] {
        services.kill_9("launcher", node);
        services.run("launcher", node);
    }
    orders_continue(&services, "nodes-restarted").await;
    // One host differs from the others.
    services.set_clock("n1", 2 * seconds);
    services.kill_9("launcher", "n1");
    services.run("launcher", "n1");
    until("an alarm about the clock of n1", async || {
        let log = services.log("placer", CONTROL);
        let of_n1 = |line: &str| {
            line.contains("the clock of n1 is") && line.contains(&format!("{side} the placer's"))
        };
        log.lines().any(of_n1).then_some(())
    })
    .await;
    orders_continue(&services, "one-differs").await;
    pass(&services, LOST_AFTER).await;
    no_job_was_restarted(&services, &jobs).await;
}

#[tokio::test]
async fn clocks_that_are_set_ahead_restart_no_job() {
    all_clocks_are_set(STEP_S).await;
}

#[tokio::test]
async fn clocks_that_are_set_back_restart_no_job() {
    all_clocks_are_set(-STEP_S).await;
}

#[tokio::test]
async fn power_limit_holds_while_the_placer_is_away() {
    let mut services = Services::start(2).await;
    let hardware: Vec<Node> =
        services.nodes.iter().map(|node| Node::open(&services.state_of(node)).unwrap()).collect();
    let caps = || -> Vec<Power> {
        let nodes = hardware.iter().map(|node| node.observe().unwrap().state);
        nodes.flat_map(|state| state.gpus.iter().map(|gpu| gpu.cap).collect::<Vec<_>>()).collect()
    };
    let draw = || -> Power {
        let nodes = hardware.iter().map(|node| node.observe().unwrap().state);
        nodes.map(|state| state.gpus.iter().map(|gpu| gpu.power).sum::<Power>()).sum()
    };
    let free = caps();
    // Four V100 of 250 W; without a limit the jobs draw more.
    let limit = Power::from_w(750);
    let jobs: Vec<JobId> = (0..4)
        .map(|job| services.submit(&format!("hot{job}"), "resnet50-imagenet-b128", LONG))
        .collect();
    for job in &jobs {
        services.until_job(job, "it runs", runs).await;
    }
    until("the jobs draw more than the limit", async || (draw() > limit).then_some(())).await;
    let output = services.wattle(&["budget", "set", "--power-kw", "0.75"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    until("the limit is held by caps", async || {
        let lowered = caps().iter().zip(&free).any(|(cap, free)| cap < free);
        (lowered && draw() <= limit).then_some(())
    })
    .await;
    services.kill_9("placer", CONTROL);
    let mut ends = services.now();
    for node in &services.nodes {
        let order = services.order(node).await.unwrap();
        ends = ends.max(order.expires_at_us);
        reflects::orders(&services.bus, node).await;
    }
    let before = caps();
    let holds = || {
        let (draw, now) = (draw(), caps());
        assert!(draw <= limit, "the GPUs draw {draw}, caps are {now:?}");
        let rises = now.iter().zip(&before).any(|(now, before)| now > before);
        assert!(!rises, "caps rise from {before:?} to {now:?}");
    };
    let lease = LEASE * RATE;
    until("a second lease has passed", async || {
        holds();
        (services.now() > ends + lease).then_some(())
    })
    .await;
    // A power agent that starts now has its caps from the expired order.
    services.kill_9("power-agent", "n0");
    services.run("power-agent", "n0");
    until("another lease has passed", async || {
        holds();
        (services.now() > ends + 3 * lease).then_some(())
    })
    .await;
    services.run("placer", CONTROL);
    services.until_ordered().await;
    no_job_was_restarted(&services, &jobs).await;
}

#[tokio::test]
async fn jobs_continue_when_the_store_is_lost() {
    let mut services = Services::start(2).await;
    let jobs = two_running_jobs(&services).await;
    services.kill_9("placer", CONTROL);
    services.server.restart_empty().await;
    services.run("placer", CONTROL);
    for job in &jobs {
        // The jobs run on one node or on two, and each node has its own alarm.
        until("the placer's alarm names the lost job", async || {
            let log = services.log("placer", CONTROL);
            let mut alarms = log.split("the store has lost ").skip(1);
            let named = |alarm: &str| {
                let jobs = alarm.split(" (").next()?.rsplit(": ").next()?;
                Some(jobs.split(", ").any(|named| named == job.as_str()))
            };
            alarms.any(|alarm| named(alarm) == Some(true)).then_some(())
        })
        .await;
        services.until_job(job, "it is adopted", runs).await;
    }
    orders_continue(&services, "after").await;
    pass(&services, LOST_AFTER).await;
    no_job_was_restarted(&services, &jobs).await;
    for job in &jobs {
        let output = services.wattle(&["cancel", job.as_str()]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        services.until_job(job, "it is cancelled", |r| r.phase == JobPhase::Cancelled).await;
    }
}
