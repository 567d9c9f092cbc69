//! Grid events in the simulated cluster: stored, followed, restored after a restart, and kept by caps.

use std::time::Duration;

use wattle_common::event::{Depth, EventState, GridEvent, JobPerformance, Participation, SETTLING};
use wattle_common::job::{Flexibility, JobSpec};
use wattle_common::messages::desired::CAPS_AHEAD_MAX;
use wattle_common::messages::{EventReply, EventRequest, PlanEvent, SetBudget, SurfacePoint};
use wattle_common::{Budget, EventId, Power, Timestamp};

use crate::live::Event;
use crate::live::measures::TargetMeasures;
use crate::live::tests::power_over_time::permitted;
use crate::live::tests::power_shares::{HOST, draw, meter, metered};
use crate::live::tests::spec;
use crate::live::tests::world::World;

const NODES: usize = 2;
/// What each GPU is metered with while its job runs: hosts and GPUs then draw 1,400 W.
const BUSY: Power = Power::from_w(200);
const DRAWN_W: u64 = 1_400;
/// A quarter less.
const TARGET_W: u64 = 1_050;

pub(super) fn id(name: &str) -> EventId {
    EventId::new(name).unwrap()
}

/// A quarter less for ten minutes, in two minutes, with ramps of a minute.
pub(super) fn event(world: &World, name: &str) -> GridEvent {
    GridEvent {
        event: id(name),
        source: "utility".to_owned(),
        feeder: None,
        start_us: world.now + Duration::from_secs(120),
        ramp_down_s: 60,
        depth: Depth::Percent { percent: 25.0 },
        duration_s: 600,
        ramp_up_s: 60,
        priority: 0,
        participation: Participation::Voluntary,
    }
}

fn send(world: &mut World, request: EventRequest) -> EventReply {
    world.deliver(Event::EventSet(7, Box::new(request)));
    world.event_reply.take().expect("every request gets a reply")
}

pub(super) fn add(world: &mut World, event: GridEvent) -> EventReply {
    send(world, EventRequest::Add { event })
}

pub(super) fn refused(reply: &EventReply) -> &str {
    match reply {
        EventReply::Refused { error } => error,
        EventReply::Stored { record, .. } => panic!("{record:?} was stored"),
    }
}

/// Four jobs that have drawn their power for twenty minutes.
fn busy() -> World {
    let mut world = metered(NODES);
    for job in ["a", "b", "c", "d"] {
        world.submit(spec(job, 1));
    }
    world.pass(30);
    for _ in 0..20 {
        world.pass(60);
        meter(&mut world, NODES, BUSY);
    }
    world
}

pub(super) fn drawn(world: &World) -> Power {
    (0..NODES).map(|node| draw(world, node)).sum()
}

/// Passes time; in each second the caps keep the targets of the stored events.
fn pass(world: &mut World, seconds: u64) {
    for _ in 0..seconds {
        world.pass(1);
        let target = world.events.as_ref().unwrap().targets(world.now).site.at(world.now);
        let drawn = drawn(world);
        assert!(target.is_none_or(|target| drawn <= target), "{drawn} of {target:?}");
    }
}

pub(super) fn pass_until(world: &mut World, until: Timestamp) {
    let left = until.since(world.now).as_secs();
    pass(world, left);
}

fn state(world: &World, name: &str) -> EventState {
    world.events.as_ref().unwrap().events[&id(name)].state(world.now)
}

#[test]
fn an_event_is_kept_from_its_ramp_to_its_settling_also_by_another_placer() {
    let mut world = busy();
    let uncapped = drawn(&world);
    let event = event(&world, "peak");
    let start = event.start_us;
    let EventReply::Stored { record, generation } = add(&mut world, event.clone()) else {
        panic!("it is accepted")
    };
    assert_eq!((record.target_mw, generation), (Power::from_w(TARGET_W), 1));
    assert_eq!(record.baseline.unwrap().power_mw, Power::from_w(DRAWN_W));
    assert_eq!(state(&world, "peak"), EventState::Planned);
    let restarts = [
        start - Duration::from_secs(30),
        start + Duration::from_secs(30),
        start + Duration::from_secs(300),
    ];
    let ends = event.end();
    let settled = ends + Duration::from_secs(60) + SETTLING;
    let mut states = vec![];
    while world.now < settled {
        pass(&mut world, 1);
        let state = state(&world, "peak");
        if states.last() != Some(&state) {
            states.push(state);
        }
        if restarts.contains(&world.now) {
            world.restart();
            pass(&mut world, 1);
            meter(&mut world, NODES, BUSY);
        }
    }
    use EventState::{Active, Ended, Planned, RampingDown, RampingUp};
    assert_eq!(states, [Planned, RampingDown, Active, RampingUp, Ended]);
    pass(&mut world, 30);
    assert_eq!(drawn(&world), uncapped, "no limit is left");
    assert!((0..NODES).all(|node| !world.desired(&format!("n{node}")).power_limited));
    let jobs = ["a", "b", "c", "d"].map(|job| world.record(job).attempt);
    assert_eq!(jobs, [1; 4], "caps sufficed");
}

/// The orders alone keep the target, also on the ramps, of which they name few steps.
#[test]
fn orders_bound_the_caps_of_an_event_for_the_time_without_a_placer() {
    let mut world = busy();
    let event = GridEvent { ramp_down_s: 600, ramp_up_s: 600, ..event(&world, "peak") };
    add(&mut world, event.clone());
    pass(&mut world, 40);
    let order = world.desired("n0");
    assert!(!order.power_limited && order.event_until_us.is_none(), "it has not begun: {order:?}");
    assert!(!order.caps_ahead.is_empty(), "and nodes know its steps: {order:?}");
    pass(&mut world, 20);
    let returned = event.end() + Duration::from_secs(600);
    assert_eq!(world.desired("n0").event_until_us, Some(returned));
    let bounds = &world.desired("n0").caps_ahead;
    let rises = bounds
        .windows(2)
        .filter(|pair| pair[1].cap_mw.is_none_or(|cap| Some(cap) > pair[0].cap_mw));
    assert!(rises.clone().count() > 0, "{bounds:?}");
    assert!(
        rises.clone().all(|pair| pair[1].from_us >= returned),
        "no rise on the ramp up: {bounds:?}"
    );
    assert!((4..=CAPS_AHEAD_MAX).contains(&bounds.len()), "{bounds:?}");
    let targets = world.events.as_ref().unwrap().targets(world.now).site;
    let settled = world.events.as_ref().unwrap().events[&id("peak")].settled();
    let mut at = event.start_us;
    while at < settled {
        let (permitted, target) = (permitted(&world, at), targets.at(at).unwrap());
        assert!(permitted <= target, "{permitted} of {target}");
        at = at + Duration::from_secs(1);
    }
    assert!(permitted(&world, event.end()) > Power::from_w(TARGET_W - 20), "no lower than needed");
    assert_eq!(permitted(&world, settled), permitted(&world, world.now), "and they end");
}

#[test]
fn a_repeated_request_is_stored_again_and_changes_nothing() {
    let mut world = busy();
    let event = event(&world, "peak");
    let first = add(&mut world, event.clone());
    let kept = world.events.take();
    pass_without_events(&mut world, 5);
    assert_eq!(add(&mut world, event.clone()), first);
    assert_eq!(world.events, kept, "stored again before its answer");
    let other = GridEvent { duration_s: 900, ..event };
    let error = add(&mut world, other);
    assert!(refused(&error).contains("an event `peak` with other values exists"), "{error:?}");
    let unknown = send(&mut world, EventRequest::Cancel { event: id("other") });
    assert_eq!(refused(&unknown), "no event `other`; `wattle event list` lists all");
}

fn pass_without_events(world: &mut World, seconds: u64) {
    world.pass(seconds);
}

#[test]
fn an_immediate_event_is_followed_at_once_and_the_lowest_target_counts() {
    let mut world = busy();
    let now = GridEvent { start_us: world.now, ramp_down_s: 0, ..event(&world, "now") };
    add(&mut world, now.clone());
    world.pass(5);
    pass(&mut world, 30);
    assert!(drawn(&world) <= Power::from_w(TARGET_W));
    let depth = Depth::Target { power_mw: Power::from_w(1_010) };
    let lower = GridEvent { event: id("lower"), depth, start_us: world.now, ..now };
    let lower = GridEvent { duration_s: 120, ramp_up_s: 0, ..lower };
    add(&mut world, lower);
    world.pass(5);
    pass(&mut world, 60);
    assert!(drawn(&world) <= Power::from_w(1_010), "{}", drawn(&world));
    pass(&mut world, 120);
    let drawn = drawn(&world);
    assert!(drawn > Power::from_w(1_010) && drawn <= Power::from_w(TARGET_W), "{drawn}");
}

#[test]
fn an_event_is_extended_cancelled_and_declined() {
    let mut world = busy();
    let peak = event(&world, "peak");
    let end = peak.end();
    add(&mut world, peak.clone());
    pass_until(&mut world, end - Duration::from_secs(60));
    send(&mut world, EventRequest::Change { event: id("peak"), duration_s: 900 });
    pass_until(&mut world, end + Duration::from_secs(120));
    assert_eq!(state(&world, "peak"), EventState::Active);
    send(&mut world, EventRequest::Cancel { event: id("peak") });
    assert_eq!(state(&world, "peak"), EventState::RampingUp);
    pass(&mut world, 90);
    assert_eq!(state(&world, "peak"), EventState::Cancelled);
    assert!(drawn(&world) > Power::from_w(TARGET_W), "{}", drawn(&world));
    let later =
        GridEvent { event: id("later"), start_us: world.now + Duration::from_secs(60), ..peak };
    meter(&mut world, NODES, BUSY);
    add(&mut world, later);
    send(&mut world, EventRequest::Decline { event: id("later") });
    pass(&mut world, 200);
    assert_eq!(state(&world, "later"), EventState::Declined);
    assert!(drawn(&world) > Power::from_w(TARGET_W), "{}", drawn(&world));
}

#[test]
fn what_the_site_cannot_do_is_refused_with_what_it_can() {
    let mut world = World::new(NODES, 2);
    let before = event(&world, "early");
    let unknown = add(&mut world, before);
    assert!(refused(&unknown).contains("the power drawn now is not known"), "{unknown:?}");
    // Only busy GPUs were metered: the hosts' power is known, and not that of an idle GPU.
    world.pass(30);
    meter(&mut world, NODES, BUSY);
    let power_mw = HOST + HOST - Power::from_w(1);
    let hosts = GridEvent { depth: Depth::Target { power_mw }, ..event(&world, "hosts") };
    let hosts = add(&mut world, hosts);
    assert!(refused(&hosts).contains("at least 0.6 kW, which the site draws"), "{hosts:?}");
    let mut world = busy();
    // A minute without jobs was metered: hosts of 600 W and four idle GPUs of 50 W.
    let deep = GridEvent { depth: Depth::Percent { percent: 60.0 }, ..event(&world, "deep") };
    let deep = add(&mut world, deep);
    assert_eq!(
        refused(&deep),
        "depth = 60 % less: expected a target of at least 0.8 kW, which the site draws without jobs, 0.6 kW or 42.8 % \
         less than the 1.4 kW drawn now"
    );
    let late = event(&world, "late");
    let late = GridEvent { start_us: late.start_us - Duration::from_secs(900), ..late };
    let late = add(&mut world, late);
    assert!(refused(&late).contains("an event whose end is later than now"), "{late:?}");
}

#[test]
fn the_lower_one_of_budget_and_target_counts() {
    let mut world = busy();
    let now = GridEvent { start_us: world.now, ramp_down_s: 0, ..event(&world, "now") };
    add(&mut world, now);
    let set = |world: &mut World, watts: Option<u64>| {
        let budget = Budget { power_mw: watts.map(Power::from_w), ..Budget::default() };
        world.deliver(Event::BudgetSet(8, Box::new(SetBudget { budget, intensity: None })));
        world.pass(10);
    };
    let limit = |world: &World| world.placer.measures().power_limit;
    for (budget, expected) in [(Some(1_020), 1_020), (Some(1_300), TARGET_W), (None, TARGET_W)] {
        set(&mut world, budget);
        assert_eq!(limit(&world), Some(Power::from_w(expected)));
    }
}

#[test]
fn power_above_the_target_for_more_than_ten_seconds_raises_one_alarm() {
    let mut world = busy();
    let now = GridEvent { start_us: world.now, ramp_down_s: 0, ..event(&world, "now") };
    add(&mut world, now);
    let alarms = |world: &World| {
        let alarms = world.log.iter().filter(|line| line.starts_with("alarm the site draws"));
        alarms.cloned().collect::<Vec<_>>()
    };
    let read = |world: &mut World, seconds: u64, gpu: Power| {
        for _ in 0..seconds {
            world.pass(1);
            for node in ["n0", "n1"] {
                let summary = world.readings(node, 1, |_, _| gpu);
                world.deliver(Event::NodeSummarized(Box::new(summary)));
            }
        }
    };
    let within = (Power::from_w(TARGET_W) - HOST - HOST).scale(0.25);
    read(&mut world, 30, within);
    let measures = world.placer.measures().events;
    let of_site = TargetMeasures {
        feeder: None,
        target: Power::from_w(TARGET_W),
        reduction: Some(Power::from_w(DRAWN_W - TARGET_W)),
        measured: Some(Power::from_w(TARGET_W)),
    };
    assert_eq!(measures.power, [of_site]);
    assert_eq!((measures.planned, measures.under_way), (0, 1));
    read(&mut world, 10, BUSY);
    assert_eq!(alarms(&world), [""; 0], "not yet");
    read(&mut world, 60, BUSY);
    assert_eq!(
        alarms(&world),
        [
            "alarm the site draws 1.4 kW and the target of grid event now is 1.05 kW: `wattle nodes` shows what draws it"
        ]
    );
}

/// Jobs that run at 0.9 of their speed with 150 W, at half of it with 100 W, and give up this much.
pub(super) fn promised<const N: usize>(losses_permille: [u32; N]) -> World {
    let mut world = metered(NODES);
    for (job, loss_permille) in ["a", "b", "c", "d"].into_iter().zip(losses_permille) {
        let flexibility = Some(Flexibility { loss_permille, ..Flexibility::default() });
        world.submit(JobSpec { flexibility, ..spec(job, 1) });
    }
    world.pass(30);
    know(&mut world);
    for _ in 0..20 {
        world.pass(60);
        meter(&mut world, NODES, BUSY);
    }
    world
}

pub(super) fn know(world: &mut World) {
    for job in ["a", "b", "c", "d"] {
        let at = |cap_w: Option<u64>, speed, watts| SurfacePoint {
            cap_mw: cap_w.map(Power::from_w),
            ..wattle_testkit::point(1, speed, watts)
        };
        let points =
            vec![at(None, 1.0, 200.0), at(Some(150), 0.9, 150.0), at(Some(100), 0.5, 100.0)];
        let surface = wattle_testkit::surface(job, "v100", points);
        world.deliver(Event::SurfaceKnown(Box::new(surface)));
    }
    world.pass(10);
}

/// What each job has lost of its throughput, by the stored performances.
fn lost(world: &World) -> Vec<f64> {
    let jobs = &world.event_jobs.as_ref().unwrap().events[&id("peak")];
    jobs.values().map(JobPerformance::loss).collect()
}

#[test]
fn a_voluntary_event_declares_by_how_much_promises_exceed_it_and_keeps_them() {
    let mut world = promised([100; 4]);
    let event = event(&world, "peak");
    let EventReply::Stored { record, .. } = add(&mut world, event.clone()) else {
        panic!("it is accepted")
    };
    // At 0.9 of their speed four jobs draw 600 W beside hosts of 600 W.
    assert_eq!(
        (record.target_mw, record.shortfall_mw),
        (Power::from_w(TARGET_W), Power::from_w(200))
    );
    pass_until(&mut world, event.start_us + Duration::from_secs(300));
    assert!(drawn(&world) > Power::from_w(TARGET_W), "{}", drawn(&world));
    let before = lost(&world);
    assert!(before.iter().any(|lost| *lost > 0.05), "{before:?}");
    world.restart();
    know(&mut world);
    pass(&mut world, 1);
    meter(&mut world, NODES, BUSY);
    pass_until(&mut world, event.end() + Duration::from_secs(120));
    let after = lost(&world);
    assert!(after.iter().all(|lost| *lost <= 0.1 + 1e-3), "{after:?}");
    assert!(after.iter().zip(&before).all(|(after, before)| *after > 0.6 * before), "{after:?}");
    let jobs = &world.event_jobs.as_ref().unwrap().events[&id("peak")];
    assert!(
        jobs.values()
            .all(|job| !job.broken && job.until_us == event.end() + Duration::from_secs(60))
    );
}

#[test]
fn a_mandatory_event_keeps_its_target_and_breaks_the_promise_of_least_weight() {
    let mut world = promised([150, 150, 150, 400]);
    let participation = Participation::Mandatory;
    let event = GridEvent { participation, ..event(&world, "peak") };
    let EventReply::Stored { record, .. } = add(&mut world, event.clone()) else {
        panic!("it is accepted")
    };
    assert_eq!(record.shortfall_mw, Power::ZERO);
    pass_until(&mut world, event.start_us + Duration::from_secs(300));
    assert!(drawn(&world) <= Power::from_w(TARGET_W), "{}", drawn(&world));
    pass_until(&mut world, event.end() + Duration::from_secs(120));
    let jobs = &world.event_jobs.as_ref().unwrap().events[&id("peak")];
    let broken: Vec<&str> =
        jobs.iter().filter(|(_, job)| job.broken).map(|(id, _)| id.as_str()).collect();
    assert!(broken.contains(&"d") && broken.len() < 4, "{broken:?}");
    let attempts = ["a", "b", "c", "d"].map(|job| world.record(job).attempt);
    assert_eq!(attempts, [1; 4], "no promise permits a pause");
}

#[test]
fn a_job_that_pauses_at_once_is_in_the_record() {
    let mut world = promised([100, 100, 100, 400]);
    let depth = Depth::Target { power_mw: Power::from_w(950) };
    let (start_us, participation) = (world.now, Participation::Mandatory);
    let now = GridEvent { start_us, ramp_down_s: 0, depth, participation, ..event(&world, "peak") };
    let EventReply::Stored { record, .. } = add(&mut world, now) else { panic!("it is accepted") };
    world.pass(90);
    // The lowest caps draw 1,000 W: the job of least weight stops, though its promise forbids it.
    let jobs = &world.event_jobs.as_ref().unwrap().events[&record.event.event];
    let (_, paused) = jobs.iter().find(|(job, _)| job.as_str() == "d").unwrap();
    assert!(paused.broken && paused.loss() > 0.8 && jobs.len() == 4, "{jobs:?}");
    assert!(drawn(&world) <= Power::from_w(950), "{}", drawn(&world));
}

#[test]
fn a_plan_states_what_an_event_will_do_and_changes_nothing() {
    let mut world = promised([150, 150, 150, 400]);
    let event = event(&world, "peak");
    let plan = |world: &World, request: &PlanEvent| {
        world.placer.event_planning(world.now, request).map(|input| input.plan())
    };
    let before = plan(&world, &PlanEvent::Event { event: event.clone() }).unwrap();
    assert_eq!(world.events, None, "nothing is announced");
    let unknown = plan(&world, &PlanEvent::Announced { event: id("peak") }).unwrap_err();
    assert_eq!(unknown, "no event `peak`; `wattle event list` lists all");
    let deep = GridEvent { depth: Depth::Percent { percent: 60.0 }, ..event.clone() };
    let deep = plan(&world, &PlanEvent::Event { event: deep }).unwrap_err();
    assert!(deep.contains("expected a target of at least 0.8 kW"), "{deep}");
    let span = before.at_target.unwrap();
    let requested = span.less_mw + span.breaks_mw + span.short_mw;
    assert_eq!(requested, Power::from_w(DRAWN_W - TARGET_W), "{span:?}");
    let EventReply::Stored { record, .. } = add(&mut world, event.clone()) else {
        panic!("it is accepted")
    };
    // The shortfall is declared in steps of 100 W.
    let short = (span.breaks_mw + span.short_mw).as_w();
    assert!((0.0..=100.0).contains(&(record.shortfall_mw.as_w() - short)), "{span:?} {record:?}");
    let announced = plan(&world, &PlanEvent::Announced { event: id("peak") }).unwrap();
    assert_eq!(announced.at_target, before.at_target);
    pass_until(&mut world, event.end() + Duration::from_secs(120));
    let came = &world.event_jobs.as_ref().unwrap().events[&id("peak")];
    for job in &before.jobs {
        let lost = came[&job.job].loss();
        assert!(job.loss_low <= lost && lost <= job.loss_high, "{lost}: {job:?}");
    }
    assert_eq!(before.jobs.len(), 4);
    let over = plan(&world, &PlanEvent::Announced { event: id("peak") }).unwrap_err();
    assert!(over.contains("event `peak` is ended: nothing is left to plan"), "{over}");
}

/// Each second the profilers send the readings of GPUs that their caps slow, and that draw this share of them.
fn capped(world: &mut World, seconds: u64, share: f64) {
    for _ in 0..seconds {
        world.pass(1);
        for node in ["n0", "n1"] {
            let mut summary =
                world.readings(node, 1, |applied, _| applied.cap_mw.unwrap().scale(share));
            summary.gpus.iter_mut().for_each(|gpu| gpu.throttle_reasons = Some(0x4));
            world.deliver(Event::NodeSummarized(Box::new(summary)));
        }
    }
}

#[test]
fn orders_name_the_caps_that_promises_need() {
    let mut world = promised([100, 500, 500, 500]);
    let event = event(&world, "peak");
    add(&mut world, event.clone());
    pass(&mut world, 40);
    let target = event.start_us + Duration::from_secs(event.ramp_down_s);
    let at_target = |node: &str| {
        let bounds = world.desired(node).caps_ahead.clone();
        bounds.into_iter().rev().find(|bound| bound.from_us <= target).unwrap()
    };
    let bounds = ["n0", "n1"].map(at_target);
    assert!(bounds.iter().all(|bound| bound.cap_mw == Some(Power::from_w(100))), "{bounds:?}");
    let raised: Vec<Power> = bounds.iter().flat_map(|bound| bound.gpus.values()).copied().collect();
    assert_eq!(raised, [Power::from_w(150)], "{bounds:?}");
}

/// At 100 W per GPU four jobs fit their caps into the target, at 150 W what they draw of them.
#[test]
fn measured_power_follows_the_target_and_an_excess_is_over_within_two_seconds() {
    let target = Power::from_w(1_150);
    let depth = Depth::Target { power_mw: target };
    for budget in [None, Some(target), Some(Power::from_w(5_000))] {
        let mut world = busy();
        know(&mut world);
        let budget = Budget { power_mw: budget, ..Budget::default() };
        let is_limited = budget.power_mw == Some(target);
        world.deliver(Event::BudgetSet(8, Box::new(SetBudget { budget, intensity: None })));
        let now = GridEvent { start_us: world.now, ramp_down_s: 0, depth, ..event(&world, "now") };
        add(&mut world, now);
        capped(&mut world, 60, 0.9);
        let caps = drawn(&world);
        if is_limited {
            assert!(caps <= target, "a limit of a budget is kept by the caps: {caps}");
            continue;
        }
        assert_eq!(caps, Power::from_w(1_200), "they draw 1,140 W");
        capped(&mut world, 1, 1.0);
        world.pass(1);
        assert!(drawn(&world) <= target, "{}", drawn(&world));
        let attempts = ["a", "b", "c", "d"].map(|job| world.record(job).attempt);
        assert_eq!(attempts, [1; 4]);
    }
}
