//! The bound of the energy aim on the jobs of each project.
#![allow(clippy::float_cmp, reason = "exact figures are meant")]

use std::time::Duration;

use wattle_common::Frequency;
use wattle_common::aim::{AimBound, Baseline};
use wattle_common::job::GpuSetting;
use wattle_common::messages::{AimProject, AimStatus};
use wattle_placer::plan::capabilities::PriceRange;
use wattle_placer::power::slowdown::{STEP, SlowdownController};
use wattle_placer::twin::Departure;
use wattle_placer::{JobFacts, JobKey};

use crate::policies::helpers::{facts, report};
use crate::twin::World;

const PRICES: PriceRange = PriceRange { least: 1e-5, most: 1.0 };
/// A speed of 0.85.
const SLOW: GpuSetting =
    GpuSetting { cap_mw: None, clock_mhz_max: Some(Frequency::from_mhz(1_080)) };

/// A project's job at this setting.
fn start(world: &mut World, project: &str, gpu: u32, setting: GpuSetting) -> JobKey {
    let facts = JobFacts { project: Some(project.into()), ..facts(&format!("of-{project}"), 1) };
    let key = world.submit_job(facts, Some(0));
    world.start(key, gpu, setting);
    // Of unknown length it would end in the twin after an hour.
    report(&mut world.site, key, 1, 36_000);
    key
}

/// Passes this many steps and returns the last price.
fn steps(world: &mut World, controller: &mut SlowdownController, count: u32) -> f64 {
    let mut price = 0.0;
    for _ in 0..count {
        world.pass(STEP.as_secs() / 60);
        price = controller.step(&world.site.state, Some(&world.twin), PRICES);
    }
    price
}

fn bound(project: Option<f64>) -> AimBound {
    AimBound { project, ..AimBound::mean(Some(Baseline::Fifo), 0.5) }
}

/// A cluster with a job of `text` at the default setting and one of `vision` at the lower clock.
fn two_projects() -> (World, JobKey) {
    let mut world = World::new(2);
    start(&mut world, "text", 0, GpuSetting::DEFAULT);
    let slow = start(&mut world, "vision", 1, SLOW);
    (world, slow)
}

fn slowdown(status: &AimStatus, project: &str) -> f64 {
    let of = status.projects.iter().find(|of| of.project == project);
    of.and_then(AimProject::slowdown).unwrap()
}

#[test]
fn the_latest_project_sets_the_price() {
    let (mut world, _) = two_projects();
    let mut of_all = SlowdownController::new(bound(None), None, world.site.now());
    let mut of_each = SlowdownController::new(bound(Some(0.05)), None, world.site.now());
    let mut free = 0.0;
    for _ in 0..60 {
        free = steps(&mut world, &mut of_all, 1);
        of_each.step(&world.site.state, Some(&world.twin), PRICES);
    }
    assert!(free > 1e-3, "8 % later on average of 50 % permitted: {free}");
    let status = of_each.status(0.0);
    assert_eq!((status.price, status.slowdown()), (0.0, of_all.status(free).slowdown()));
    // At 1,080 MHz each second costs 0.15 s; the job has not completed in the twin.
    assert!((slowdown(&status, "vision") - 0.15).abs() < 5e-3, "{status:?}");
    assert_eq!(slowdown(&status, "text"), 0.0);
    assert_eq!(status.latest_project().unwrap().0, "vision");
    assert_eq!(status.bound(), bound(Some(0.05)));
}

#[test]
fn the_price_rises_once_the_late_project_has_no_jobs() {
    let (mut world, slow) = two_projects();
    let mut controller = SlowdownController::new(bound(Some(0.05)), None, world.site.now());
    assert_eq!(steps(&mut world, &mut controller, 60), 0.0);
    world.leave(slow, 3_060, 0.0, Departure::Completed);
    let price = steps(&mut world, &mut controller, 60);
    assert!(price > 1e-3, "{price}");
    // It is remembered: a new job of the project meets the same bound.
    start(&mut world, "vision", 1, SLOW);
    assert_eq!(steps(&mut world, &mut controller, 15), 0.0);
}

#[test]
fn a_restarted_controller_continues_with_each_project() {
    let (mut world, _) = two_projects();
    let mut controller = SlowdownController::new(bound(Some(0.05)), None, world.site.now());
    let price = steps(&mut world, &mut controller, 30);
    let stored = controller.status(price);
    let restored = SlowdownController::new(bound(Some(0.05)), Some(&stored), world.site.now());
    assert_eq!(restored.status(price), stored);
    // A bound that is removed leaves nothing behind.
    let without = SlowdownController::new(bound(None), Some(&stored), world.site.now());
    assert_eq!(without.status(price).projects, []);
    let past = Duration::from_secs(60);
    assert_eq!(restored.next_step(), world.site.now() + past);
}
