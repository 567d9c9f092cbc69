//! The estimate of the delay relative to the time aim, and the price that follows it.
#![allow(clippy::float_cmp, reason = "exact figures are meant")]

use std::time::Duration;

use wattle_common::Frequency;
use wattle_common::aim::AimBound;
use wattle_common::job::GpuSetting;
use wattle_placer::plan::capabilities::PriceRange;
use wattle_placer::power::slowdown::{STEP, SlowdownController};
use wattle_placer::{GpuSet, JobKey, NodeKey};

use crate::policies::helpers::{arrive, cluster, facts, report};
use crate::support::Site;

const PRICES: PriceRange = PriceRange { least: 1e-5, most: 1.0 };
const SLOW: GpuSetting =
    GpuSetting { cap_mw: None, clock_mhz_max: Some(Frequency::from_mhz(1_080)) };

/// Runs this many steps; the estimated slowdown and the last price.
fn steps(site: &mut Site, controller: &mut SlowdownController, count: u32) -> (f64, f64) {
    let mut price = 0.0;
    for _ in 0..count {
        site.pass(STEP);
        price = controller.step(&site.state, None, PRICES);
    }
    (controller.status(price).slowdown().unwrap(), price)
}

fn start(site: &mut Site, key: JobKey, gpu: u32, setting: GpuSetting) {
    site.job_placed(key, GpuSet::on(NodeKey::at(0), 1 << gpu), setting, false);
}

#[test]
fn a_lower_clock_delays_a_job_by_its_loss_of_speed() {
    let mut site = cluster(&[2]);
    let mut controller = SlowdownController::new(AimBound::mean(None, 0.05), None, site.now());
    let key = arrive(&mut site, facts("slow", 1), Some(0));
    start(&mut site, key, 0, SLOW);
    // At 1,080 MHz the speed is 0.85: each second costs 0.15 s, which is 0.15 / 0.85 of the time that the job
    // would take.
    let (slowdown, price) = steps(&mut site, &mut controller, 10);
    assert!((slowdown - 0.15 / 0.85).abs() < 1e-3, "{slowdown}");
    assert_eq!(price, 0.0, "the bound of 5 % is exceeded");
}

#[test]
fn the_price_rises_while_jobs_run_at_full_speed() {
    let mut site = cluster(&[2]);
    let mut controller = SlowdownController::new(AimBound::mean(None, 0.05), None, site.now());
    let key = arrive(&mut site, facts("fast", 1), Some(0));
    start(&mut site, key, 0, GpuSetting::DEFAULT);
    let (slowdown, price) = steps(&mut site, &mut controller, 60);
    assert_eq!(slowdown, 0.0);
    assert!(price > 1e-3, "{price}");
    // A restart continues at the same price.
    let persisted = controller.status(price);
    let mut restored =
        SlowdownController::new(AimBound::mean(None, 0.05), Some(&persisted), site.now());
    let (_, after) = steps(&mut site, &mut restored, 1);
    assert!((after / price).ln().abs() < 0.3, "{price} then {after}");
}

#[test]
fn a_queued_job_waits_for_a_job_that_would_have_completed() {
    let delay_after = |setting| {
        let mut site = cluster(&[1]);
        let mut controller = SlowdownController::new(AimBound::mean(None, 0.05), None, site.now());
        let runs = arrive(&mut site, facts("runs", 1), Some(0));
        arrive(&mut site, facts("waits", 1), Some(0));
        start(&mut site, runs, 0, setting);
        // 600 steps at one per second; at the lower clock 85 % are done when all would be.
        report(&mut site, runs, 0, 600);
        for minute in 1..=11 {
            site.pass(Duration::from_secs(60));
            let rate = if setting.is_default() { 1.0 } else { 0.85 };
            let done = (f64::from(minute) * 60.0 * rate) as u64;
            report(&mut site, runs, done.min(599), 600);
            controller.step(&site.state, None, PRICES);
        }
        controller.status(0.0).delay_s
    };
    assert!(delay_after(GpuSetting::DEFAULT) < 61.0);
    let slow = delay_after(SLOW);
    // The loss of the running job, and at least one minute of the queued job.
    assert!(slow > 11.0 * 60.0 * 0.15 + 30.0, "{slow}");
}
