//! GPUs with conditions: no new jobs, and jobs that continue.

use wattle_common::job::JobPhase;
use wattle_common::messages::{GpuConditionKind, LaunchState};

use super::spec;
use super::world::World;

#[test]
fn gpus_that_get_no_new_jobs_keep_their_jobs() {
    let mut world = World::new(1, 3);
    world.long = true;
    world.submit(spec("a", 1));
    world.pass(3);
    assert_eq!(world.record("a").placement.as_ref().unwrap().to_string(), "n0:0");
    world.set_condition("n0", 0, Some(GpuConditionKind::EccErrors));
    world.set_condition("n0", 1, Some(GpuConditionKind::MigEnabled));
    world.set_condition("n0", 2, Some(GpuConditionKind::ThermalSlowdown));
    world.pass(3);
    world.submit(spec("b", 1));
    world.submit(spec("c", 1));
    world.pass(3);
    assert_eq!(world.record("b").placement.as_ref().unwrap().to_string(), "n0:2");
    assert_eq!(world.record("c").phase, JobPhase::Queued);
    let a = world.record("a");
    assert_eq!((a.phase, a.attempt), (JobPhase::Running, 1), "its GPU answers");
    // The GPU stays empty until its condition ends.
    world.set_state("n0", "a", LaunchState::exited(0));
    world.pass(6);
    assert_eq!(world.record("a").phase, JobPhase::Finished);
    assert_eq!(world.record("c").phase, JobPhase::Queued);
    world.set_condition("n0", 0, None);
    world.pass(3);
    assert_eq!(world.record("c").placement.as_ref().unwrap().to_string(), "n0:0");
}

#[test]
fn a_program_that_fails_with_its_gpu_is_placed_again() {
    for gpu_failed in [true, false] {
        let mut world = World::new(1, 2);
        world.long = true;
        world.submit(spec("a", 1));
        world.pass(3);
        world.exits_before_the_gpus_are_read("n0", "a", 1);
        assert_eq!(world.record("a").phase, JobPhase::Running, "the cause is not known yet");
        world.set_unhealthy("n0", 0, gpu_failed);
        world.pass(3);
        let a = world.record("a");
        if gpu_failed {
            assert_eq!((a.phase, a.attempt), (JobPhase::Running, 2), "{a:?}");
            assert_eq!(a.placement.as_ref().unwrap().to_string(), "n0:1");
        } else {
            assert_eq!((a.phase, a.exit_code), (JobPhase::Failed, Some(1)), "{a:?}");
        }
    }
}

#[test]
fn a_failed_program_does_not_wait_for_a_silent_power_agent() {
    let mut world = World::new(1, 2);
    world.long = true;
    world.submit(spec("a", 1));
    world.pass(3);
    world.exits_before_the_gpus_are_read("n0", "a", 1);
    world.only_the_launcher_reports("n0", 5);
    assert_eq!(world.record("a").phase, JobPhase::Running);
    world.only_the_launcher_reports("n0", 60);
    let phase = world.record("a").phase;
    assert!(matches!(phase, JobPhase::Stopping | JobPhase::Failed), "{phase:?}");
}
