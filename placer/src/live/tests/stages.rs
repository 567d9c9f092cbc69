//! The records of jobs state which stage of a planning round held them back, stopped or set them.

use std::time::Duration;

use wattle_common::job::JobSpec;
use wattle_common::messages::{IntensitySeries, RecordedReason, SetBudget};
use wattle_common::{Budget, CarbonIntensity};

use crate::Stage;
use crate::live::Event;
use crate::live::tests::budget::{minutes, set};
use crate::live::tests::spec;
use crate::live::tests::world::World;

/// The decisions about a job with what decided and why, oldest first.
fn decisions(world: &World, job: &str) -> Vec<String> {
    let text = |reason: &RecordedReason| {
        format!("{}: {}: {}", reason.decision, reason.decided_by(), reason.reason)
    };
    world.record(job).reasons.iter().map(text).collect()
}

#[test]
fn a_power_limit_names_itself_beside_the_placement_that_it_lowers() {
    let mut world = World::new(1, 4);
    world.long = true;
    set(&mut world, Budget::from_human(None, None, Some(0.9), None).unwrap());
    minutes(&mut world, 1, 4, 50);
    for job in ["a", "b", "c", "d"] {
        world.submit(spec(job, 1));
    }
    world.pass(10);
    assert_eq!(
        decisions(&world, "d"),
        [
            "placed on n0:3: fifo: first in the queue, on the first free GPUs in node order",
            "set to 150 W: power limits: 150 W instead of default: not enough power within the limit of 0.90 kW",
        ]
    );
    // The newest job has no power left.
    set(&mut world, Budget::from_human(None, None, Some(0.6), None).unwrap());
    world.pass(60);
    let last = |job| decisions(&world, job).pop().unwrap();
    let stopped = "power limits: not enough power within the limit of 0.60 kW";
    assert!(decisions(&world, "d").contains(&format!("taken off n0:3: {stopped}")));
    assert!(
        last("d").starts_with("waits: power limits: with it the site would draw "),
        "{}",
        last("d")
    );
}

#[test]
fn every_deferred_job_names_the_carbon_deferral_once() {
    let mut world = World::new(1, 1);
    world.bus_outage(100_000);
    world.pass(5);
    let steps = [(0, 500.0), (1_800, 450.0), (3_600, 100.0)];
    let steps = steps.map(|(at, g)| (at, CarbonIntensity::from_g_per_kwh(g))).to_vec();
    let (name, starts_at_us) = ("grid".to_owned(), world.now - Duration::from_secs(86_400));
    let intensity =
        Some(IntensitySeries { name, starts_at_us, steps, period_s: 86_400, origins: Vec::new() });
    let request = SetBudget { budget: Budget::default(), intensity };
    world.deliver(Event::BudgetSet(7, Box::new(request)));
    for job in ["first", "second"] {
        world.submit(JobSpec { slack_ms: Some(7_200_000), ..spec(job, 1) });
    }
    world.pass(2_000);
    for (job, now) in [("first", 450), ("second", 500)] {
        let [waits] = &world.record(job).reasons[..] else { panic!("{:?}", world.record(job)) };
        assert_eq!(waits.stage.as_deref(), Some(Stage::CarbonDeferral.name()), "{job}");
        // The reason of the first job in the queue follows the grid.
        assert!(waits.reason.contains(&format!("grid at {now} g/kWh")), "{job}: {}", waits.reason);
    }
}
