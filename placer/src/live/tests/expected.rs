//! Expected times in the records of jobs, and their errors in the store.

use wattle_common::job::JobPhase;

use super::world::World;
use super::{job_id, spec};

/// One GPU, on which each job states a length of ten minutes and runs for an hour.
fn world() -> World {
    let mut world = World::new(1, 1);
    world.long = true;
    world.restart();
    world
}

fn submit(world: &mut World, job: &str) {
    let mut spec = spec(job, 1);
    spec.exclusive = true;
    spec.duration_ms_estimate = Some(600_000);
    world.submit(spec);
}

#[test]
fn the_record_of_a_queued_job_has_its_expected_start_and_end() {
    let mut world = world();
    submit(&mut world, "a");
    world.pass(60);
    submit(&mut world, "b");
    world.pass(60);
    assert_eq!(world.record("a").phase, JobPhase::Running);
    let times = |world: &World, job: &str| {
        world.record(job).expected.as_deref().cloned().expect("a round has been made")
    };
    let (a, b) = (times(&world, "a"), times(&world, "b"));
    let (end_of_a, start_of_b) = (a.end.unwrap(), b.start.unwrap());
    assert_eq!(a.start, None, "it runs");
    assert_eq!((end_of_a.at_us, end_of_a.forecasts), (start_of_b.at_us, 0));
    let run_s = b.end.unwrap().at_us.as_s() - start_of_b.at_us.as_s();
    assert!((run_s - 600.0).abs() < 1.0, "{run_s} s");
    assert!(start_of_b.from_us < start_of_b.at_us && start_of_b.at_us < start_of_b.until_us);
    // The stored record follows.
    world.pass(60);
    assert!(world.jobs[&job_id("b")].expected.is_some());
    world.cancel("b");
    world.pass(30);
    assert_eq!(world.record("b").expected, None, "it has ended");
}

#[test]
fn errors_survive_a_restart() {
    let mut world = world();
    submit(&mut world, "a");
    world.pass(30);
    submit(&mut world, "b");
    world.pass(30);
    world.cancel("a");
    world.pass(400);
    assert_eq!(world.record("b").phase, JobPhase::Running);
    let starts = |world: &World| {
        let stored = world.expected.as_ref().expect("stored every five minutes");
        let of_starts = stored.errors.iter().filter(|errors| !errors.of_end);
        of_starts.flat_map(|errors| errors.counts.values()).sum::<u64>()
    };
    let before = starts(&world);
    assert!(before >= 1, "b waited for its start");
    world.restart();
    world.pass(400);
    assert_eq!(starts(&world), before, "each start counts once");
}
