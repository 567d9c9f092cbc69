//! Plans of events for a small cluster with known settings.

use wattle_common::event::{Depth, GridEvent, MeasuredBy, MeasuredMean, SiteFigures};
use wattle_common::job::{Flexibility, GpuRequest};
use wattle_common::messages::{Estimate, SurfacePoint};

use super::*;
use crate::controller::ControllerConfig;
use crate::policies::{Policy, policy};
use crate::state::job::JobFacts;
use crate::state::node::{GpuPower, NodeFacts, NodeWatts};

const HOST_W: u64 = 300;
const IDLE_W: u64 = 50;

fn watts(watts: u64) -> Power {
    Power::from_w(watts)
}

fn at(minutes: u64) -> Timestamp {
    Timestamp::from_s(60 * minutes)
}

fn promise(loss_permille: u32) -> Option<Flexibility> {
    Some(Flexibility { loss_permille, ..Flexibility::default() })
}

/// Nodes of two GPUs; each job runs on one, at 1, 0.9, and 0.5 of its speed with 200, 150 and 100 W.
fn site(promises: &[Option<Flexibility>]) -> Controller<Box<dyn Policy>> {
    let mut controller = Controller::new(ControllerConfig::default(), policy("fifo").unwrap());
    let state = controller.events();
    state.advance_to(at(0));
    state.inventory_known(true);
    for node in 0..promises.len().div_ceil(2) {
        state.node_known(NodeFacts {
            id: format!("n{node}").parse().unwrap(),
            gpu_type: "v100".to_owned(),
            gpus: 2,
            memory_mib: Some(16_000),
            healthy: u64::MAX,
            watts: Some(NodeWatts {
                gpu_idle: watts(IDLE_W),
                host: watts(HOST_W),
                asleep: watts(10),
                wakes_in: Duration::from_secs(60),
            }),
            host: None,
            partitions: Vec::new(),
        });
    }
    let power = GpuPower {
        idle: watts(IDLE_W),
        most: watts(250),
        cap_min: Some(watts(100)),
        host: watts(HOST_W),
    };
    state.gpu_power_known([("v100".to_owned(), power)].into());
    for (number, flexibility) in promises.iter().enumerate() {
        let request = GpuRequest { min: 1, max: 1 };
        let facts = JobFacts {
            can_stop: true,
            flexibility: *flexibility,
            ..JobFacts::new(format!("j{number}").parse().unwrap(), request)
        };
        let key = controller.admit(facts).unwrap();
        let point = |cap_w: Option<u64>, speed: f64, power_w: f64| SurfacePoint {
            cap_mw: cap_w.map(Power::from_w),
            gpu_power_w: Estimate { mean: power_w, low: 0.9 * power_w, high: 1.1 * power_w },
            ..wattle_testkit::point(1, speed, power_w)
        };
        let points =
            [point(None, 1.0, 200.0), point(Some(150), 0.9, 150.0), point(Some(100), 0.5, 100.0)];
        let surface = wattle_testkit::surface("any", "v100", points);
        controller.events().surface_known(key, std::sync::Arc::new(surface));
    }
    let round = controller.plan();
    controller.apply(&round.plan);
    controller
}

/// An event in an hour with two hours at the target.
fn event(target_w: u64, participation: Participation) -> GridEvent {
    GridEvent {
        event: "peak".parse().unwrap(),
        source: "utility".to_owned(),
        feeder: None,
        start_us: at(60),
        ramp_down_s: 900,
        depth: Depth::Target { power_mw: watts(target_w) },
        duration_s: 7_200,
        ramp_up_s: 900,
        priority: 0,
        participation,
    }
}

fn planned(controller: &Controller<Box<dyn Policy>>, drawn_w: u64, event: GridEvent) -> EventPlan {
    let method = MeasuredBy::EnergyLedger;
    let drawn = MeasuredMean { power_mw: watts(drawn_w), from_us: at(0), until_us: at(0), method };
    let mut book = EventBook::default();
    book.add(event, at(0), &SiteFigures { drawn: Some(drawn), idle: None }).unwrap();
    let record = book.events.values().next().cloned().unwrap();
    let of = PlanOf::Event(Box::new(record));
    EventPlanning::of(controller, &book, &EventPromises::default(), of, at(0)).plan()
}

/// Four jobs draw 4 x 200 W beside hosts of 600 W.
const DRAWN_W: u64 = 1_400;

#[test]
fn all_is_delivered_by_caps_where_the_promises_permit_it() {
    let site = site(&[promise(200); 4]);
    let plan = planned(&site, DRAWN_W, event(1_200, Participation::Voluntary));
    let span = plan.at_target.unwrap();
    assert_eq!((span.drawn_mw, span.target_mw), (watts(DRAWN_W), Some(watts(1_200))));
    assert_eq!((span.less_mw, span.caps_mw), (watts(200), watts(200)));
    assert_eq!(
        (span.pauses_mw, span.breaks_mw, span.short_mw),
        (Power::ZERO, Power::ZERO, Power::ZERO)
    );
    assert!(span.less_mw_low < watts(200) && watts(200) < span.less_mw_high, "{span:?}");
    // At 0.9 of the speed each draws 150 W; with ramps a little more.
    assert_eq!(plan.jobs.len(), 4);
    for job in &plan.jobs {
        assert!((0.08..=0.1).contains(&job.loss) && job.breaks.is_none(), "{job:?}");
        assert!((job.later_s - job.loss * 9_000.0).abs() < 1.0, "{job:?}");
        assert!(job.loss_low < job.loss && job.loss < job.loss_high, "{job:?}");
    }
    assert_eq!(plan.hours.len(), 3);
    assert_eq!(plan.hours[2].until_us, at(60 + 150));
}

#[test]
fn above_the_lowest_target_every_promise_is_kept_and_below_it_not() {
    let steady = promise(200);
    let pausing =
        |loss_permille| Some(Flexibility { loss_permille, may_pause: true, may_resize: false });
    for promises in [[steady; 4], [steady, steady, pausing(600), pausing(600)]] {
        let site = site(&promises);
        let plan = planned(&site, DRAWN_W, event(1_300, Participation::Voluntary));
        let least = plan.least_kept_mw.unwrap();
        let kept = planned(
            &site,
            DRAWN_W,
            event(least.as_mw().div_ceil(1_000) + 1, Participation::Voluntary),
        );
        let span = kept.at_target.unwrap();
        assert!(span.breaks_mw + span.short_mw <= watts(1), "{least}: {span:?}");
        let deeper = event(least.as_mw() / 1_000 - 20, Participation::Voluntary);
        let span = planned(&site, DRAWN_W, deeper).at_target.unwrap();
        assert!(span.breaks_mw + span.short_mw >= watts(10), "{least}: {span:?}");
        // Every job can stop, so that only the nodes draw power in the end.
        assert_eq!(plan.least_mw, Some(watts(2 * HOST_W + 4 * IDLE_W)));
    }
}

#[test]
fn promises_break_in_their_order_and_what_is_short_is_named() {
    let site = site(&[promise(100), promise(100), promise(400), promise(200)]);
    // At the floors 150 + 150 + 150 + 150 W beside 600 W.
    let plan = planned(&site, DRAWN_W, event(1_120, Participation::Mandatory));
    let span = plan.at_target.unwrap();
    assert_eq!(span.less_mw, watts(200));
    assert!(span.breaks_mw >= watts(79) && span.short_mw <= watts(1), "{span:?}");
    let broken: Vec<(&str, u32)> =
        plan.jobs.iter().filter_map(|job| Some((job.job.as_str(), job.breaks?))).collect();
    assert_eq!(broken, [("j2", 1), ("j3", 2)]);
    let voluntary = planned(&site, DRAWN_W, event(1_120, Participation::Voluntary));
    assert!(voluntary.jobs.iter().all(|job| job.loss <= job.promise.unwrap().loss() + 1e-9));
    let deep = planned(&site, DRAWN_W, event(700, Participation::Mandatory)).at_target.unwrap();
    assert_eq!(deep.less_mw + deep.breaks_mw + deep.short_mw, watts(700));
    assert_eq!(deep.short_mw, watts(100), "the nodes draw 800 W");
}

#[test]
fn jobs_without_promises_give_way_first() {
    let site = site(&[promise(100), promise(100), None, None]);
    let plan = planned(&site, DRAWN_W, event(1_000, Participation::Voluntary));
    let span = plan.at_target.unwrap();
    assert_eq!(
        (span.less_mw, span.breaks_mw, span.short_mw),
        (watts(400), Power::ZERO, Power::ZERO)
    );
    assert!(span.pauses_mw > watts(100), "one of them stops: {span:?}");
    let lost = |id: &str| plan.jobs.iter().find(|job| job.job.as_str() == id).unwrap().loss;
    assert!(lost("j0") <= 0.1 + 1e-9 && lost("j3") > 0.5, "{:?}", plan.jobs);
}

#[test]
fn each_hour_of_a_day_stands_for_an_event_of_an_hour() {
    let site = site(&[promise(200); 4]);
    let plan = EventPlanning::of(
        &site,
        &EventBook::default(),
        &EventPromises::default(),
        PlanOf::Day(None),
        at(0),
    )
    .plan();
    assert_eq!(plan.hours.len(), 24);
    for hour in &plan.hours {
        // Four times 50 W, whatever the hour: no end is expected.
        assert_eq!(hour.less_mw, watts(200), "{hour:?}");
        assert_eq!(hour.breaks_mw, watts(400), "{hour:?}");
        assert!(hour.target_mw.is_none() && hour.less_mw_low < hour.less_mw_high);
    }
}
