//! The run time of a job in its record: a sum over its starts, whatever ended each.

use std::time::Duration;

use wattle_common::Timestamp;
use wattle_common::job::JobPhase;

use super::spec;
use super::world::World;

/// Seconds with GPUs and in the queue, counted in steps of one second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counted {
    ran_s: u64,
    waited_s: u64,
}

/// Passes time second by second, and counts the phases in which the job is seen.
fn pass(world: &mut World, seconds: u64, job: &str, counted: &mut Counted) {
    for _ in 0..seconds {
        world.pass(1);
        match world.record(job).phase {
            JobPhase::Queued => counted.waited_s += 1,
            JobPhase::Starting | JobPhase::Running | JobPhase::Stopping => counted.ran_s += 1,
            JobPhase::Finished | JobPhase::Failed | JobPhase::Cancelled => {}
        }
    }
}

/// Run, lost with its GPU, queued until the GPU is back, run again, cancelled.
#[test]
fn a_job_keeps_the_run_time_of_every_start() {
    let mut world = World::new(1, 1);
    world.long = true;
    world.restart();
    let mut counted = Counted::default();
    world.submit(spec("a", 1));
    pass(&mut world, 40, "a", &mut counted);
    // Its processes are lost; the GPU is without new jobs meanwhile.
    world.set_unhealthy("n0", 0, true);
    pass(&mut world, 60, "a", &mut counted);
    assert_eq!(world.record("a").phase, JobPhase::Queued);
    let queued = world.record("a").run_time_ms;
    pass(&mut world, 30, "a", &mut counted);
    assert_eq!(world.record("a").run_time_ms, queued, "a queued job gains no run time");
    world.set_unhealthy("n0", 0, false);
    pass(&mut world, 60, "a", &mut counted);
    assert_eq!((world.record("a").phase, world.record("a").attempt), (JobPhase::Running, 2));
    // The sum continues from the record after a restart of the placer.
    world.restart();
    pass(&mut world, 20, "a", &mut counted);
    world.cancel("a");
    pass(&mut world, 20, "a", &mut counted);
    let record = world.record("a").clone();
    assert_eq!(record.phase, JobPhase::Cancelled);
    let ran = Duration::from_millis(record.run_time_ms.expect("an ended job keeps its run time"));
    // A phase may change within a second, and each change may be counted a second early or late.
    let within = |s: u64, counted: u64| s.abs_diff(counted) <= 4;
    assert!(within(ran.as_secs(), counted.ran_s), "{ran:?}: {counted:?}");
    let life = record.ended_at_us.unwrap_or(Timestamp::EPOCH).since(record.spec.submitted_at_us);
    assert!(within((life - ran).as_secs(), counted.waited_s), "{life:?}: {counted:?}");
}
