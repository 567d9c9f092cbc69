//! A scenario with every kind of job event, and a kill of the placer before every write.

use wattle_common::job::JobPhase;

use crate::live::tests::forced_colocation::ForcedColocation;
use crate::live::tests::spec;
use crate::live::tests::world::World;

/// A scenario with every kind of job event. The placer is killed before write `kill_at`.
fn scenario(kill_at: Option<usize>) -> World {
    let mut world = World::new(2, 2);
    world.policy = || Box::new(ForcedColocation);
    world.restart();
    world.kill_at = kill_at.map(|write| write + world.writes);
    world.submit(spec("a", 1));
    world.pass(2);
    world.submit(spec("undo-me", 1));
    world.pass(1);
    world.submit(spec("wide", 4));
    world.submit(spec("cancelled", 2));
    world.pass(4);
    world.cancel("cancelled");
    world.submit(spec("short", 1));
    world.pass(30);
    world.submit(spec("late", 2));
    world.submit(spec("late-cancelled", 2));
    world.pass(3);
    world.cancel("late-cancelled");
    world.pass(60);
    world
}

#[test]
fn kill_before_any_write_loses_and_duplicates_no_job() {
    let undisturbed = scenario(None);
    let undone = undisturbed.record("undo-me");
    assert!(undone.reasons.iter().any(|reason| reason.decision.starts_with("taken off")));
    assert!(undisturbed.writes > 40, "the scenario has only {} writes", undisturbed.writes);
    for kill_at in 0..undisturbed.writes {
        let world = scenario(Some(kill_at));
        let history = || format!("killed before write {kill_at}:\n{}", world.log.join("\n"));
        for job in ["a", "undo-me", "wide", "late", "short"] {
            assert_eq!(world.record(job).phase, JobPhase::Finished, "{job}, {}", history());
        }
        for job in ["cancelled", "late-cancelled"] {
            assert_eq!(world.record(job).phase, JobPhase::Cancelled, "{job}, {}", history());
        }
        assert_eq!(world.unanswered(), 0, "{}", history());
        assert!(world.idle(), "{}", history());
        for node in ["n0", "n1"] {
            assert!(world.desired(node).jobs.is_empty(), "{}", history());
        }
    }
}
