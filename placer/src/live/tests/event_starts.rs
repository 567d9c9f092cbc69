//! Jobs that start during a grid event have their promises from their start on.

use std::time::Duration;

use wattle_common::Power;
use wattle_common::event::{Depth, GridEvent, LOSS_ERROR};
use wattle_common::job::{Flexibility, JobSpec};

use crate::live::tests::events::{add, drawn, event, id, know, pass_until, promised};
use crate::live::tests::spec;
use crate::live::tests::world::World;

/// Beside hosts of 600 W three jobs draw at least 300 W with their promises.
const TARGET: Power = Power::from_w(1_050);

/// Three jobs that give up half, and a fourth one that arrives at the target and gives up this much.
fn joined(loss_permille: u32) -> (World, GridEvent) {
    let mut world = promised([500; 3]);
    let depth = Depth::Target { power_mw: TARGET };
    let event = GridEvent { depth, ..event(&world, "peak") };
    add(&mut world, event.clone());
    // Just after a look at the promises.
    pass_until(&mut world, event.start_us + Duration::from_secs(245));
    let flexibility = Some(Flexibility { loss_permille, ..Flexibility::default() });
    world.submit(JobSpec { flexibility, ..spec("d", 1) });
    know(&mut world);
    (world, event)
}

fn has_started(world: &World) -> bool {
    world.record("d").attempt > 0
}

#[test]
fn a_job_whose_promise_fits_starts_at_its_floor_and_is_in_the_record_at_once() {
    // At 0.9 of its speed it draws 150 W.
    let (mut world, event) = joined(100);
    pass_until(&mut world, event.start_us + Duration::from_secs(275));
    assert!(has_started(&world) && drawn(&world) <= TARGET, "{}", drawn(&world));
    let jobs = &world.event_jobs.as_ref().unwrap().events[&id("peak")];
    let (_, own) = jobs.iter().find(|(job, _)| job.as_str() == "d").unwrap();
    assert!(own.from_us >= event.start_us + Duration::from_secs(245), "{own:?}");
    pass_until(&mut world, event.end() + Duration::from_secs(120));
    let jobs = &world.event_jobs.as_ref().unwrap().events[&id("peak")];
    for own in jobs.values() {
        assert!(own.loss() <= own.promise.unwrap().loss() + LOSS_ERROR, "{own:?}");
    }
}

#[test]
fn a_job_whose_promise_does_not_fit_waits() {
    // It needs 200 W, 50 W more than the target leaves.
    let (mut world, event) = joined(20);
    pass_until(&mut world, event.end());
    assert!(!has_started(&world));
    pass_until(&mut world, event.end() + Duration::from_secs(120));
    assert!(has_started(&world));
    let jobs = &world.event_jobs.as_ref().unwrap().events[&id("peak")];
    let (_, own) = jobs.iter().find(|(job, _)| job.as_str() == "d").unwrap();
    assert!(own.loss() <= 0.02 + LOSS_ERROR, "{own:?}");
}
