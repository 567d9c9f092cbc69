//! Job records: progress of other attempts, records of ended jobs.

use wattle_common::messages::JobProgressed;
use wattle_common::{JobId, NodeId};

use crate::live::Event;
use crate::live::tests::world::World;
use crate::live::tests::{job_id, spec};

#[test]
fn progress_of_other_attempts_is_ignored() {
    let mut world = World::new(1, 2);
    world.long = true;
    world.submit(spec("a", 1));
    world.pass(3);
    let mut report = JobProgressed {
        job: job_id("a"),
        admission: None,
        node: NodeId::new("n0").unwrap(),
        attempt: 1,
        at_us: world.now,
        step: 400,
        steps_total: Some(4_000),
        epoch: Some(1),
        steps_per_epoch: Some(400),
        steps_per_s: Some(10.0),
    };
    world.deliver(Event::Progressed(report.clone()));
    assert_eq!((world.record("a").step, world.record("a").epoch), (Some(400), Some(1)));
    report.attempt = 7;
    report.step = 9;
    report.epoch = Some(2);
    world.deliver(Event::Progressed(report));
    assert_eq!(world.record("a").step, Some(400));
}

#[test]
fn old_records_are_deleted() {
    let mut world = World::new(1, 2);
    world.config.ended_kept = 2;
    world.restart();
    for job in ["a", "b", "c"] {
        world.submit(spec(job, 2));
        world.pass(15);
    }
    assert_eq!(world.jobs.keys().map(JobId::as_str).collect::<Vec<_>>(), ["b", "c"]);
}
