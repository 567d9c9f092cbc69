//! Nodes that do not report, and a bus that is away.

use wattle_common::job::JobPhase;

use crate::live::tests::spec;
use crate::live::tests::world::World;

#[test]
fn silent_node_gets_no_jobs_and_then_loses_its_jobs() {
    let mut world = World::new(2, 2);
    world.long = true;
    world.submit(spec("a", 2));
    world.pass(3);
    assert_eq!(world.record("a").placement.as_ref().unwrap().to_string(), "n0:0,1");
    world.cut_off("n0", true);
    world.pass(40);
    assert_eq!(world.record("a").attempt, 1, "stale, not lost");
    world.pass(90);
    let record = world.record("a");
    assert_eq!((record.phase, record.attempt), (JobPhase::Running, 2));
    assert_eq!(record.placement.as_ref().unwrap().to_string(), "n1:0,1");
    let why = &record.reasons[1];
    assert_eq!(why.reason, "n0 has not reported for 120 s");
    // The node returns while the old attempt still runs: its GPUs are not used until it ends.
    world.submit(spec("b", 1));
    world.slow_stop = true;
    world.cut_off("n0", false);
    world.pass(4);
    assert!(world.is_live("n0", "a", 1), "it is still stopping");
    assert_eq!(world.record("b").phase, JobPhase::Queued);
    world.slow_stop = false;
    world.pass(4);
    assert!(!world.is_live("n0", "a", 1));
    assert_eq!(world.record("b").placement.as_ref().unwrap().to_string(), "n0:0");
}

#[test]
fn no_node_is_lost_while_the_bus_is_away() {
    let mut world = World::new(1, 2);
    world.long = true;
    world.submit(spec("a", 1));
    world.pass(3);
    world.bus_outage(1_000);
    world.pass(60);
    assert_eq!((world.record("a").attempt, world.record("a").phase), (1, JobPhase::Running));
}
