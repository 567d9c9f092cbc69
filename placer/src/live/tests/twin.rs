//! When the sums of the twin are stored.

use std::time::Duration;

use wattle_common::job::JobPhase;
use wattle_common::messages::TWIN_COUNTS_AFTER;

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
