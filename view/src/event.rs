//! Grid events in words.

use wattle_common::duration::span;
use wattle_common::event::{EventBook, EventRecord, EventState, kw};
use wattle_common::{EventId, FeederId, Timestamp};

use crate::date::{compact, near};

/// The lowest limit of grid events of the site or of a feeder at this instant, and whose it is; `None` without one.
#[must_use]
pub fn in_force(book: &EventBook, feeder: Option<&FeederId>, now: Timestamp) -> Option<String> {
    let (record, limit) = book.in_force(now, feeder)?;
    let left = |until: Timestamp| span(until.since(now).as_secs_f64());
    let state = match record.state(now) {
        EventState::RampingDown => {
            format!("ramping down to {} in {}", kw(record.limit()), left(record.reached()))
        }
        EventState::RampingUp => format!("ramping up, {} left", left(record.returned())),
        state if state.is_over() => {
            format!("over, its return is limited for {} more", left(record.settled()))
        }
        _ => format!("active, {} left", left(record.end_us)),
    };
    let most = format!("at most {} now by grid event {}: {state}", kw(limit), record.event.event);
    Some(feeder.map_or(most.clone(), |feeder| format!("feeder {feeder}: {most}")))
}

/// The lowest limits of grid events at this instant: of the site first, then of feeders.
#[must_use]
pub fn all_in_force(book: &EventBook, now: Timestamp) -> Vec<String> {
    let feeders = book.feeders(now).into_iter().map(Some);
    let places = std::iter::once(None).chain(feeders);
    places.filter_map(|feeder| in_force(book, feeder, now)).collect()
}

/// The state in one sentence, with the target.
#[must_use]
pub fn sentence(record: &EventRecord, now: Timestamp) -> String {
    let of = record.event.feeder.as_ref().map_or_else(String::new, |of| format!(" of feeder {of}"));
    let (id, target) = (format!("{}{of}", record.event.event), kw(record.limit()));
    let at = |at| near(at, now);
    let state = record.state(now);
    match state {
        EventState::Planned => {
            let (start, end) = (at(record.event.start_us), at(record.end_us));
            format!("grid event {id} is planned: at most {target}, from {start} until {end} UTC")
        }
        EventState::RampingDown => {
            format!(
                "grid event {id} is ramping down: at most {target} from {} UTC on",
                at(record.reached())
            )
        }
        EventState::Active => {
            format!("grid event {id} is active: at most {target} until {} UTC", at(record.end_us))
        }
        EventState::RampingUp => {
            format!("grid event {id} is ramping up until {} UTC", at(record.returned()))
        }
        EventState::Ended | EventState::Cancelled | EventState::Declined => {
            format!("grid event {id} is over: {}", state.as_str())
        }
    }
}

/// The events in one sentence: those under way, else the next one.
#[must_use]
pub fn verdict(records: &[&EventRecord], now: Timestamp) -> String {
    let under_way: Vec<String> = records
        .iter()
        .filter(|record| record.state(now).is_under_way())
        .map(|record| sentence(record, now))
        .collect();
    if !under_way.is_empty() {
        return under_way.join("\n");
    }
    let mut planned = records.iter().filter(|record| record.state(now) == EventState::Planned);
    planned.next().map_or_else(
        || "no grid event is under way or planned; `wattle event add` announces one".to_owned(),
        |next| format!("no grid event is under way; {}", sentence(next, now)),
    )
}

/// The id of an event that is announced without one: `event-20261129-162500`; `None`: its start has no date.
#[must_use]
pub fn default_id(start: Timestamp) -> Option<EventId> {
    EventId::new(&format!("event-{}", compact(start)?)).ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use wattle_common::Power;
    use wattle_common::event::{
        Depth, GridEvent, MeasuredBy, MeasuredMean, Participation, SiteFigures,
    };

    /// An hour at the target from `start_h` hours on, with ramps of 15 minutes.
    fn event(name: &str, start_h: u64, kilowatts: u64) -> GridEvent {
        GridEvent {
            event: EventId::new(name).unwrap(),
            source: "utility".to_owned(),
            feeder: None,
            start_us: Timestamp::from_s(3_600 * start_h),
            ramp_down_s: 900,
            depth: Depth::Target { power_mw: Power::from_w(1_000 * kilowatts) },
            duration_s: 3_600,
            ramp_up_s: 900,
            priority: 0,
            participation: Participation::Voluntary,
        }
    }

    #[test]
    fn the_lowest_limit_of_the_instant_is_named_with_its_event() {
        let mut book = EventBook::default();
        let noon = Timestamp::from_s(60);
        let drawn = MeasuredMean {
            power_mw: Power::from_w(100_000),
            from_us: Timestamp::EPOCH,
            until_us: noon,
            method: MeasuredBy::EnergyLedger,
        };
        let site = SiteFigures { drawn: Some(drawn), idle: None };
        for one in [event("mild", 1, 90), event("deep", 1, 70)] {
            book.add(one, noon, &site).unwrap();
        }
        let at = |minutes: u64| Timestamp::EPOCH + Duration::from_secs(60 * minutes);
        let text =
            |minutes| in_force(&book, None, at(minutes)).unwrap_or_else(|| "none".to_owned());
        for (minutes, expected) in [
            (59, "none"),
            (65, "at most 89.667 kW now by grid event deep: ramping down to 70 kW in 10 min"),
            (100, "at most 70 kW now by grid event deep: active, 35 min left"),
            (140, "at most 80 kW now by grid event deep: ramping up, 10 min left"),
            (
                155,
                "at most 100 kW now by grid event deep: over, its return is limited for 10 min more",
            ),
            (170, "none"),
        ] {
            assert_eq!(text(minutes), expected);
        }
        book.cancel(&EventId::new("deep").unwrap(), noon).unwrap();
        let mild = "at most 90 kW now by grid event mild: active, 35 min left";
        assert_eq!(in_force(&book, None, at(100)).unwrap(), mild);
        // An event of a feeder is beside that of the site.
        let feeder = FeederId::new("pdu-a").ok();
        book.add(GridEvent { feeder, ..event("rack", 1, 20) }, noon, &site).unwrap();
        let rack = "feeder pdu-a: at most 20 kW now by grid event rack: active, 35 min left";
        assert_eq!(all_in_force(&book, at(100)), [mild, rack]);
        let record = &book.events[&EventId::new("rack").unwrap()];
        let sentence = sentence(record, at(100));
        assert_eq!(
            sentence,
            "grid event rack of feeder pdu-a is active: at most 20 kW until 02:15 UTC"
        );
    }
}
