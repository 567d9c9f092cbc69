//! When the sums of the twin are stored.

use std::time::Duration;

use wattle_common::job::JobPhase;
use wattle_common::messages::{TWIN_COUNTS_AFTER, TwinStatus};

use super::spec;
use super::world::World;

#[test]
fn the_figures_of_an_empty_cluster_are_stored_once_its_energy_is_known() {
    let mut world = World::new(1, 4);
    let began = world.now;
    for job in ["a", "b"] {
        world.submit(spec(job, 1));
    }
    world.pass(60);
    let ended = ["a", "b"].map(|job| {
        assert_eq!(world.record(job).phase, JobPhase::Finished, "{job}");
        world.record(job).ended_at_us.unwrap()
    });
    let known = ended[0].max(ended[1]) + TWIN_COUNTS_AFTER;
    // The twin follows every minute, and its sums are stored every five.
    let by = known + Duration::from_secs(70);
    assert!(by < began + Duration::from_secs(290), "before the sums are due anyway");
    world.pass(by.since(world.now).as_secs());
    let (status, _) = world.twin.as_ref().expect("they are stored");
    assert!(status.at_us >= known);
    assert_eq!(status.all_rows().map(|row| row.sums.jobs).sum::<u64>(), 2);
}

/// Its stored values are lost while the placer is down.
#[test]
fn a_twin_without_its_stored_values_has_the_jobs_of_the_records() {
    let mut world = World::new(1, 4);
    for job in ["a", "b"] {
        world.submit(spec(job, 1));
    }
    world.pass(600);
    let before = world.twin.clone().expect("the sums are stored");
    for job in ["a", "b"] {
        let work = world.record(job).twin_work.as_ref().expect("it has ended");
        assert!(work.run_time_s.is_some_and(|run_s| run_s > 0.0), "{work:?}");
    }
    world.twin = None;
    world.restart();
    world.pass(600);
    let (after, _) = world.twin.clone().expect("they are stored again");
    assert!(after.replayed_at_us.is_some() && before.0.replayed_at_us.is_none());
    assert_eq!(after.since_us, before.0.since_us.max(world.record("a").spec.submitted_at_us));
    let sums = |status: &TwinStatus| {
        let jobs = status.all_rows().map(|row| row.sums.by_jobs_and_nodes().0);
        jobs.map(|sums| (sums.jobs, sums.completion_s_twin))
            .filter(|(jobs, _)| *jobs > 0)
            .collect::<Vec<_>>()
    };
    assert_eq!(sums(&after), sums(&before.0));
}
