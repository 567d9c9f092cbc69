//! Grid events: requests, replies and records.

use wattle_common::EventId;
use wattle_common::aim::Baseline;
use wattle_common::messages::site_minute::FeederMinute;

use super::*;

fn announced() -> GridEvent {
    GridEvent {
        event: EventId::new("peak-1").unwrap(),
        source: "utility".into(),
        feeder: None,
        start_us: at(3_600),
        ramp_down_s: 900,
        depth: Depth::Percent { percent: 25.0 },
        duration_s: 10_800,
        ramp_up_s: 900,
        priority: 1,
        participation: Participation::Mandatory,
    }
}

#[test]
fn event_plans() {
    let event = announced();
    check("event-plan-request", &PlanEvent::Event { event: event.clone() });
    check("event-plan-request-announced", &PlanEvent::Announced { event: event.event.clone() });
    check("event-plan-request-day", &PlanEvent::Day { feeder: None });
    let feeder = FeederId::new("board-a").ok();
    check("event-plan-request-day-feeder", &PlanEvent::Day { feeder });
    let watts = Power::from_w;
    let span = PlannedSpan {
        from_us: at(3_600),
        until_us: at(7_200),
        drawn_mw: watts(94_800),
        target_mw: Some(watts(71_100)),
        less_mw: watts(21_000),
        less_mw_low: watts(20_000),
        less_mw_high: watts(22_500),
        caps_mw: watts(17_000),
        gpus_mw: watts(1_000),
        pauses_mw: watts(3_000),
        breaks_mw: watts(2_000),
        short_mw: watts(700),
    };
    let planned = PlannedJob {
        job: job("train-7"),
        gpus: 32,
        promise: Some(Flexibility { loss_permille: 250, may_pause: true, may_resize: false }),
        loss: 0.26,
        loss_low: 0.24,
        loss_high: 0.29,
        later_s: 3_100.5,
        paused_s: 900.0,
        fewer_gpus_s: 0.0,
        breaks: Some(1),
        breaks_mw: Some(watts(2_000)),
    };
    let record = EventRecord {
        notice_us: at(1_800),
        target_mw: watts(71_100),
        shortfall_mw: Power::ZERO,
        baseline: None,
        before: None,
        end_us: event.end(),
        closed: None,
        event,
    };
    let plan = EventPlan {
        at_us: at(1_800),
        record: Some(record),
        at_target: Some(span),
        hours: vec![span],
        least_kept_mw: Some(watts(72_000)),
        least_mw: Some(watts(50_000)),
        jobs: vec![planned],
        jobs_left_out: 3,
        jobs_waiting: 2,
    };
    let day = EventPlan {
        record: None,
        at_target: None,
        least_kept_mw: None,
        least_mw: None,
        jobs: Vec::new(),
        jobs_left_out: 0,
        jobs_waiting: 0,
        hours: vec![PlannedSpan { target_mw: None, ..span }],
        ..plan.clone()
    };
    check("event-plan", &EventPlanReply::Planned { plan: Box::new(plan) });
    check("event-plan-day", &EventPlanReply::Planned { plan: Box::new(day) });
    let error = "no event `peak-2`; `wattle event list` lists all".into();
    check("event-plan-refused", &EventPlanReply::Refused { error });
}

#[test]
fn events() {
    let event = announced();
    check("event-request-add", &EventRequest::Add { event: event.clone() });
    let least = GridEvent {
        ramp_down_s: 0,
        ramp_up_s: 0,
        depth: Depth::Reduction { power_mw: Power::from_w(5_000) },
        priority: 0,
        participation: Participation::Voluntary,
        ..event.clone()
    };
    check("event-request-add-reduction", &EventRequest::Add { event: least });
    let feeder = FeederId::new("board-a").ok();
    let of_feeder = GridEvent { feeder: feeder.clone(), ..event.clone() };
    check("event-request-add-feeder", &EventRequest::Add { event: of_feeder });
    let id = event.event.clone();
    check("event-request-change", &EventRequest::Change { event: id.clone(), duration_s: 7_200 });
    check("event-request-cancel", &EventRequest::Cancel { event: id.clone() });
    check("event-request-decline", &EventRequest::Decline { event: id.clone() });
    let measured = |until_s| MeasuredMean {
        power_mw: Power::from_w(94_800),
        from_us: at(until_s - 900),
        until_us: at(until_s),
        method: MeasuredBy::EnergyLedger,
    };
    let record = EventRecord {
        notice_us: at(1_800),
        target_mw: Power::from_w(71_100),
        shortfall_mw: Power::ZERO,
        baseline: Some(measured(1_800)),
        before: Some(measured(3_600)),
        end_us: event.end(),
        closed: Some(Closed::Cancelled { at_us: at(9_000) }),
        event,
    };
    let stored = EventReply::Stored { record: Box::new(record.clone()), generation: 3 };
    check("event-reply-stored", &stored);
    let error = "no event `peak-2`; `wattle event list` lists all".into();
    check("event-reply-refused", &EventReply::Refused { error });
    let short = EventRecord { shortfall_mw: Power::from_w(1_200), ..record.clone() };
    check("event-reply-short", &EventReply::Stored { record: Box::new(short), generation: 4 });
    let lost = JobPerformance {
        promise: Some(Flexibility { loss_permille: 250, may_pause: true, may_resize: false }),
        gpus: 32,
        from_us: at(3_600),
        until_us: at(7_200),
        lost_s: 540.5,
        expected: 0.2,
        broken: true,
    };
    let jobs = [(job("train-7"), lost)].into();
    let events = [(record.event.event.clone(), jobs)].into();
    check("event-performances", &EventPerformances { events });
    let declined = EventRecord {
        baseline: None,
        before: None,
        closed: Some(Closed::Declined { at_us: at(2_000) }),
        ..record.clone()
    };
    let mut of_feeder = record.clone();
    of_feeder.event.feeder = feeder;
    let stored = EventReply::Stored { record: Box::new(of_feeder), generation: 5 };
    check("event-reply-feeder", &stored);
    let events = [(id, record), (EventId::new("peak-2").unwrap(), declined)];
    check("event-book", &EventBook { generation: 4, events: events.into() });
    let minute = SiteMinute {
        minute_us: at(3_600),
        energy_mj: Energy::from_j(4_266_000),
        nodes: 33,
        metered: 32,
        asleep: 1,
        asleep_mw: Power::from_w(40),
        limit_mw: Some(Power::from_w(120_000)),
        target_mw: Some(Power::from_w(71_100)),
        twin: Some(TwinPower { power_mw: Power::from_w(94_800), policy: Baseline::Backfill }),
        price: Some(Price { micros_per_kwh: 210_000, currency: "EUR".into() }),
        intensity_mg_per_kwh: Some(CarbonIntensity::from_g_per_kwh(380.0)),
        feeders: [].into(),
        ledger_from: 4_711,
    };
    check("site-minute", &minute);
    let of_feeder = FeederMinute {
        energy_mj: Energy::from_j(2_133_000),
        nodes: 17,
        metered: 16,
        asleep: 1,
        asleep_mw: Power::from_w(20),
        target_mw: Some(Power::from_w(40_000)),
    };
    let feeders = [(FeederId::new("board-a").unwrap(), of_feeder)].into();
    check("site-minute-feeders", &SiteMinute { feeders, ..minute.clone() });
    let least = SiteMinute {
        asleep: 0,
        asleep_mw: Power::ZERO,
        limit_mw: None,
        target_mw: None,
        twin: None,
        price: None,
        intensity_mg_per_kwh: None,
        ..minute
    };
    check("site-minute-least", &least);
    let order = Order::Event { event: EventId::new("peak-1").unwrap(), change: "cancel".into() };
    check("order-event", &order);
}
