//! One grid event: what was announced, its target over time with the measured power and the baselines, and its report.

use serde_json::{Map, Value, json};
use wattle_common::event::report::{BaselineMethod, EventReport, event_report};
use wattle_common::event::{
    Closed, Depth, EventRecord, EventState, MeasuredMean, Participation, TargetSteps, kw,
};
use wattle_common::{EventId, Power, Timestamp};
use wattle_view::event::sentence;
use wattle_view::event_report as words;

use super::events::kind;
use super::{rounded, seconds, watts};
use crate::model::{Model, Now};

/// Most points of a curve.
const POINTS_MAX: usize = 300;

fn mean(measured: &MeasuredMean) -> Value {
    json!({
        "text": format!("{}, {}", kw(measured.power_mw), measured.method.as_str()),
        "from_s": seconds(measured.from_us),
        "until_s": seconds(measured.until_us),
    })
}

/// The limit over time, where the event has one: seconds and watts; without watts it ends.
fn target(record: &EventRecord) -> Vec<(u64, Option<Value>)> {
    let steps = TargetSteps::of([record]);
    let first = Some(record.event.start_us).filter(|_| !steps.is_empty());
    let all: Vec<Timestamp> = std::iter::successors(first, |at| steps.changes_after(*at)).collect();
    let step = all.len().div_ceil(POINTS_MAX).max(1);
    // The last one, at which the limit ends, is among them.
    let chosen = all.iter().rev().step_by(step).rev();
    chosen.map(|at| (seconds(*at), steps.at(*at).map(watts))).collect()
}

/// The minutes as points of curves: measured power, then each baseline, W. A part of many minutes has its mean.
fn points(report: &EventReport) -> Map<String, Value> {
    let step = report.minutes.len().div_ceil(POINTS_MAX).max(1);
    let mean = |powers: Vec<Option<Power>>| -> Option<Value> {
        let known: Option<Vec<Power>> = powers.into_iter().collect();
        let known = known.filter(|known| !known.is_empty())?;
        let sum_w: f64 = known.iter().map(|power| power.as_w()).sum();
        Some(rounded(sum_w / known.len() as f64, 0))
    };
    let part = |minutes: &[wattle_common::event::report::ReportMinute]| {
        let measured = mean(minutes.iter().map(|minute| minute.measured_mw).collect());
        let baseline = |method: BaselineMethod| {
            mean(minutes.iter().map(|minute| minute.baseline_mw.get(&method).copied()).collect())
        };
        let values = std::iter::once(measured).chain(BaselineMethod::ALL.map(baseline));
        // A value that is not known is an empty list: an array has no absent member.
        let values: Vec<Value> = values.map(|value| value.unwrap_or_else(|| json!([]))).collect();
        (seconds(minutes[0].minute_us).to_string(), Value::Array(values))
    };
    report.minutes.chunks(step).map(part).collect()
}

/// The report in the words and figures of the command.
fn shown(report: &EventReport) -> Value {
    let baseline = |baseline: &wattle_common::event::report::BaselineReport| {
        json!({
            "name": baseline.method.as_str(),
            "method": words::method(baseline),
            "delivered": baseline.delivered.as_ref().map(words::DeliveredText::of),
        })
    };
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    let job = |(id, job): (&wattle_common::JobId, &wattle_common::event::report::ReportJob)| {
        let performance = &job.performance;
        json!({
            "key": id.as_str(),
            "gpus": performance.gpus,
            "promised": performance.promise.map(|promise| percent(promise.loss())),
            "lost": percent(performance.loss()),
            "expected": percent(performance.expected),
            "outcome": job.outcome.as_str(),
        })
    };
    let compliance = &report.compliance;
    let has =
        |kept: &wattle_common::event::report::Kept| (kept.minutes > 0).then(|| words::kept(kept));
    let shortfall = report.record.shortfall_mw > Power::ZERO;
    json!({
        "verdict": words::verdict(report),
        "is_final": report.is_final,
        "tolerance": words::tolerance(),
        "target": words::kept(&compliance.target),
        "target_share": compliance.target.share().map(|share| rounded(share, 4)),
        "shortfall": shortfall.then(|| format!(
            "within {} in {} of {} minutes",
            kw(report.record.limit()),
            compliance.target.within_limit,
            compliance.target.minutes
        )),
        "ramps": has(&compliance.ramps),
        "after": has(&compliance.after),
        "drawn": words::energy(report),
        "baselines": report.baselines.iter().map(baseline).collect::<Vec<_>>(),
        "bases": report.first_delivered().map(|(_, delivered)| words::bases(delivered)),
        "jobs": report.jobs.iter().map(job).collect::<Vec<_>>(),
        "points": points(report),
        "until_s": report.minutes.last().map(|last| seconds(last.minute_us) + 60),
    })
}

/// The content of the page.
pub(super) fn content(id: &EventId, model: &Model, now: Now) -> Value {
    let found = model.events.as_ref().and_then(|book| book.events.get(id));
    let Some(record) = found else {
        return json!({ "event": id.as_str(), "found": false });
    };
    let event = &record.event;
    let state = record.state(now.at);
    let depth = match event.depth {
        Depth::Target { power_mw } => format!("to {}", kw(power_mw)),
        Depth::Reduction { power_mw } => format!("{} less", kw(power_mw)),
        Depth::Percent { percent } => format!("{percent} % less"),
    };
    let closed = record.closed.map(|closed| match closed {
        Closed::Cancelled { at_us } | Closed::Declined { at_us } => seconds(at_us),
    });
    let report = model.site_from.map(|_| {
        let none = std::collections::BTreeMap::new();
        let jobs = model.event_jobs.events.get(id).unwrap_or(&none);
        shown(&event_report(record, jobs, &model.site, now.at))
    });
    let is_open = record.has_target() && now.at < record.end_us && record.closed.is_none();
    let is_voluntary = event.participation == Participation::Voluntary;
    json!({
        "event": id.as_str(),
        "found": true,
        "state": state.as_str(),
        "sentence": sentence(record, now.at),
        "feeder": event.feeder.as_ref().map(wattle_common::FeederId::as_str),
        "place": event.place(),
        "target": kw(record.target_mw),
        "less": record.reduction().map(kw),
        "shortfall": (record.shortfall_mw > Power::ZERO).then(|| kw(record.shortfall_mw)),
        "depth": depth,
        "source": event.source,
        "kind": kind(record),
        "notice_s": seconds(record.notice_us),
        "start_s": seconds(event.start_us),
        "reached_s": seconds(record.reached()),
        "end_s": seconds(record.end_us),
        "returned_s": seconds(record.returned()),
        "settled_s": seconds(record.settled()),
        "duration_min": record.end_us.since(record.reached()).as_secs().div_ceil(60),
        "closed_s": closed,
        "baseline": record.baseline.as_ref().map(mean),
        "before": record.before.as_ref().map(mean),
        "limit": target(record).into_iter().map(|(at, w)| json!({ "s": at, "w": w })).collect::<Vec<_>>(),
        "can_change": is_open.then_some(true),
        "can_decline": (is_open && is_voluntary && state == EventState::Planned).then_some(true),
        "report": report,
    })
}

#[cfg(test)]
mod tests {
    use wattle_common::event::{EventBook, GridEvent, SiteFigures};
    use wattle_common::messages::SiteMinute;

    use super::*;
    use crate::model::tests::{example, now};

    fn with_event() -> Model {
        let event = GridEvent {
            event: EventId::new("peak").unwrap(),
            source: "utility".to_owned(),
            feeder: None,
            start_us: Timestamp::from_s(6_000),
            ramp_down_s: 60,
            depth: Depth::Target { power_mw: Power::from_w(500) },
            duration_s: 600,
            ramp_up_s: 60,
            priority: 0,
            participation: Participation::Voluntary,
        };
        let mut book = EventBook::default();
        book.add(event, Timestamp::from_s(5_000), &SiteFigures { drawn: None, idle: None })
            .unwrap();
        let mut model = example();
        model.events = Some(book);
        model
    }

    fn minute(from_s: u64, watts: u64) -> SiteMinute {
        wattle_testkit::site_minute(Timestamp::from_s(from_s), Power::from_w(watts))
    }

    #[test]
    fn the_page_has_the_words_of_the_report() {
        let mut model = with_event();
        let id = EventId::new("peak").unwrap();
        let page = |model: &Model, s| content(&id, model, now(s));
        assert_eq!(page(&model, 6_300).get("report"), Some(&Value::Null), "it is read");
        let minutes = (0..30).map(|n| minute(5_100 + 60 * n, if n < 15 { 800 } else { 490 }));
        let site = minutes.map(|minute| (minute.minute_us, minute)).collect();
        model.take_site(Timestamp::from_s(0), site);
        let shown = page(&model, 6_400);
        let record = &model.events.as_ref().unwrap().events[&id];
        let report = event_report(record, &[].into(), &model.site, Timestamp::from_s(6_400));
        assert_eq!(shown["report"]["verdict"], json!(words::verdict(&report)));
        let verdict = shown["report"]["verdict"].as_str().unwrap();
        assert!(
            verdict.contains("so far: the site was within the target of 0.5 kW in"),
            "{verdict}"
        );
        assert!(verdict.contains("0.31 kW (38.8 %) less than before"), "{verdict}");
        assert_eq!(shown["report"]["points"]["6060"], json!([490, [], 800, []]));
        assert_eq!((&shown["can_change"], &shown["can_decline"]), (&json!(true), &Value::Null));
        assert_eq!(page(&model, 5_500)["can_decline"], json!(true));
        assert_eq!(content(&EventId::new("no").unwrap(), &model, now(1))["found"], json!(false));
    }

    #[test]
    fn the_power_is_read_again_from_the_last_minute_on() {
        let mut model = with_event();
        let id = EventId::new("peak").unwrap();
        assert_eq!(model.site_missing_from(), None, "no page is followed");
        model.follow_events([id].into());
        let needed = model.site_missing_from().unwrap();
        let known = minute(5_100, 800);
        model.take_site(needed, [(known.minute_us, known)].into());
        assert_eq!(model.site_missing_from(), Some(Timestamp::from_s(5_100)));
        model.follow_events([].into());
        assert!(model.site.is_empty() && model.site_from.is_none());
    }
}
