//! The numbers for metrics.

use wattle_common::job::JobPhase;

use super::world::World;
use super::*;
use crate::live::measures::{GpuCounts, NodeCounts};

#[test]
fn numbers_follow_jobs_nodes_and_rounds() {
    let mut world = World::new(2, 2);
    world.pass(20);
    world.long = true;
    for job in ["one", "two", "three"] {
        world.submit(spec(job, 2));
    }
    world.pass(30);
    let measures = world.placer.measures();
    assert_eq!(measures.jobs.get(&JobPhase::Running), Some(&2));
    assert_eq!(measures.jobs.get(&JobPhase::Queued), Some(&1));
    assert_eq!(measures.gpus, GpuCounts { busy: 4, free: 0, unavailable: 0 });
    assert_eq!(measures.nodes, NodeCounts { ready: 2, ..NodeCounts::default() });
    let waited = measures.oldest_queued.as_secs();
    assert!((25..=35).contains(&waited), "{waited} s");
    assert!(measures.rounds > 1 && measures.rounds == world.placer.rounds());
    assert_eq!((measures.power_limit, measures.window), (None, None), "no budget");
    assert_eq!(measures.power_reserved, None, "without a limit nothing is reserved");

    world.cut_off("n1", true);
    world.pass(60);
    let measures = world.placer.measures();
    assert_eq!(measures.nodes, NodeCounts { ready: 1, silent: 1, ..NodeCounts::default() });
}
