//! Failures of a job: of one rank, of its program, of its supervisor or GPU.

use wattle_common::job::JobPhase;
use wattle_common::messages::{LaunchState, ReachedLimit};

use crate::live::tests::world::World;
use crate::live::tests::{job_id, spec};

#[test]
fn failing_rank_stops_the_others() {
    let mut world = World::new(2, 2);
    world.submit(spec("wide", 4));
    world.pass(3);
    assert_eq!(world.record("wide").phase, JobPhase::Running);
    assert_eq!(world.desired("n1").jobs[0].rank, 1);
    world.set_state("n1", "wide", LaunchState::exited(3));
    world.pass(3);
    let record = world.record("wide");
    assert_eq!((record.phase, record.exit_code), (JobPhase::Failed, Some(3)));
    assert_eq!(
        record.error.as_deref(),
        Some("its program ended with exit code 3 on n1; its output is in /log/wide")
    );
    assert_eq!(record.log_paths, ["/log/wide", "/log/wide"]);
    assert!(world.idle(), "the other rank was stopped");
}

/// A host goes down; the rank on the other one ends with an error before the first can report its loss.
#[test]
fn job_with_a_lost_rank_is_placed_again_although_another_rank_failed() {
    let mut world = World::new(2, 2);
    world.submit(spec("wide", 4));
    world.pass(3);
    world.cut_off("n1", true);
    world.set_state("n0", "wide", LaunchState::exited(1));
    world.pass(3);
    assert_eq!(world.record("wide").phase, JobPhase::Stopping);
    world.reboot("n1");
    world.cut_off("n1", false);
    world.pass(5);
    let record = world.record("wide");
    assert_eq!(record.error, None);
    world.pass(10);
    let record = world.record("wide");
    assert_eq!((record.phase, record.attempt), (JobPhase::Finished, 2), "{:?}", record.reasons);
}

#[test]
fn reached_limit_is_the_reason_of_the_failure() {
    let mut world = World::new(2, 2);
    world.submit(spec("wide", 4));
    world.pass(3);
    // The other rank ends because it waits in vain.
    world.set_state("n0", "wide", LaunchState::exited(1));
    let limit = Some(ReachedLimit::MemoryMib(65_536));
    world.set_state("n1", "wide", LaunchState::Exited { code: 137, limit });
    world.pass(3);
    let record = world.record("wide");
    assert_eq!((record.phase, record.exit_code), (JobPhase::Failed, Some(137)));
    assert_eq!(record.limit, limit);
    let reason = "it exceeded its memory limit of 64 GiB on n1 (exit code 137); its output is in \
                  /log/wide";
    assert_eq!(record.error.as_deref(), Some(reason));
    assert_eq!(record.reasons.last().unwrap().reason, reason);
}

#[test]
fn missing_program_fails_the_job_with_the_launchers_error() {
    let mut world = World::new(1, 2);
    world.refuse.insert(job_id("a"));
    world.submit(spec("a", 1));
    world.pass(3);
    let record = world.record("a");
    assert_eq!(record.phase, JobPhase::Failed);
    assert_eq!(record.error.as_deref(), Some("it cannot be started on n0: no such program"));
}

#[test]
fn lost_supervisor_or_gpu_restarts_the_job_up_to_attempts_max() {
    let mut world = World::new(1, 2);
    world.config.attempts_max = 3;
    world.restart();
    world.submit(spec("a", 1));
    world.pass(3);
    let lost = || LaunchState::Lost { error: "its supervisor was killed".to_owned() };
    world.set_state("n0", "a", lost());
    world.pass(3);
    assert_eq!((world.record("a").phase, world.record("a").attempt), (JobPhase::Running, 2));
    // A program that ends because its GPU failed is restarted.
    world.set_unhealthy("n0", 0, true);
    world.set_state("n0", "a", LaunchState::exited(1));
    world.pass(3);
    let record = world.record("a");
    assert_eq!((record.phase, record.attempt), (JobPhase::Running, 3));
    assert_eq!(record.placement.as_ref().unwrap().to_string(), "n0:1");
    world.set_state("n0", "a", lost());
    world.pass(3);
    let record = world.record("a");
    assert_eq!(record.phase, JobPhase::Failed);
    assert!(record.error.as_ref().unwrap().contains("attempts_max"), "{record:?}");
}
