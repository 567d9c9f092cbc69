//! The grid events: which are known, and what may be announced.

use serde_json::{Map, Value, json};
use wattle_common::event::{Depth, EventRecord, GridEvent, Participation, kw};
use wattle_common::{FeederId, NodeId, Power};
use wattle_view::event;
use wattle_view::feeders::{Row, drawn, rows};

use super::{seconds, watts};
use crate::model::{Model, Now};

/// `voluntary` or `mandatory`.
pub(super) const fn kind(record: &EventRecord) -> &'static str {
    match record.event.participation {
        Participation::Voluntary => "voluntary",
        Participation::Mandatory => "mandatory",
    }
}

/// The draw without jobs, where it is known.
fn idle(model: &Model) -> Option<Power> {
    model.status.as_ref()?.power_mw_baseline
}

/// The feeders with their measured power, each after the one that supplies it.
fn feeders(model: &Model) -> Vec<Row> {
    let reading = |id: &NodeId| drawn(model.nodes.get(id), model.summaries.get(id));
    model.feeders.as_ref().map(|status| rows(status, reading)).unwrap_or_default()
}

/// What an entered event would be, against the present draw. The placer decides, by the mean of the last 15 minutes.
#[must_use]
pub fn announcement(event: &GridEvent, model: &Model) -> Value {
    let (drawn, idle) = match &event.feeder {
        None => (model.power(), idle(model)),
        Some(feeder) => {
            let row = feeders(model).into_iter().find(|row| row.feeder == *feeder);
            let complete = row.as_ref().filter(|row| !row.is_partial);
            (complete.and_then(|row| row.measured_mw), None)
        }
    };
    let unknown = event
        .feeder
        .as_ref()
        .filter(|feeder| feeders(model).iter().all(|row| row.feeder != **feeder));
    let target = match event.depth {
        Depth::Target { power_mw } => Some(power_mw),
        Depth::Reduction { power_mw } => drawn.map(|drawn| drawn.saturating_sub(power_mw)),
        Depth::Percent { percent } => drawn.map(|drawn| drawn.scale(1.0 - percent / 100.0)),
    };
    let below = target.zip(idle).filter(|(target, idle)| target < idle);
    let is_above = target.zip(drawn).is_some_and(|(target, drawn)| target >= drawn);
    json!({
        "event": event.event.as_str(),
        "place": event.place(),
        "unknown_feeder": unknown.map(|feeder| format!("no feeder {feeder} is known")),
        "target_w": target.map(watts),
        "now_w": drawn.map(watts),
        "less_w": drawn.zip(target).map(|(drawn, target)| watts(drawn.saturating_sub(target))),
        "below_idle": below.map(|(_, idle)| {
            format!("the site draws {} without jobs: the target must be above it", kw(idle))
        }),
        "no_reduction": is_above.then_some(true),
        "start_s": seconds(event.start_us),
        "end_s": seconds(event.end()),
    })
}

/// The content of the page.
pub(super) fn content(model: &Model, now: Now) -> Value {
    let book = model.events.clone().unwrap_or_default();
    let records = book.in_order();
    let mut order: Vec<&EventRecord> = records.clone();
    // Those under way, then the next, then the last ones that are over.
    order.sort_by_key(|record| {
        let state = record.state(now.at);
        let start = record.event.start_us.as_us();
        match () {
            () if state.is_under_way() => (0, start),
            () if state.is_over() => (2, u64::MAX - start),
            () => (1, start),
        }
    });
    let row = |record: &&EventRecord| {
        let row = json!({
            "state": record.state(now.at).as_str(),
            "start_s": seconds(record.event.start_us),
            "end_s": seconds(record.end_us),
            "target": kw(record.limit()),
            "less": record.reduction().map(kw),
            "kind": kind(record),
            "source": record.event.source,
            "feeder": record.event.feeder.as_ref().map(FeederId::as_str),
        });
        (record.event.event.to_string(), row)
    };
    let rows: Map<String, Value> = order.iter().map(row).collect();
    json!({
        "verdict": event::verdict(&records, now.at),
        // After the last one is over its return is limited.
        "in_force": Some(event::all_in_force(&book, now.at)).filter(|limits| {
            !limits.is_empty() && records.iter().all(|record| !record.state(now.at).is_under_way())
        }),
        "feeders": feeders(model).iter().map(|row| row.feeder.as_str()).collect::<Vec<_>>(),
        "order": order.iter().map(|record| record.event.event.as_str()).collect::<Vec<_>>(),
        "rows": rows,
        "now_w": model.power().map(watts),
        "idle_w": idle(model).map(watts),
    })
}

#[cfg(test)]
mod tests {
    use wattle_common::messages::BudgetStatus;
    use wattle_common::{EventId, Timestamp};

    use super::*;
    use crate::model::tests::{budget_status, example, now};

    fn event(depth: Depth) -> GridEvent {
        GridEvent {
            event: EventId::new("peak").unwrap(),
            source: "utility".to_owned(),
            feeder: None,
            start_us: Timestamp::from_s(200),
            ramp_down_s: 0,
            depth,
            duration_s: 600,
            ramp_up_s: 0,
            priority: 0,
            participation: Participation::Voluntary,
        }
    }

    #[test]
    fn an_entered_event_is_compared_with_the_draw_now_and_without_jobs() {
        let mut model = example();
        let shown = |model: &Model, depth| announcement(&event(depth), model);
        let quarter = shown(&model, Depth::Percent { percent: 25.0 });
        assert_eq!(
            (&quarter["target_w"], &quarter["less_w"], &quarter["now_w"]),
            (&json!(510), &json!(170), &json!(680))
        );
        assert_eq!(quarter["below_idle"], Value::Null);
        model.status =
            Some(BudgetStatus { power_mw_baseline: Some(Power::from_w(450)), ..budget_status() });
        let low = shown(&model, Depth::Target { power_mw: Power::from_w(400) });
        let text = "the site draws 0.45 kW without jobs: the target must be above it";
        assert_eq!(low["below_idle"], text);
        let high = shown(&model, Depth::Target { power_mw: Power::from_w(900) });
        assert_eq!((&high["no_reduction"], &high["less_w"]), (&json!(true), &json!(0)));
        // A feeder is compared with its own measured power, where it is known.
        model.feeders = Some(wattle_testkit::feeders_status());
        let of = |name: &str| GridEvent {
            feeder: FeederId::new(name).ok(),
            ..event(Depth::Percent { percent: 25.0 })
        };
        let rack = announcement(&of("pdu-a"), &model);
        let measured = feeders(&model).into_iter().find(|row| row.feeder.as_str() == "pdu-a");
        let measured = measured.filter(|row| !row.is_partial).and_then(|row| row.measured_mw);
        assert_eq!(
            (&rack["place"], &rack["now_w"]),
            (&json!("feeder pdu-a"), &json!(measured.map(watts)))
        );
        assert_eq!(announcement(&of("no"), &model)["unknown_feeder"], "no feeder no is known");
        // Without readings a share has no target, and a target is one.
        model.summaries.clear();
        assert_eq!(shown(&model, Depth::Percent { percent: 25.0 })["target_w"], Value::Null);
        let known = shown(&model, Depth::Target { power_mw: Power::from_w(500) });
        assert_eq!((&known["target_w"], &known["less_w"]), (&json!(500), &Value::Null));
    }

    #[test]
    fn events_under_way_come_first() {
        let mut model = example();
        let mut book = wattle_common::event::EventBook::default();
        let site = wattle_common::event::SiteFigures { drawn: None, idle: None };
        for (id, start_s) in [("next", 5_000), ("over", 10), ("now", 900), ("before", 5)] {
            let target = Depth::Target { power_mw: Power::from_w(500) };
            let one = GridEvent {
                event: EventId::new(id).unwrap(),
                start_us: Timestamp::from_s(start_s),
                ..event(target)
            };
            book.add(one, Timestamp::from_s(0), &site).unwrap();
        }
        model.events = Some(book);
        let page = content(&model, now(1_000));
        assert_eq!(page["order"], json!(["now", "next", "over", "before"]));
        assert_eq!(page["rows"]["now"]["state"], "active");
        let verdict = page["verdict"].as_str().unwrap();
        assert!(verdict.starts_with("grid event now is active: at most 0.5 kW until"), "{verdict}");
        assert_eq!(content(&example(), now(100))["order"], json!([]));
    }
}
