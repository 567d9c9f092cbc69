//! Settling, live: sizes of a lone job, restarts in its record, and jobs without a checkpoint signal.

use wattle_common::job::{GpuRequest, JobPhase};
use wattle_testkit::{point, surface};

use super::*;
use crate::live::tests::world::World;

/// One long job on up to four GPUs of one node.
fn world(policy: fn() -> Box<dyn Policy>, signal: Option<&str>) -> World {
    let mut world = World::new(1, 4);
    world.long = true;
    world.policy = policy;
    world.restart();
    let mut spec = spec("a", 1);
    spec.gpus = GpuRequest { min: 1, max: 4 };
    spec.checkpoint_signal = signal.map(str::to_owned);
    world.submit(spec);
    world.pass(5);
    assert_eq!(world.record("a").phase, JobPhase::Running);
    world
}

/// A surface of one measured window with these steps per second at 1, 2 and 4 GPUs.
fn learn(world: &mut World, rates: [f64; 3]) {
    let points = rates.iter().zip([1, 2, 4]).map(|(rate, gpus)| point(gpus, *rate, 200.0));
    let surface = Surface { windows: 1, ..surface("a", "v100", points) };
    world.deliver(Event::SurfaceKnown(Box::new(surface)));
}

/// The number of GPUs of each of the job's placements, with the seconds since its submission.
fn sizes(world: &World) -> Vec<(usize, u64)> {
    let record = world.record("a");
    let placed = record.reasons.iter().filter(|reason| reason.decision.starts_with("placed on"));
    placed
        .map(|reason| {
            let gpus = reason.decision.split(':').nth(1).map_or(0, |gpus| gpus.split(',').count());
            (gpus, reason.at_us.since(record.spec.submitted_at_us).as_secs())
        })
        .collect()
}

/// 13 minutes in which measurements fluctuate by a few per cent around no gain from more GPUs. Without the
/// rule the job restarted at nearly every measurement.
#[test]
fn a_lone_job_without_gain_from_gpus_settles() {
    let policies: [fn() -> Box<dyn Policy>; 2] =
        [|| crate::policy("powerflow").unwrap(), || crate::policy("wattle").unwrap()];
    for build in policies {
        let policy = build().name().to_owned();
        let mut world = world(build, Some("SIGUSR1"));
        let rates = [
            [1.0, 1.6, 2.4],
            [1.0, 1.04, 1.03],
            [1.0, 1.02, 1.05],
            [1.0, 1.05, 1.04],
            [1.0, 1.01, 1.05],
            [1.0, 1.04, 1.03],
            [1.0, 1.02, 1.05],
            [1.0, 0.99, 0.98],
        ];
        for rates in rates {
            learn(&mut world, rates);
            world.pass(98);
        }
        let sizes = sizes(&world);
        assert!(sizes.len() <= 3, "{policy}: {sizes:?}");
        let spans = sizes.windows(2).map(|pair| pair[1].1 - pair[0].1);
        assert!(spans.clone().all(|span| span >= 300), "{policy}: {sizes:?}");
        assert_eq!(world.record("a").early_stops, 0);
        assert_eq!(world.record("a").restart_count() as usize, sizes.len() - 1);
    }
}

#[test]
fn left_sizes_and_restart_costs_persist_across_a_restart() {
    let mut world = world(|| crate::policy("powerflow").unwrap(), Some("SIGUSR1"));
    learn(&mut world, [1.0, 1.9, 3.6]);
    world.pass(330);
    assert_eq!(sizes(&world).last().map(|size| size.0), Some(4));
    let before = world.record("a").clone();
    assert_eq!(before.left_sizes.iter().map(|left| left.gpus).collect::<Vec<_>>(), [1]);
    let cost = before.restart_cost_ms.unwrap();
    world.restart();
    world.pass(40);
    let after = world.record("a");
    assert_eq!(after.left_sizes, before.left_sizes);
    assert_eq!(after.restart_cost_ms, Some(cost));
}

/// `can_stop` follows from the submission: without a checkpoint signal the job keeps its GPUs.
#[test]
fn a_job_without_a_checkpoint_signal_is_never_moved() {
    let policies: [fn() -> Box<dyn Policy>; 3] = [
        || crate::policy("powerflow").unwrap(),
        || crate::policy("greenflow").unwrap(),
        || crate::policy("wattle").unwrap(),
    ];
    for policy in policies {
        let mut world = world(policy, None);
        let key = world.placer.controller.state().job_key(&job_id("a")).unwrap();
        assert!(!world.placer.controller.state().job(key).unwrap().facts.can_stop);
        let mut short = spec("b", 4);
        short.duration_ms_estimate = Some(1_000);
        world.submit(short);
        learn(&mut world, [1.0, 1.9, 3.6]);
        world.pass(700);
        world.restart();
        world.pass(60);
        let record = world.record("a");
        assert_eq!((record.attempt, record.phase), (1, JobPhase::Running), "{}", policy().name());
        // Its owner may cancel it.
        world.cancel("a");
        world.pass(5);
        assert_eq!(world.record("a").phase, JobPhase::Cancelled);
    }
}
