//! Tests of the target over time and of the changes of events.

use proptest::prelude::*;

use super::*;
use crate::budget::Budget;
use crate::limit_over_time::LimitOverTime;
use crate::power_series::PowerSeries;

const DRAWN_W: u64 = 94_800;

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_s(1_700_000_000 + seconds)
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn drawn(watts: u64) -> MeasuredMean {
    MeasuredMean {
        power_mw: Power::from_w(watts),
        from_us: at(0) - seconds(900),
        until_us: at(0),
        method: MeasuredBy::EnergyLedger,
    }
}

fn site() -> SiteFigures {
    SiteFigures { drawn: Some(drawn(DRAWN_W)), idle: Some(Power::from_w(30_000)) }
}

/// A quarter less for three hours, with ramps of a quarter of an hour, in an hour.
fn event(name: &str) -> GridEvent {
    GridEvent {
        event: EventId::new(name).unwrap(),
        source: "utility".to_owned(),
        feeder: None,
        start_us: at(3_600),
        ramp_down_s: 900,
        depth: Depth::Percent { percent: 25.0 },
        duration_s: 10_800,
        ramp_up_s: 900,
        priority: 0,
        participation: Participation::Voluntary,
    }
}

fn book(events: impl IntoIterator<Item = GridEvent>) -> EventBook {
    let mut book = EventBook::default();
    for event in events {
        book.add(event, at(0), &site()).unwrap();
    }
    book
}

fn id(name: &str) -> EventId {
    EventId::new(name).unwrap()
}

fn refused(event: GridEvent) -> String {
    let mut book = EventBook::default();
    book.add(event, at(0), &site()).unwrap_err().to_string()
}

/// The ramp as a line, watts.
fn line(from: (Timestamp, f64), until: (Timestamp, f64), at: Timestamp) -> f64 {
    let share = at.since(from.0).as_secs_f64() / until.0.since(from.0).as_secs_f64();
    from.1 + (until.1 - from.1) * share
}

#[test]
fn a_target_ramps_down_holds_and_returns_to_the_power_before() {
    let book = book([event("a")]);
    let targets = book.targets(at(0)).site;
    let target = Power::from_w(71_100);
    assert_eq!(targets.at(at(3_599)), None);
    let first = targets.at(at(3_600)).unwrap();
    assert!(first < Power::from_w(DRAWN_W) && first > Power::from_w(94_500), "{first}");
    assert_eq!(targets.at(at(4_500)), Some(target));
    assert_eq!(targets.at(at(15_299)), Some(target));
    let half = targets.at(at(15_300 + 450)).unwrap();
    let (line_w, step_w) = (71_100.0 + 23_700.0 / 2.0, 23_700.0 / 90.0);
    assert!((line_w - step_w..=line_w).contains(&half.as_w()), "{half}");
    let drawn = Power::from_w(DRAWN_W);
    assert_eq!(targets.at(at(16_200)), Some(drawn), "after the ramp up");
    assert_eq!(targets.at(at(16_200) + SETTLING - seconds(1)), Some(drawn), "until it has settled");
    assert_eq!(targets.at(at(16_200) + SETTLING), None);
    assert_eq!(targets.least(at(0), at(20_000)), Some(target));
    assert_eq!(targets.most(at(4_000), at(15_000)), targets.at(at(4_000)));
    assert_eq!(targets.most(at(0), at(15_000)), None);
}

#[test]
fn an_event_without_measured_power_limits_from_start_to_end() {
    let target = Depth::Target { power_mw: Power::from_w(50_000) };
    let mut book = EventBook::default();
    let event = GridEvent { depth: target, ..event("a") };
    book.add(event, at(0), &SiteFigures::default()).unwrap();
    let targets = book.targets(at(0)).site;
    assert_eq!(targets.at(at(3_600)), Some(Power::from_w(50_000)));
    assert_eq!(targets.at(at(15_299)), Some(Power::from_w(50_000)));
    assert_eq!(targets.at(at(15_300)), None);
    // The power before the start gives the ramps their height.
    assert!(book.follow(at(3_600), |_| Some(drawn(DRAWN_W))));
    assert!(book.targets(at(3_600)).site.at(at(3_600)).unwrap() > Power::from_w(94_000));
    assert!(!book.follow(at(3_700), |_| Some(drawn(60_000))), "it is frozen at the start");
}

#[test]
fn refusals_name_the_field_its_value_and_what_is_accepted() {
    let base = || event("a");
    let mut none = EventBook::default();
    let no_baseline = none.add(base(), at(0), &SiteFigures::default()).unwrap_err().to_string();
    let cases = [
        GridEvent { source: String::new(), ..base() },
        GridEvent { priority: 256, ..base() },
        GridEvent { duration_s: 59, ..base() },
        GridEvent { ramp_down_s: 10_801, ..base() },
        GridEvent { ramp_up_s: 10_801, ..base() },
        GridEvent { depth: Depth::Percent { percent: 100.0 }, ..base() },
        GridEvent { depth: Depth::Percent { percent: f64::NAN }, ..base() },
        GridEvent { depth: Depth::Reduction { power_mw: Power::ZERO }, ..base() },
        GridEvent { depth: Depth::Reduction { power_mw: Power::from_w(DRAWN_W) }, ..base() },
        GridEvent { depth: Depth::Percent { percent: 80.0 }, ..base() },
        GridEvent { depth: Depth::Target { power_mw: Power::from_w(29_999) }, ..base() },
        GridEvent { start_us: at(0) - seconds(86_400), ..base() },
        GridEvent { start_us: at(400 * 86_400), ..base() },
    ];
    let texts = cases.map(|case| refused(case) + "\n").concat() + &no_baseline + "\n";
    expect_test::expect![[r#"
        source = 0 characters: expected 1 to 128 characters without control characters
        priority = 256: expected 0 to 255
        duration = 59 s: expected 1 min to 7 d
        ramp_down = 3.0 h: expected at most the duration of 3.0 h
        ramp_up = 3.0 h: expected at most the duration of 3.0 h
        depth = 100 %: expected above 0 % and below 100 %
        depth = NaN %: expected above 0 % and below 100 %
        depth = 0 kW: expected a power above 0
        depth = 94.8 kW less: expected less than the 94.8 kW drawn now
        depth = 80 % less: expected a target of at least 30 kW, which the site draws without jobs, 64.8 kW or 68.3 % less than the 94.8 kW drawn now
        depth = to 29.999 kW: expected a target of at least 30 kW, which the site draws without jobs, 64.8 kW or 68.3 % less than the 94.8 kW drawn now
        start = an event that ended 20.8 h ago: expected an event whose end is later than now
        start = in 400.0 d: expected at most a year ahead
        depth = 25 % less: the power drawn now is not known, because some node has no entry of the energy ledger of the last minutes; give a target in kilowatts, or repeat the request when every node was metered
    "#]].assert_eq(&texts);
    // What is named as the least is accepted.
    let accepted = [
        Depth::Target { power_mw: Power::from_w(30_000) },
        Depth::Reduction { power_mw: Power::from_w(64_800) },
        Depth::Percent { percent: 68.3 },
    ];
    for depth in accepted {
        book([GridEvent { depth, ..base() }]);
    }
}

#[test]
fn events_of_feeders_have_targets_beside_that_of_the_site() {
    let feeder = |name: &str| FeederId::new(name).unwrap();
    let of = |name: &str, on: &str, target_w: u64| GridEvent {
        feeder: Some(feeder(on)),
        depth: Depth::Target { power_mw: Power::from_w(target_w) },
        ..event(name)
    };
    let mut book = book([event("site"), of("a", "pdu-a", 40_000), of("b", "pdu-b", 35_000)]);
    let deeper = GridEvent { start_us: at(7_200), ..of("a-2", "pdu-a", 31_000) };
    book.add(deeper, at(0), &site()).unwrap();
    let targets = book.targets(at(0));
    let at_noon = |feeder: Option<&FeederId>| targets.on(feeder).and_then(|of| of.at(at(10_000)));
    let w = |watts| Some(Power::from_w(watts));
    assert_eq!(at_noon(None), w(71_100));
    assert_eq!(at_noon(Some(&feeder("pdu-a"))), w(31_000), "the lowest of the two");
    assert_eq!(at_noon(Some(&feeder("pdu-b"))), w(35_000));
    assert_eq!(at_noon(Some(&feeder("pdu-c"))), None);
    let of_a =
        |at| book.in_force(at, Some(&feeder("pdu-a"))).map(|(record, _)| &record.event.event);
    assert_eq!([of_a(at(5_000)), of_a(at(10_000))], [Some(&id("a")), Some(&id("a-2"))]);
    assert_eq!(book.in_force(at(10_000), None).map(|(_, limit)| limit), w(71_100));
    assert_eq!(
        book.feeders(at(0)).into_iter().collect::<Vec<_>>(),
        [&feeder("pdu-a"), &feeder("pdu-b")]
    );
    // Each has the power before of its own feeder.
    book.follow(at(3_600), |feeder| Some(drawn(if feeder.is_none() { 95_000 } else { 45_000 })));
    let before = |name: &str| book.events[&id(name)].before.map(|mean| mean.power_mw);
    assert_eq!([before("site"), before("a"), before("a-2")], [w(95_000), w(45_000), None]);
    let low = GridEvent { event: id("low"), ..of("low", "pdu-a", 20_000) };
    let low = refused(low);
    assert!(low.contains("at least 30 kW, which feeder pdu-a draws without jobs"), "{low}");
}

#[test]
fn a_repeated_request_changes_nothing() {
    let mut book = book([event("a")]);
    assert_eq!(book.add(event("a"), at(60), &site()), Ok(BookChange::Repeated));
    let other = GridEvent { ramp_up_s: 0, ..event("a") };
    assert_eq!(book.add(other, at(60), &site()), Err(EventError::Exists(id("a"))));
    assert_eq!(book.change(&id("a"), 7_200, at(60)), Ok(BookChange::Changed));
    assert_eq!(book.change(&id("a"), 7_200, at(60)), Ok(BookChange::Repeated));
    // Also after a change the announcement is the same.
    assert_eq!(book.add(event("a"), at(60), &site()), Ok(BookChange::Repeated));
    assert_eq!(book.decline(&id("a"), at(60)), Ok(BookChange::Changed));
    assert_eq!(book.decline(&id("a"), at(90)), Ok(BookChange::Repeated));
    assert_eq!(book.generation, 3);
    assert!(book.targets(at(90)).is_empty());
}

#[test]
fn an_event_that_has_begun_is_shortened_extended_and_cancelled() {
    let mut book = book([event("a")]);
    assert_eq!(book.change(&id("a"), 20_000, at(5_000)), Ok(BookChange::Changed));
    assert_eq!(book.events[&id("a")].state(at(24_000)), EventState::Active);
    assert_eq!(book.change(&id("a"), 3_600, at(5_000)), Ok(BookChange::Changed));
    assert_eq!(book.events[&id("a")].state(at(8_100)), EventState::RampingUp);
    let past = book.change(&id("a"), 60, at(5_000)).unwrap_err().to_string();
    assert!(past.contains("wattle event cancel"), "{past}");
    let refused = book.decline(&id("a"), at(5_000)).unwrap_err().to_string();
    assert_eq!(refused, "event `a` is active: only an event that has not begun can be declined");
    assert_eq!(book.cancel(&id("a"), at(5_000)), Ok(BookChange::Changed));
    assert_eq!(book.cancel(&id("a"), at(5_100)), Ok(BookChange::Repeated));
    let record = &book.events[&id("a")];
    assert_eq!(record.state(at(5_001)), EventState::RampingUp);
    assert_eq!(record.state(at(5_900)), EventState::Cancelled);
    assert!(book.change(&id("a"), 7_200, at(5_100)).is_err());
    let mandatory = GridEvent { participation: Participation::Mandatory, ..event("b") };
    book.add(mandatory, at(0), &site()).unwrap();
    assert_eq!(book.decline(&id("b"), at(0)), Err(EventError::Mandatory(id("b"))));
    assert_eq!(book.cancel(&id("c"), at(0)), Err(EventError::Unknown(id("c"))));
}

#[test]
fn an_event_cancelled_on_its_ramp_down_returns_from_there() {
    let mut book = book([event("a")]);
    let middle = at(3_600 + 450);
    let before = book.targets(at(0)).site.at(middle - seconds(1)).unwrap();
    book.cancel(&id("a"), middle).unwrap();
    let targets = book.targets(middle).site;
    assert!(targets.at(middle).unwrap() <= before);
    assert!(targets.at(middle + seconds(450)).unwrap() > before);
    assert_eq!(targets.at(middle + seconds(900)), Some(Power::from_w(DRAWN_W)));
}

#[test]
fn numbers_of_events_are_bounded() {
    let name = |n: usize| format!("e{n}");
    let mut book = book((0..EVENTS_MAX).map(|n| event(&name(n))));
    assert_eq!(book.add(event("more"), at(0), &site()), Err(EventError::TooMany));
    let last = book.events.values().map(EventRecord::settled).max().unwrap();
    for n in 0..EVENTS_MAX {
        let later = GridEvent { start_us: last + seconds(60), ..event(&format!("f{n}")) };
        book.add(later, last, &site()).unwrap();
    }
    assert_eq!(book.events.len(), EVENTS_MAX + EVENTS_MAX);
    let end = book.events.values().map(EventRecord::settled).max().unwrap();
    assert!(book.follow(end, |_| None));
    assert_eq!(book.events.len(), ENDED_KEPT);
    assert!(book.events.keys().all(|event| event.as_str().starts_with('f')));
}

/// An event, the power drawn before, and when it was cancelled or declined.
type Announced = (GridEvent, Option<u64>, Option<(u64, bool)>);

fn any_event() -> impl Strategy<Value = Announced> {
    let spans = (0u64..20_000, 60u64..20_000, 0u64..4_000, 0u64..4_000);
    let depth = (1u64..90_000, 0u64..130_000);
    let closed = prop::option::of((0u64..30_000, any::<bool>()));
    (spans, depth, prop::bool::ANY, closed).prop_map(|(spans, depth, is_measured, closed)| {
        let (start_s, duration_s, down_s, up_s) = spans;
        let event = GridEvent {
            start_us: at(start_s),
            duration_s,
            ramp_down_s: down_s.min(duration_s),
            ramp_up_s: up_s.min(duration_s),
            depth: Depth::Target { power_mw: Power::from_w(depth.0) },
            ..event("x")
        };
        (event, is_measured.then_some(depth.1), closed)
    })
}

fn records(events: Vec<Announced>) -> Vec<EventRecord> {
    let record = |(event, watts, closed): Announced| {
        let figures = SiteFigures { drawn: watts.map(drawn), idle: None };
        let mut book = EventBook::default();
        book.add(event, at(0), &figures).unwrap();
        if let Some((closed_s, declines)) = closed {
            // A refusal leaves the event as it is.
            let _ = match declines {
                true => book.decline(&id("x"), at(closed_s)),
                false => book.cancel(&id("x"), at(closed_s)),
            };
        }
        book.events.into_values().next().unwrap()
    };
    events.into_iter().map(record).collect()
}

proptest! {
    /// No step is above the exact line of any event, and none is more than a step below the line of the lowest.
    #[test]
    fn the_target_is_never_above_that_of_any_event(
        events in prop::collection::vec(any_event(), 1..6), instant in 0u64..60_000,
    ) {
        let records = records(events);
        let all = TargetSteps::of(&records);
        let instant = at(instant);
        let mut exact: Vec<f64> = Vec::new();
        let mut below: f64 = 0.0;
        for record in records.iter().filter(|record| record.has_target()) {
            let (target, end) = (record.target_mw.as_w(), record.end_us);
            let within = record.event.start_us <= instant && instant < record.settled();
            let Some(before) = record.drawn_before().map(Power::as_w) else {
                if record.event.start_us <= instant && instant < end {
                    exact.push(target);
                }
                continue;
            };
            if !within {
                continue;
            }
            let down = |at| line((record.event.start_us, before), (record.reached(), target), at);
            let at_end = if end < record.reached() { down(end) } else { target };
            let watts = if instant < end.min(record.reached()) {
                down(instant)
            } else if instant < end {
                target
            } else if instant < record.returned() {
                line((end, at_end), (record.returned(), before), instant)
            } else {
                before
            };
            exact.push(watts);
            // One step of each ramp: a step of at most 10 s, or 1 % of the ramp.
            let steps = |ramp_s: u64| (ramp_s.div_ceil(10)).clamp(1, 100) as f64;
            let ramps = [record.event.ramp_down_s, record.event.ramp_up_s];
            below = ramps.iter().map(|ramp| (before - target) / steps(*ramp)).sum::<f64>().max(below);
        }
        let lowest = exact.iter().copied().reduce(f64::min);
        let limit = all.at(instant).map(Power::as_w);
        prop_assert_eq!(lowest.is_some(), limit.is_some());
        if let Some((lowest, limit)) = lowest.zip(limit) {
            prop_assert!(limit <= lowest + 1e-3, "{limit} above {lowest}");
            prop_assert!(limit >= lowest - below - 1e-2, "{limit} below {lowest} by more than {below}");
        }
    }

    /// The merged limit is the minimum at each instant, and nothing changes between its changes.
    #[test]
    fn a_merged_limit_is_the_lower_one_at_each_instant(
        events in prop::collection::vec(any_event(), 0..4),
        steps in prop::collection::vec(1u64..100, 1..5),
        most in prop::option::of(1u64..100),
        from in 0u64..40_000, span in 0u64..20_000,
    ) {
        let steps: Vec<_> =
            (0..).zip(&steps).map(|(n, kw)| (n * 3_000, Power::from_w(kw * 1_000))).collect();
        let series = PowerSeries { starts_at_us: at(0), period_s: 3_000 * steps.len() as u64, steps };
        let power_mw = most.map(|kw| Power::from_w(kw * 1_000));
        let budget =
            Budget { power_mw, power_series: Some(series.clone()), ..Budget::default() };
        let targets = TargetSteps::of(&records(events));
        let limit = LimitOverTime::new(Some(&budget), targets.clone()).unwrap();
        let lowest = |at| {
            [power_mw, Some(series.at(at)), targets.at(at)].into_iter().flatten().min()
        };
        let (from, until) = (at(from), at(from) + seconds(span));
        prop_assert_eq!(limit.at(from), lowest(from));
        let next = limit.changes_after(from).unwrap();
        prop_assert!(next > from);
        let last = next - Duration::from_micros(1);
        prop_assert_eq!(limit.at(last), limit.at(from));
        let changes = limit.changes(from).take_while(|at| *at < until);
        let seen = std::iter::once(from).chain(changes).filter_map(|at| limit.at(at)).min();
        prop_assert_eq!(limit.least(from, until), seen);
        let repeats = limit.repeats_from(from);
        prop_assert_eq!(limit.least(from, repeats), limit.least(from, repeats + seconds(900_000)));
    }
}
