//! Pauses of the placer, clocks that were set, and two services of one node.

use wattle_common::job::JobPhase;

use super::spec;
use super::world::World;

fn running() -> World {
    let mut world = World::new(2, 2);
    world.long = true;
    world.submit(spec("a", 2));
    world.submit(spec("b", 1));
    world.pass(20);
    assert_eq!(world.record("a").phase, JobPhase::Running);
    world
}

fn runs_its_first_attempt(world: &World) {
    for job in ["a", "b"] {
        let record = world.record(job);
        assert_eq!((record.phase, record.attempt), (JobPhase::Running, 1), "{:?}", record.reasons);
    }
}

fn alarms(world: &World) -> Vec<&str> {
    world.log.iter().filter_map(|line| line.strip_prefix("alarm ")).collect()
}

#[test]
fn no_node_is_lost_because_the_placer_was_paused() {
    let mut world = running();
    world.pause_placer(3_600);
    // The first wake after the pause comes before any report.
    world.wake();
    world.pass(60);
    runs_its_first_attempt(&world);
    assert!(alarms(&world)[0].contains("was paused or blocked for 36"), "{:?}", world.log);
    // Silence still counts from then on.
    world.cut_off("n0", true);
    world.pass(125);
    assert_eq!(world.record("a").phase, JobPhase::Queued);
}

#[test]
fn a_node_gets_jobs_at_once_after_the_placer_was_paused() {
    let mut world = running();
    world.pause_placer(3_600);
    world.submit(spec("c", 1));
    world.wake();
    assert!(world.placer.nodes.is_fresh(world.now, &"n1".parse().unwrap()));
}

#[test]
fn a_node_whose_clock_was_set_back_is_not_lost() {
    let mut world = running();
    world.set_clock_back("n0", 500);
    world.pass(200);
    runs_its_first_attempt(&world);
    let alarm = alarms(&world)[0];
    assert!(alarm.contains("clock of n0 is 500 s behind the placer's"), "{alarm}");
    assert_eq!(alarms(&world).len(), 1, "{:?}", alarms(&world));
}

#[test]
fn a_restart_after_all_clocks_were_set_back_restarts_no_job() {
    let mut world = running();
    let before = world.desired("n0").clone();
    world.now = world.now - std::time::Duration::from_secs(500);
    for node in ["n0", "n1"] {
        world.set_clock_back(node, 0);
    }
    world.restart();
    world.pass(130);
    runs_its_first_attempt(&world);
    let order = world.desired("n0");
    assert!(order.generation > before.generation, "agents ignore an order that is not newer");
    assert!(world.now.since(order.issued_at_us).as_secs() <= 20, "its lease is renewed");
}

#[test]
fn two_launchers_of_one_node_are_alarmed() {
    let mut world = running();
    world.second_launcher("n0");
    world.pass(10);
    let alarm = alarms(&world)[0];
    assert!(alarm.contains("two launchers report as node n0"), "{alarm}");
    runs_its_first_attempt(&world);
}
