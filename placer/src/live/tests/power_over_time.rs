//! A power limit that falls: caps and jobs fit it when it does, with a placer and without one.

use std::time::Duration;

use wattle_common::messages::{CapBound, SetBudget};
use wattle_common::{Budget, Power, PowerSeries, Timestamp};

use crate::live::Event;
use crate::live::tests::power_shares::{HOST, IDLE, draw, metered};
use crate::live::tests::spec;
use crate::live::tests::world::World;

const NODES: usize = 2;
/// Hosts and idle GPUs draw 800 W; the lowest caps of four jobs add 200 W.
const HIGH_W: u64 = 1_300;
const LOW_W: u64 = 1_050;
/// When the limit falls, and for how long, seconds after it is set.
const FALLS_S: u64 = 300;
const LOW_S: u64 = 600;

/// Four jobs under a limit that falls.
fn started() -> (World, PowerSeries) {
    let mut world = metered(NODES);
    let steps = vec![
        (0, Power::from_w(HIGH_W)),
        (FALLS_S, Power::from_w(LOW_W)),
        (FALLS_S + LOW_S, Power::from_w(HIGH_W)),
    ];
    let series = PowerSeries { starts_at_us: world.now, steps, period_s: 86_400 };
    let budget = Budget { power_series: Some(series.clone()), ..Budget::default() };
    world.deliver(Event::BudgetSet(7, Box::new(SetBudget { budget, intensity: None })));
    for job in ["a", "b", "c", "d"] {
        world.submit(spec(job, 1));
    }
    world.pass(100);
    (world, series)
}

fn after(series: &PowerSeries, seconds: u64) -> Timestamp {
    series.starts_at_us + Duration::from_secs(seconds)
}

fn drawn(world: &World) -> Power {
    (0..NODES).map(|node| draw(world, node)).sum()
}

#[test]
fn a_placer_keeps_a_limit_that_falls_and_uses_it_when_it_rises() {
    let (mut world, series) = started();
    let busy_w = drawn(&world);
    assert!(busy_w > Power::from_w(LOW_W), "the first limit permits more: {busy_w}");
    let restarted = FALLS_S - 30;
    while world.now < after(&series, FALLS_S + LOW_S + 120) {
        world.pass(1);
        let (drawn, most) = (drawn(&world), series.at(world.now));
        assert!(
            drawn <= most,
            "{drawn} of {most} at {}",
            world.now.since(series.starts_at_us).as_secs()
        );
        if world.now == after(&series, restarted) {
            world.restart();
        }
    }
    assert!(drawn(&world) > Power::from_w(LOW_W), "{}", drawn(&world));
}

/// What the caps permit at an instant by the last orders alone.
pub(super) fn permitted(world: &World, at: Timestamp) -> Power {
    (0..NODES).map(|node| permitted_on(world, node, at)).sum()
}

/// What the caps of a node permit at an instant by its last order alone.
pub(super) fn permitted_on(world: &World, node: usize, at: Timestamp) -> Power {
    let name = format!("n{node}");
    let order = world.desired(&name);
    let begun = order.caps_ahead.iter().rev().find(|bound| bound.from_us <= at);
    let bound = begun.and_then(|bound| bound.cap_mw);
    let (power, _) = world.reports(&name);
    let is_busy = |gpu: u32| order.jobs.iter().any(|job| job.gpus.contains(&gpu));
    let caps = power.gpus.iter().filter(|gpu| is_busy(gpu.gpu)).map(|gpu| {
        let least = gpu.cap_mw_min.unwrap();
        let cap = gpu.cap_mw.unwrap();
        bound.map_or(cap, |bound| cap.min(bound.max(least)))
    });
    let idle = power.gpus.iter().filter(|gpu| !is_busy(gpu.gpu)).map(|_| IDLE);
    HOST + caps.chain(idle).sum::<Power>()
}

#[test]
fn orders_bound_the_caps_for_the_time_without_a_placer() {
    let (world, series) = started();
    let bounds = world.desired("n0").caps_ahead.clone();
    let from = |bound: &CapBound| bound.from_us.since(series.starts_at_us).as_secs();
    let begins: Vec<u64> = bounds.iter().map(from).collect();
    assert_eq!(begins, [FALLS_S, FALLS_S + LOW_S, 86_400 + FALLS_S], "{bounds:?}");
    assert_eq!(bounds[1].cap_mw, None, "the ordered caps hold again");
    assert_eq!(bounds[2].cap_mw, bounds[0].cap_mw, "after a day the lowest limit holds");
    let now = permitted(&world, world.now);
    assert!(now > Power::from_w(LOW_W), "{now}");
    let low = permitted(&world, after(&series, FALLS_S));
    assert!(low <= Power::from_w(LOW_W), "{low}");
    assert!(low >= Power::from_w(LOW_W - 20), "no lower than needed: {low}");
    assert_eq!(permitted(&world, after(&series, FALLS_S + LOW_S)), now);
}
