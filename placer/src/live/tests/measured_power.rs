//! Measured power corrects the plans below a power limit, and the caps of the plans hold the limit all the time.

use wattle_common::Power;
use wattle_common::job::JobPhase;

use crate::live::Event;
use crate::live::tests::kinds::surface;
use crate::live::tests::power_shares::{IDLE, limit, metered, pass};
use crate::live::tests::spec;
use crate::live::tests::world::World;

/// The limit: hosts of 600 W and idle GPUs of 200 W leave 380 W. Each job is predicted to draw 150 W above idle, so
/// two of them run.
const LIMIT_W: u64 = 1_180;

/// Two jobs run and a third one waits for power.
fn two_of_three() -> World {
    let mut world = metered(2);
    limit(&mut world, LIMIT_W as f64 / 1e3);
    for job in ["a", "b", "c"] {
        world.submit(spec(job, 1));
        world.deliver(Event::SurfaceKnown(Box::new(surface(job, "v100", 1.0))));
    }
    pass(&mut world, 40, 2, LIMIT_W);
    assert_eq!(world.record("b").phase, JobPhase::Running);
    assert_eq!(world.record("c").phase, JobPhase::Queued, "{:?}", world.log);
    world
}

/// Seconds in which each profiler sends its readings, of jobs that would draw this much on each GPU, W, and
/// whose GPUs obey their caps. The limit holds in each of them, by the caps alone.
fn measure(world: &mut World, seconds: u64, wants_w: impl Fn(&str) -> u64) {
    measure_every(world, 1, seconds, wants_w);
}

/// As [`measure`], with readings of an interval in place of a second.
fn measure_every(world: &mut World, interval_s: u64, seconds: u64, wants_w: impl Fn(&str) -> u64) {
    for second in 1..=seconds {
        pass(world, 1, 2, LIMIT_W);
        if second % interval_s != 0 {
            continue;
        }
        for node in ["n0", "n1"] {
            let summary = world.readings(node, interval_s, |applied, jobs| {
                let wants = jobs.iter().map(|job| Power::from_w(wants_w(job.as_str()))).max();
                wants.unwrap_or(IDLE).min(applied.cap_mw.unwrap())
            });
            world.deliver(Event::NodeSummarized(Box::new(summary)));
        }
    }
}

fn correction(world: &World) -> f64 {
    world.placer.measures().power_margin.unwrap().correction
}

/// The ordered cap of a job's GPU on n0, W.
fn cap_w(world: &World, gpu: u32) -> Option<u64> {
    let gpus = &world.desired("n0").gpus;
    let cap = gpus.iter().find(|known| known.gpu == gpu).and_then(|known| known.cap_mw);
    cap.map(|cap| cap.as_mw() / 1_000)
}

#[test]
fn power_that_jobs_do_not_draw_starts_another_within_seconds() {
    let mut world = two_of_three();
    measure(&mut world, 15, |_| 160);
    assert_eq!(world.record("c").phase, JobPhase::Running, "{:?}", world.log);
    let margin = world.placer.measures().power_margin.unwrap();
    assert!(margin.jobs_below >= 2 && margin.unused_share.is_some(), "{margin:?}");
    measure(&mut world, 60, |_| 160);
    assert_eq!(world.record("c").attempt, 1, "{:?}", world.log);
    assert_eq!(world.budget_status.as_ref().unwrap().power_margin.unwrap().jobs_below, 3);
}

#[test]
fn exact_predictions_change_nothing() {
    let mut world = two_of_three();
    measure(&mut world, 120, |_| 200);
    assert_eq!(world.record("c").phase, JobPhase::Queued);
    assert_eq!(cap_w(&world, 0), Some(200));
    let margin = world.placer.measures().power_margin.unwrap();
    assert_eq!((margin.jobs_below, margin.jobs_above, margin.jobs_measured), (0, 0, 2));
}

/// The limit is checked in every second of `measure`, by caps.
#[test]
fn a_job_whose_power_rises_is_slowed_until_others_have_given_way() {
    let mut world = two_of_three();
    measure(&mut world, 60, |_| 160);
    assert_eq!(world.record("c").phase, JobPhase::Running);
    let lowered = cap_w(&world, 0).unwrap();
    assert!((160..170).contains(&lowered), "{lowered}");
    measure(&mut world, 30, |job| if job == "a" { 250 } else { 160 });
    assert_eq!(cap_w(&world, 0), Some(200), "the prediction counts again");
    // It does not leave its power to others within the next minutes, although it draws less again.
    measure(&mut world, 120, |_| 160);
    assert_eq!(cap_w(&world, 0), Some(200));
}

#[test]
fn a_silent_profiler_returns_its_jobs_to_their_predictions() {
    let mut world = two_of_three();
    measure(&mut world, 60, |_| 160);
    assert!(correction(&world) < 0.9);
    // The profilers are silent; power agents and launchers report on.
    pass(&mut world, 15, 2, LIMIT_W);
    assert!((correction(&world) - 1.0).abs() < 1e-9);
}

/// Sixty times as fast as wall time, a profiler sends ten summaries in a second of wall time.
#[test]
fn readings_every_six_seconds_correct_the_plans_too() {
    let mut world = two_of_three();
    measure_every(&mut world, 6, 36, |_| 160);
    assert_eq!(world.record("c").phase, JobPhase::Running, "{:?}", world.log);
    measure_every(&mut world, 6, 120, |_| 160);
    assert_eq!(world.record("c").attempt, 1, "{:?}", world.log);
    let margin = world.placer.measures().power_margin.unwrap();
    assert_eq!((margin.jobs_below, margin.jobs_measured), (3, 3), "{margin:?}");
    assert!(margin.unused_share.is_some(), "while the third job waited");
    let (ratio, plan) = margin.measured_ratio.zip(margin.plan_margin).unwrap();
    assert!((ratio - 110.0 / 150.0).abs() < 1e-6 && (0.01..0.05).contains(&plan), "{margin:?}");
    // One lost reading changes nothing, a second one does.
    pass(&mut world, 11, 2, LIMIT_W);
    assert!(correction(&world) < 0.9);
    pass(&mut world, 3, 2, LIMIT_W);
    assert!((correction(&world) - 1.0).abs() < 1e-9);
}

#[test]
fn a_restarted_placer_begins_with_the_predictions() {
    let mut world = two_of_three();
    measure(&mut world, 60, |_| 160);
    world.restart();
    assert!((correction(&world) - 1.0).abs() < 1e-9);
    pass(&mut world, 20, 2, LIMIT_W);
    measure(&mut world, 60, |_| 160);
    assert_eq!(world.record("a").phase, JobPhase::Running);
}

#[test]
fn without_a_power_limit_readings_change_nothing() {
    let mut world = metered(1);
    world.submit(spec("a", 1));
    world.deliver(Event::SurfaceKnown(Box::new(surface("a", "v100", 1.0))));
    world.pass(20);
    assert!(!world.placer.reads_power());
    assert_eq!(world.placer.measures().power_margin, None);
}
