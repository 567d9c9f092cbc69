//! Reports of series with known answers.

use super::*;
use crate::aim::Baseline;
use crate::event::{
    Depth, EventBook, GridEvent, MeasuredBy, MeasuredMean, Participation, SiteFigures,
};
use crate::id::EventId;
use crate::messages::TwinPower;
use crate::messages::site_minute::FeederMinute;

/// Wednesday, 2026-11-25 00:00 UTC.
const DAY_0: u64 = 20_782 * 86_400;

fn at(hours: f64) -> Timestamp {
    Timestamp::from_us((DAY_0 as f64 * 1e6 + hours * 3.6e9).round() as u64)
}

fn before(days: u64, hours: f64) -> Timestamp {
    at(hours) - Duration::from_secs(days * 86_400)
}

fn kw(kilowatts: f64) -> Power {
    Power::from_w_f64(1e3 * kilowatts)
}

fn minute(from: Timestamp, power: Power) -> SiteMinute {
    SiteMinute {
        minute_us: from,
        energy_mj: power.over(MINUTE),
        nodes: 4,
        metered: 4,
        asleep: 0,
        asleep_mw: Power::ZERO,
        limit_mw: None,
        target_mw: None,
        twin: Some(TwinPower { power_mw: kw(98.0), policy: Baseline::Backfill }),
        price: Some(Price { micros_per_kwh: 200_000, currency: "EUR".to_owned() }),
        intensity_mg_per_kwh: Some(CarbonIntensity::from_g_per_kwh(400.0)),
        feeders: BTreeMap::new(),
        ledger_from: 1,
    }
}

/// Minutes with one power.
fn fill(site: &mut SiteMinutes, from: Timestamp, until: Timestamp, power: Power) {
    let mut from = from;
    while from < until {
        site.insert(from, minute(from, power));
        from = from + MINUTE;
    }
}

/// An event at 12:00 with an hour at 70 kW and ramps of 15 minutes, announced at `notice_h`.
fn record(notice_h: f64, drawn: Option<f64>) -> EventRecord {
    let event = GridEvent {
        event: EventId::new("peak").unwrap(),
        source: "utility".to_owned(),
        feeder: None,
        start_us: at(12.0),
        ramp_down_s: 900,
        depth: Depth::Target { power_mw: kw(70.0) },
        duration_s: 3_600,
        ramp_up_s: 900,
        priority: 0,
        participation: Participation::Voluntary,
    };
    let measured = drawn.map(|kilowatts| MeasuredMean {
        power_mw: kw(kilowatts),
        from_us: at(notice_h) - Duration::from_secs(900),
        until_us: at(notice_h),
        method: MeasuredBy::EnergyLedger,
    });
    let mut book = EventBook::default();
    let site = SiteFigures { drawn: measured, idle: None };
    book.add(event, at(notice_h), &site).unwrap();
    let mut record = book.events.into_values().next().unwrap();
    record.before = measured;
    record
}

/// The ten weekdays before with 90 kW at noon and 80 kW in the morning, weekends with 40 kW; on the day itself
/// `morning` kW, and 69 kW during the event.
fn history(morning: f64) -> SiteMinutes {
    let mut site = SiteMinutes::new();
    for days in 1..=14 {
        let (noon, dawn) =
            if matches!(days, 3 | 4 | 10 | 11) { (40.0, 40.0) } else { (90.0, 80.0) };
        fill(&mut site, before(days, 6.0), before(days, 12.0), kw(dawn));
        fill(&mut site, before(days, 12.0), before(days, 14.0), kw(noon));
    }
    fill(&mut site, at(6.0), at(12.0), kw(morning));
    fill(&mut site, at(12.0), at(13.5), kw(69.0));
    fill(&mut site, at(13.5), at(14.5), kw(88.0));
    site
}

fn report(record: &EventRecord, site: &SiteMinutes, hours: f64) -> EventReport {
    event_report(record, &BTreeMap::new(), site, at(hours))
}

fn baseline(report: &EventReport, method: BaselineMethod) -> &BaselineReport {
    report.baselines.iter().find(|baseline| baseline.method == method).unwrap()
}

#[test]
fn energy_cost_and_carbon_follow_from_the_minutes() {
    let (record, site) = (record(11.0, Some(88.0)), history(88.0));
    let report = report(&record, &site, 16.0);
    assert!(report.is_final);
    assert_eq!(report.minutes.len(), 105);
    let phases = |phase| report.minutes.iter().filter(|minute| minute.phase == phase).count();
    assert_eq!(
        [Phase::RampDown, Phase::Target, Phase::RampUp, Phase::Return].map(phases),
        [15, 60, 15, 15]
    );
    // The energy of the report is that of the records.
    let sum: Energy = site.range(at(12.0)..at(13.5)).map(|(_, minute)| minute.energy_mj).sum();
    assert_eq!((report.energy_mj, report.energy_minutes), (sum, 90));
    // 80 kW before the notice on like days and 88 kW on the day: 10 % more than 90 kW.
    let like = baseline(&report, BaselineMethod::LikeDays);
    let Some(Basis::LikeDays { days_us, weekend: false, adjustment: Some(found), .. }) =
        &like.basis
    else {
        panic!("{like:?}");
    };
    assert_eq!((days_us.len(), days_us[0], days_us[9]), (10, before(1, 12.0), before(14, 12.0)));
    assert!((found.measured - 1.1).abs() < 1e-9 && (found.applied - 1.1).abs() < 1e-9);
    let delivered = like.delivered.as_ref().unwrap();
    assert_eq!((delivered.baseline_mw, delivered.measured_mw), (kw(99.0), kw(69.0)));
    assert_eq!((delivered.less_mw, delivered.minutes), (30_000_000, 60));
    // 30 kW for an hour and a half: 45 kWh at 0.20 and 400 g.
    assert_eq!((delivered.energy_mj, delivered.energy_minutes), (45 * 3_600_000_000, 90));
    let cost = delivered.cost.as_ref().unwrap();
    assert_eq!((cost.micros, cost.minutes), (9_000_000, 90));
    assert_eq!(delivered.carbon.unwrap().ug, 18_000_000_000);
    let meter = baseline(&report, BaselineMethod::MeterBefore);
    let expected = Basis::MeterBefore { power_mw: kw(88.0), minutes: 15, after_mw: Some(kw(88.0)) };
    assert_eq!(meter.basis, Some(expected));
    assert_eq!(meter.delivered.as_ref().unwrap().less_mw, 19_000_000);
    let twin = baseline(&report, BaselineMethod::Twin);
    assert_eq!(twin.delivered.as_ref().unwrap().less_mw, 29_000_000);
    assert_eq!(report.first_delivered().unwrap().0, BaselineMethod::LikeDays);
}

#[test]
fn compliance_counts_each_minute_within_its_tolerance() {
    let (record, mut site) = (record(11.0, Some(88.0)), history(88.0));
    // Of the hour one minute is within the tolerance, one above it, one has an unmetered node and one no record.
    for (minute_n, kilowatts) in [(20.0, 71.3), (21.0, 71.5)] {
        let from = at(12.0 + minute_n / 60.0);
        site.insert(from, minute(from, kw(kilowatts)));
    }
    site.get_mut(&at(12.0 + 22.0 / 60.0)).unwrap().metered = 3;
    site.remove(&at(12.0 + 23.0 / 60.0));
    let report = report(&record, &site, 16.0);
    let kept = |minutes, measured, within| Kept { minutes, measured, within, within_limit: within };
    assert_eq!(report.compliance.target, kept(60, 58, 57));
    // 69 kW is below both lines from the first minute on.
    assert_eq!(report.compliance.ramps, kept(30, 30, 30));
    assert_eq!(report.compliance.after, kept(15, 15, 15));
    assert_eq!(report.energy_minutes, 88);
    // The ramp is a line from 88 to 70 kW; its first minute is below 88.
    let targets: Vec<f64> =
        report.minutes.iter().map(|minute| minute.target_mw.unwrap().as_w()).collect();
    assert!(targets[0] < 88_000.0 && targets[0] > 86_000.0, "{targets:?}");
    assert_eq!((targets[15], targets[74]), (70_000.0, 70_000.0));
    assert!((targets[104] - 88_000.0).abs() < 1e-9);
}

#[test]
fn a_declared_shortfall_has_a_limit_of_its_own() {
    let (mut record, site) = (record(11.0, Some(88.0)), history(88.0));
    (record.target_mw, record.shortfall_mw) = (kw(60.0), kw(10.0));
    let kept = report(&record, &site, 16.0).compliance.target;
    assert_eq!((kept.within, kept.within_limit, kept.share()), (0, 60, Some(0.0)));
}

#[test]
fn the_baseline_is_frozen_at_the_notice_and_bounded() {
    let mut site = history(160.0);
    let first = report(&record(11.0, Some(88.0)), &site, 16.0);
    let like = baseline(&first, BaselineMethod::LikeDays);
    let Some(Basis::LikeDays { adjustment: Some(found), .. }) = like.basis else { panic!() };
    assert!((found.measured - 2.0).abs() < 1e-9 && (found.applied - 1.2).abs() < 1e-9);
    // Power between the notice and the start changes nothing.
    fill(&mut site, at(11.0), at(12.0), kw(500.0));
    let second = report(&record(11.0, Some(88.0)), &site, 16.0);
    assert_eq!(&baseline(&second, BaselineMethod::LikeDays).basis, &like.basis);
    // The meter before is that power.
    let meter = baseline(&second, BaselineMethod::MeterBefore).delivered.as_ref().unwrap();
    assert_eq!(meter.baseline_mw, kw(500.0));
}

#[test]
fn days_with_events_and_days_of_the_other_kind_do_not_count() {
    let mut site = history(88.0);
    for days in [1, 2, 5, 6] {
        let morning = before(days, 7.0);
        site.get_mut(&morning).unwrap().target_mw = Some(kw(10.0));
    }
    let some = report(&record(11.0, Some(88.0)), &site, 16.0);
    let Some(Basis::LikeDays { days_us, .. }) = &baseline(&some, BaselineMethod::LikeDays).basis
    else {
        panic!("{some:?}");
    };
    let found: Vec<u64> =
        days_us.iter().map(|day| at(12.0).since(*day).as_secs() / 86_400).collect();
    assert_eq!(found, [7, 8, 9, 12, 13, 14]);
    for days in [7, 8] {
        site.get_mut(&before(days, 7.0)).unwrap().target_mw = Some(kw(10.0));
    }
    let few = report(&record(11.0, Some(88.0)), &site, 16.0);
    assert_eq!(
        baseline(&few, BaselineMethod::LikeDays).unavailable.as_deref(),
        Some(
            "4 of the 32 weekdays before the notice were measured without an event (6 had one), 5 are needed"
        )
    );
    assert_eq!(few.first_delivered().unwrap().0, BaselineMethod::MeterBefore);
}

#[test]
fn a_baseline_that_cannot_be_computed_states_why() {
    let mut site = SiteMinutes::new();
    fill(&mut site, at(11.9), at(13.5), kw(69.0));
    site.values_mut().for_each(|minute| minute.twin = None);
    let report = report(&record(11.0, None), &site, 13.0);
    assert!(!report.is_final);
    let reasons: Vec<&str> =
        report.baselines.iter().map(|baseline| baseline.unavailable.as_deref().unwrap()).collect();
    expect_test::expect![[r#"
        [
            "0 of the 32 weekdays before the notice were measured without an event (0 had one), 5 are needed",
            "6 of the 15 minutes before the start were measured, 10 are needed",
            "the twin's power was known in no minute: it needs the power of idle nodes and a prediction for each of its running jobs",
        ]
    "#]]
    .assert_debug_eq(&reasons);
    // Without a measured power before it an event has no ramps, and no limit of the return.
    assert_eq!(report.minutes.last().unwrap().phase, Phase::RampUp);
    assert!(report.compliance.target.minutes == 60 && report.compliance.after.minutes == 0);
    assert_eq!(report.first_delivered(), None);
}

#[test]
fn so_far_it_has_the_minutes_that_are_known() {
    let record = record(11.0, Some(88.0));
    let mut site = history(88.0);
    site.retain(|from, _| *from < at(12.5));
    // The record of the last minute may still arrive.
    let so_far = report(&record, &site, 12.51);
    assert_eq!((so_far.minutes.len(), so_far.is_final), (30, false));
    // After some minutes without any they count as not measured.
    let silent = report(&record, &site, 12.75);
    assert_eq!((silent.minutes.len(), silent.compliance.target.measured), (39, 15));
    site.retain(|from, _| *from < at(11.5));
    let planned = report(&record, &site, 11.5);
    assert!(planned.minutes.is_empty() && planned.energy_mj == Energy::ZERO);
    assert_eq!(planned.state, EventState::Planned);
    let reason = baseline(&planned, BaselineMethod::Twin).unavailable.as_deref();
    assert_eq!(reason, Some("no minute of the event has passed yet"));
}

#[test]
fn a_notice_of_days_before_has_no_same_day_adjustment() {
    let report = report(&record(-30.0, Some(88.0)), &history(88.0), 16.0);
    let like = baseline(&report, BaselineMethod::LikeDays);
    let Some(Basis::LikeDays { days_us, adjustment: None, not_adjusted: Some(reason), .. }) =
        &like.basis
    else {
        panic!("{like:?}");
    };
    assert_eq!(reason, "the notice was more than a day before the start");
    // The day before the event is after the notice.
    assert_eq!(days_us[0], before(2, 12.0));
    assert_eq!(like.delivered.as_ref().unwrap().baseline_mw, kw(90.0));
}

/// The report of a feeder's event is that of a site which has the feeder's power.
#[test]
fn an_event_of_a_feeder_is_reported_by_the_power_of_that_feeder() {
    let feeder = crate::id::FeederId::new("pdu-a").unwrap();
    let own = history(88.0);
    let of_site = record(11.0, Some(88.0));
    let mut of_feeder = of_site.clone();
    of_feeder.event.feeder = Some(feeder.clone());
    // The whole site draws three times as much, with nodes that were not metered.
    let site: SiteMinutes = own
        .iter()
        .map(|(at, minute)| {
            let part = FeederMinute {
                energy_mj: minute.energy_mj,
                nodes: minute.nodes,
                metered: minute.metered,
                asleep: 0,
                asleep_mw: Power::ZERO,
                target_mw: None,
            };
            let whole = SiteMinute {
                energy_mj: Energy::from_mj(3 * minute.energy_mj.as_mj()),
                nodes: 20,
                metered: 19,
                feeders: [(feeder.clone(), part)].into(),
                ..minute.clone()
            };
            (*at, whole)
        })
        .collect();
    let (expected, found) = (report(&of_site, &own, 16.0), report(&of_feeder, &site, 16.0));
    assert_eq!(found.compliance, expected.compliance);
    assert_eq!(
        (found.energy_mj, found.minutes.len()),
        (expected.energy_mj, expected.minutes.len())
    );
    for (found, expected) in found.baselines.iter().zip(&expected.baselines) {
        if found.method == BaselineMethod::Twin {
            let reason = found.unavailable.as_deref();
            assert_eq!(
                reason,
                Some("the twin computes the power of the whole site, not of a feeder")
            );
        } else {
            assert_eq!(found, expected);
        }
    }
    // A feeder that was not recorded has no minutes.
    of_feeder.event.feeder = crate::id::FeederId::new("pdu-b").ok();
    assert!(
        report(&of_feeder, &site, 16.0).minutes.iter().all(|minute| minute.measured_mw.is_none())
    );
    // A day on which a feeder had an event is no like day of the site.
    let mut eventful = own.clone();
    for minute in eventful.values_mut().filter(|minute| minute.minute_us < at(0.0)) {
        let part = FeederMinute {
            energy_mj: minute.energy_mj,
            nodes: 4,
            metered: 4,
            asleep: 0,
            asleep_mw: Power::ZERO,
            target_mw: Some(kw(30.0)),
        };
        minute.feeders = [(feeder.clone(), part)].into();
    }
    let like = report(&of_site, &eventful, 16.0);
    let like = baseline(&like, BaselineMethod::LikeDays).unavailable.clone().unwrap();
    assert!(like.starts_with("0 of the "), "{like}");
}
