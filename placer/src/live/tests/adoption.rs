//! Running jobs survive the loss of the store.

use wattle_common::job::JobPhase;

use super::spec;
use super::world::World;

/// `b` and `c` on one node, `a` on two others.
fn running() -> World {
    let mut world = World::new(3, 4);
    world.long = true;
    world.submit(spec("b", 1));
    world.submit(spec("c", 3));
    world.submit(spec("a", 8));
    world.pass(20);
    for job in ["a", "b", "c"] {
        assert_eq!(world.record(job).phase, JobPhase::Running, "{job}");
    }
    world
}

fn alarms(world: &World) -> Vec<&str> {
    world.log.iter().filter_map(|line| line.strip_prefix("alarm ")).collect()
}

#[test]
fn jobs_continue_and_are_adopted_after_the_store_was_lost() {
    let mut world = running();
    let placed: Vec<_> = ["a", "b", "c"].map(|job| world.record(job).placement.clone()).into();
    world.lose_store();
    world.pass(30);
    for (job, placement) in ["a", "b", "c"].iter().zip(placed) {
        let record = world.record(job);
        assert_eq!((record.phase, record.attempt), (JobPhase::Running, 1), "{:?}", world.log);
        assert_eq!(record.placement, placement);
        let reason = &record.reasons[0];
        assert!(reason.decision.starts_with("adopted on n"), "{reason:?}");
    }
    assert_eq!(alarms(&world).len(), 1, "{:?}", alarms(&world));
    assert!(
        alarms(&world)[0].contains("lost 3 running jobs of n0, n1, n2: a, b, c"),
        "{:?}",
        alarms(&world)
    );
    assert_eq!(world.desired("n0").jobs.len() + world.desired("n1").jobs.len(), 3);
    // Their GPUs are not given to another job, and they end like other jobs.
    world.submit(spec("d", 1));
    world.pass(10);
    assert_eq!(world.record("d").phase, JobPhase::Queued);
    world.cancel("b");
    world.pass(10);
    assert_eq!(world.record("b").phase, JobPhase::Cancelled);
    assert_eq!(world.record("d").phase, JobPhase::Running);
    world.long = false;
    world.pass(20);
    assert_eq!(world.record("a").phase, JobPhase::Finished);
    assert_eq!(world.record("c").phase, JobPhase::Finished);
}

#[test]
fn adopted_job_is_not_restarted_without_its_command() {
    let mut world = running();
    world.lose_store();
    world.pass(30);
    world.reboot("n0");
    world.pass(20);
    let record = world.record("b");
    assert_eq!((record.phase, record.attempt), (JobPhase::Failed, 1));
    assert!(record.error.as_ref().unwrap().contains("submit it again"), "{record:?}");
}

#[test]
fn older_copy_of_the_store_adopts_newer_starts() {
    let mut world = World::new(1, 4);
    world.long = true;
    world.submit(spec("b", 4));
    world.submit(spec("c", 4));
    world.pass(20);
    assert_eq!(world.record("c").phase, JobPhase::Queued);
    let (jobs, orders) = (world.jobs.clone(), world.orders.clone());
    world.cancel("b");
    world.pass(20);
    assert_eq!(world.record("c").phase, JobPhase::Running);
    (world.jobs, world.orders) = (jobs, orders);
    world.restart();
    world.pass(30);
    let record = world.record("c");
    assert_eq!((record.phase, record.attempt), (JobPhase::Running, 1), "{:?}", world.log);
    assert!(!record.spec.command.is_empty(), "its record was known");
}

#[test]
fn orphan_of_a_forgotten_job_is_stopped() {
    let mut world = running();
    world.cut_off("n0", true);
    world.pass(125);
    // The record is gone, but the store still has the node's orders.
    world.config.ended_kept = 0;
    world.restart();
    world.cancel("b");
    world.pass(5);
    assert!(world.is_live("n0", "b", 1));
    world.cut_off("n0", false);
    world.pass(10);
    assert!(!world.is_live("n0", "b", 1));
    assert!(alarms(&world).is_empty(), "{:?}", alarms(&world));
}
