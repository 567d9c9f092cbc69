//! Grid events of feeders in the simulated cluster: each is kept on its own feeder, beside one of the site, by caps and by
//! orders alone; and what is measured and recorded of it.

use std::time::Duration;

use wattle_common::event::{Depth, EventTargets, GridEvent, SETTLING};
use wattle_common::messages::{EventReply, PlanEvent};
use wattle_common::{FeederId, Power, Timestamp};

use crate::live::Event;
use crate::live::measures::TargetMeasures;
use crate::live::tests::events::{add, event, id, refused};
use crate::live::tests::power_over_time::permitted_on;
use crate::live::tests::power_shares::{IDLE, draw, meter, metered, put_on_feeders};
use crate::live::tests::spec;
use crate::live::tests::world::World;

const NODES: usize = 3;
/// What each GPU is metered with while its job runs: a node then draws 700 W.
const BUSY: Power = Power::from_w(200);
/// Each feeder carries one node and half of n0, so that it draws 1,050 W.
const DRAWN_W: u64 = 1_050;
/// A quarter less, rounded down.
const TARGET: Power = Power::from_mw(787_500);
const JOBS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

fn feeder(name: &str) -> FeederId {
    FeederId::new(name).unwrap()
}

/// An event of a feeder: a quarter less for ten minutes, in two minutes, with ramps of a minute.
fn on(world: &World, name: &str, on: &str) -> GridEvent {
    GridEvent { feeder: Some(feeder(on)), ..event(world, name) }
}

/// Six jobs that have drawn their power for twenty minutes on three nodes: n0 is on both feeders, n1 on the first, n2 on the
/// second.
fn busy() -> World {
    let mut world = metered(NODES);
    let feeds: [(&str, &[&str]); 3] = [("n0", &["a", "b"]), ("n1", &["a"]), ("n2", &["b"])];
    put_on_feeders(&mut world, &[("a", 5_000.0), ("b", 5_000.0)], &feeds);
    world.restart();
    meter(&mut world, NODES, IDLE);
    for job in JOBS {
        world.submit(spec(job, 1));
    }
    world.pass(30);
    for _ in 0..20 {
        world.pass(60);
        meter(&mut world, NODES, BUSY);
    }
    world
}

/// What each feeder carries by the caps, with both in operation.
fn carried(power: impl Fn(usize) -> Power) -> [Power; 2] {
    let half = power(0).scale(0.5);
    [half + power(1), half + power(2)]
}

fn targets(world: &World) -> EventTargets {
    world.events.as_ref().unwrap().targets(world.now)
}

/// The targets of both feeders at an instant.
fn targets_at(targets: &EventTargets, at: Timestamp) -> [Option<Power>; 2] {
    ["a", "b"].map(|name| targets.on(Some(&feeder(name))).and_then(|steps| steps.at(at)))
}

/// Passes time; in each second the caps keep the targets of the site and of both feeders.
fn pass(world: &mut World, seconds: u64) {
    for _ in 0..seconds {
        world.pass(1);
        let targets = targets(world);
        let drawn = |node| draw(world, node);
        let found = carried(drawn).into_iter().zip(targets_at(&targets, world.now));
        for (place, (carried, target)) in found.enumerate() {
            assert!(
                target.is_none_or(|target| carried <= target),
                "{place}: {carried} of {target:?}"
            );
        }
        let site: Power = (0..NODES).map(drawn).sum();
        assert!(targets.site.at(world.now).is_none_or(|target| site <= target), "{site}");
    }
}

fn attempts(world: &World) -> [u32; 6] {
    JOBS.map(|job| world.record(job).attempt)
}

#[test]
fn an_event_of_a_feeder_is_kept_there_and_nowhere_else_also_by_another_placer() {
    let mut world = busy();
    let uncapped = [0, 1, 2].map(|node| draw(&world, node));
    let event = on(&world, "peak", "a");
    let start = event.start_us;
    let EventReply::Stored { record, .. } = add(&mut world, event.clone()) else {
        panic!("it is accepted")
    };
    assert_eq!(record.target_mw, TARGET);
    assert_eq!(record.baseline.unwrap().power_mw, Power::from_w(DRAWN_W));
    let settled = event.end() + Duration::from_secs(60) + SETTLING;
    let restarts = [30, 300].map(|seconds| start + Duration::from_secs(seconds));
    while world.now < settled {
        pass(&mut world, 1);
        assert_eq!(draw(&world, 2), uncapped[2], "the other feeder's own node is not limited");
        if restarts.contains(&world.now) {
            world.restart();
            pass(&mut world, 1);
            meter(&mut world, NODES, BUSY);
        }
    }
    pass(&mut world, 30);
    assert_eq!([0, 1, 2].map(|node| draw(&world, node)), uncapped, "no limit is left");
    assert_eq!(attempts(&world), [1; 6], "caps sufficed");
}

#[test]
fn two_feeders_and_the_site_have_events_at_once() {
    let mut world = busy();
    let shallow = Depth::Reduction { power_mw: Power::from_w(100) };
    let site = GridEvent { depth: Depth::Percent { percent: 10.0 }, ..event(&world, "site") };
    for event in [
        on(&world, "deep", "a"),
        GridEvent { depth: shallow, ..on(&world, "shallow", "b") },
        GridEvent { ramp_down_s: 0, ..site },
    ] {
        let reply = add(&mut world, event);
        assert!(matches!(reply, EventReply::Stored { .. }), "{reply:?}");
    }
    let start = world.now + Duration::from_secs(120);
    pass(&mut world, 240);
    let now = targets_at(&targets(&world), world.now);
    assert_eq!(now, [Some(TARGET), Some(Power::from_w(DRAWN_W - 100))]);
    let drawn = carried(|node| draw(&world, node));
    assert!(drawn[0] > TARGET - Power::from_w(20), "no lower than needed: {drawn:?}");
    assert!(drawn[1] > TARGET, "the second gives less: {drawn:?}");
    let until = start + Duration::from_secs(720) + SETTLING;
    let left = until.since(world.now).as_secs();
    pass(&mut world, left);
    assert_eq!(attempts(&world), [1; 6]);
}

/// The orders alone keep the target of a feeder, on its nodes only.
#[test]
fn orders_name_the_steps_of_a_feeder_to_its_nodes() {
    let mut world = busy();
    let event = GridEvent { ramp_down_s: 600, ramp_up_s: 600, ..on(&world, "peak", "a") };
    add(&mut world, event.clone());
    pass(&mut world, 60);
    let returned = event.end() + Duration::from_secs(600);
    for node in ["n0", "n1"] {
        assert_eq!(world.desired(node).event_until_us, Some(returned));
        assert!(!world.desired(node).caps_ahead.is_empty());
    }
    let other = world.desired("n2");
    assert!(other.caps_ahead.is_empty() && other.event_until_us.is_none(), "{other:?}");
    let targets = targets(&world);
    let mut at = event.start_us;
    while at < returned + SETTLING {
        let [permitted, _] = carried(|node| permitted_on(&world, node, at));
        let target = targets_at(&targets, at)[0].unwrap();
        assert!(permitted <= target, "{permitted} of {target}");
        at = at + Duration::from_secs(1);
    }
    let [permitted, _] = carried(|node| permitted_on(&world, node, event.end()));
    assert!(permitted > TARGET - Power::from_w(20), "no lower than needed: {permitted}");
}

#[test]
fn an_event_of_a_feeder_that_cannot_be_followed_is_refused() {
    let mut world = busy();
    let refusal = |world: &mut World, event: GridEvent| refused(&add(world, event)).to_owned();
    let unknown = on(&world, "peak", "pdu-9");
    assert_eq!(refusal(&mut world, unknown), "feeder = pdu-9: expected one of a, b");
    let deep = GridEvent { depth: Depth::Percent { percent: 60.0 }, ..on(&world, "deep", "a") };
    let deep = refusal(&mut world, deep);
    assert!(deep.contains("at least 0.6 kW, which feeder a draws without jobs"), "{deep}");
    let plan = |world: &World, request| world.placer.event_planning(world.now, &request).map(drop);
    let day = PlanEvent::Day { feeder: Some(feeder("c")) };
    assert_eq!(plan(&world, day).unwrap_err(), "feeder = c: expected one of a, b");
    assert_eq!(world.events, None);
    // Without a tree there is no feeder.
    let mut world = metered(2);
    let event = on(&world, "peak", "a");
    let text = refusal(&mut world, event);
    assert!(text.contains("[[feeder]] and [[node]]") && text.contains("whole site"), "{text}");
}

/// A placer that starts with another tree names the events that it cannot keep.
#[test]
fn an_event_whose_feeder_is_gone_is_alarmed() {
    let mut world = busy();
    let event = on(&world, "peak", "a");
    add(&mut world, event);
    put_on_feeders(
        &mut world,
        &[("c", 5_000.0)],
        &[("n0", &["c"]), ("n1", &["c"]), ("n2", &["c"])],
    );
    world.restart();
    world.pass(2);
    let alarm = "grid event peak limits nothing, because its feeder is no longer configured";
    let named = world.log.iter().any(|line| line.contains(alarm));
    assert!(named, "{:?}", world.log);
}

#[test]
fn the_power_of_a_feeder_is_measured_alarmed_and_recorded() {
    let mut world = busy();
    let now = GridEvent { start_us: world.now, ramp_down_s: 0, ..on(&world, "now", "a") };
    add(&mut world, now);
    let read = |world: &mut World, seconds: u64, gpu: Power| {
        for _ in 0..seconds {
            world.pass(1);
            for node in ["n0", "n1", "n2"] {
                let summary = world.readings(node, 1, |_, _| gpu);
                world.deliver(Event::NodeSummarized(Box::new(summary)));
            }
        }
    };
    read(&mut world, 30, Power::from_w(100));
    let measured = TargetMeasures {
        feeder: Some(feeder("a")),
        target: TARGET,
        reduction: Some(Power::from_w(DRAWN_W) - TARGET),
        measured: Some(Power::from_w(750)),
    };
    assert_eq!(world.placer.measures().events.power, [measured]);
    let alarms = |world: &World| {
        world.log.iter().filter(|line| line.starts_with("alarm feeder a draws")).cloned().collect()
    };
    let none: Vec<String> = alarms(&world);
    assert_eq!(none, [""; 0]);
    read(&mut world, 60, BUSY);
    let found: Vec<String> = alarms(&world);
    assert_eq!(
        found,
        [
            "alarm feeder a draws 1.05 kW and the target of grid event now is 0.788 kW: `wattle nodes` shows what draws it"
        ]
    );
    for _ in 0..4 {
        world.pass(60);
        meter(&mut world, NODES, BUSY);
    }
    world.pass(30);
    let last = world.site_minutes.last().unwrap();
    let site_w = last.power().unwrap().as_w();
    assert!((site_w - 2.0 * DRAWN_W as f64).abs() < 0.1 && last.target_mw.is_none(), "{last:?}");
    for (name, target) in [("a", Some(TARGET)), ("b", None)] {
        let minute = last.of_feeder(&feeder(name)).unwrap();
        let power_w = minute.power().unwrap().as_w();
        assert!((power_w - DRAWN_W as f64).abs() < 0.1, "{name}: {minute:?}");
        assert_eq!((minute.nodes, minute.metered, minute.target_mw), (2, 2, target), "{name}");
    }
}

#[test]
fn a_plan_of_a_feeder_counts_the_jobs_there() {
    let world = busy();
    let plan = |event: GridEvent| {
        let request = PlanEvent::Event { event };
        world.placer.event_planning(world.now, &request).map(|input| input.plan()).unwrap()
    };
    let of_feeder = plan(on(&world, "peak", "a"));
    let span = of_feeder.at_target.unwrap();
    let requested = span.less_mw + span.breaks_mw + span.short_mw;
    let left = span.drawn_mw.saturating_sub(requested);
    assert!(left <= TARGET && left >= Power::from_w(450), "{span:?}");
    assert_eq!(of_feeder.jobs.len(), 4, "those of n2 are not on it");
    assert_eq!(plan(event(&world, "peak")).jobs.len(), 6);
    assert_eq!(of_feeder.record.unwrap().event.event, id("peak"));
}
