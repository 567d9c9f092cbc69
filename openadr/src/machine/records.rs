//! The placer's records of this service's events, by event of the server, interval, week and revision; and what the
//! intervals want in their place.

use std::collections::BTreeMap;
use std::time::Duration;

use wattle_common::event::{DURATION_MAX, Depth, EventBook, EventRecord, GridEvent};
use wattle_common::{EventId, Power, Timestamp};

use crate::translate::{Slot, Understood, is_ours};

/// How long before its start a later week of an interval is announced.
const AHEAD: Duration = Duration::from_secs(86_400);

/// An interval's part of at most a week.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Part {
    interval: i64,
    week: u32,
}

/// The id of a grid event without its revision.
fn base(prefix: &str, part: Part) -> String {
    let Part { interval, week } = part;
    if week == 0 { format!("{prefix}{interval}") } else { format!("{prefix}{interval}-w{week}") }
}

/// Prefix, part and revision of an id.
fn parsed(id: &str) -> Option<(&str, Part, u32)> {
    let last = |text: &'_ str, mark: &str| -> Option<(usize, u32)> {
        let (before, number) = text.rsplit_once('-')?;
        let number = number.strip_prefix(mark)?;
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        Some((before.len(), number.parse().ok().filter(|_| is_number)?))
    };
    let (rest, revision) = match last(id, "r") {
        Some((at, revision)) => (&id[..at], revision),
        None => (id, 1),
    };
    let (rest, week) = match last(rest, "w") {
        Some((at, week)) => (&rest[..at], week),
        None => (rest, 0),
    };
    let (at, interval) = last(rest, "")?;
    Some((&rest[..=at], Part { interval: i64::from(interval), week }, revision))
}

/// Whether a record is neither closed nor over.
pub(super) fn is_open(record: &EventRecord, now: Timestamp) -> bool {
    record.closed.is_none() && !record.state(now).is_over()
}

/// What a part of an interval wants.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// What the ids of the server's event begin with.
    pub(super) prefix: String,
    part: Part,
    /// The grid event; its id is that of the first revision.
    pub(super) event: GridEvent,
}

impl Wanted {
    /// The id of the first revision.
    pub(super) fn base(&self) -> String {
        base(&self.prefix, self.part)
    }

    /// The event as it is announced.
    pub(super) fn announced(&self, revision: u32, depth: Depth) -> Option<GridEvent> {
        let base = self.base();
        let id = if revision == 1 { base } else { format!("{base}-r{revision}") };
        let event = EventId::new(&id).ok()?;
        Some(GridEvent { event, depth, ..self.event.clone() })
    }
}

/// What the intervals of an event want, without those that are over.
pub(super) fn wanted(
    prefix: &str,
    source: &str,
    understood: &Understood,
    now: Timestamp,
) -> Vec<Wanted> {
    let mut all = Vec::new();
    for slot in &understood.slots {
        let Some(request) = slot.request else { continue };
        let passed = now.since(slot.from).as_secs() / DURATION_MAX.as_secs();
        let present = u32::try_from(passed).unwrap_or(u32::MAX);
        for week in [present, present.saturating_add(1)] {
            let from = slot.from + DURATION_MAX.saturating_mul(week);
            let until = slot.until.min(from + DURATION_MAX);
            let is_near = week == present || from <= now + AHEAD;
            let part = Part { interval: slot.id, week };
            let Ok(event) = EventId::new(&base(prefix, part)) else { continue };
            if !is_near || until <= from || until <= now {
                continue;
            }
            let event = GridEvent {
                event,
                source: source.to_owned(),
                feeder: None,
                start_us: from,
                ramp_down_s: 0,
                depth: request.depth,
                duration_s: until.since(from).as_secs(),
                ramp_up_s: 0,
                priority: understood.priority,
                participation: request.participation,
            };
            all.push(Wanted { prefix: prefix.to_owned(), part, event });
        }
    }
    all
}

/// A record with its part and revision.
type Entry<'a> = (Part, u32, &'a EventRecord);

/// The records of this service's events, by the prefix of their ids.
pub(super) struct Records<'a>(BTreeMap<&'a str, Vec<Entry<'a>>>);

impl<'a> Records<'a> {
    /// Those of a book.
    pub(super) fn of(book: &'a EventBook) -> Self {
        let mut all: BTreeMap<&str, Vec<Entry<'_>>> = BTreeMap::new();
        for (id, record) in &book.events {
            if !is_ours(id.as_str(), &record.event.source) {
                continue;
            }
            if let Some((prefix, part, revision)) = parsed(id.as_str()) {
                all.entry(prefix).or_default().push((part, revision, record));
            }
        }
        all.values_mut()
            .for_each(|entries| entries.sort_by_key(|(part, revision, _)| (*part, *revision)));
        Self(all)
    }

    fn entries(&self, prefix: &str) -> &[Entry<'a>] {
        self.0.get(prefix).map_or(&[], Vec::as_slice)
    }

    /// The revisions of a part, ascending.
    pub(super) fn revisions(&self, wanted: &Wanted) -> Vec<(u32, &'a EventRecord)> {
        let of_part = self.entries(&wanted.prefix).iter().filter(|entry| entry.0 == wanted.part);
        of_part.map(|(_, revision, record)| (*revision, *record)).collect()
    }

    /// The newest record of an interval.
    pub(super) fn newest(&self, prefix: &str, interval: i64) -> Option<&'a EventRecord> {
        let mut of_interval =
            self.entries(prefix).iter().filter(|entry| entry.0.interval == interval);
        of_interval.next_back().map(|entry| entry.2)
    }

    /// The power before the first announcement of an event of the server; absent: none was announced, or it was not
    /// measured.
    pub(super) fn reference(&self, prefix: &str) -> Option<Power> {
        let records = self.entries(prefix).iter().map(|entry| entry.2);
        let first = records
            .filter_map(|record| Some((record.notice_us, record.baseline?)))
            .min_by_key(|(at, _)| *at);
        first.map(|(_, baseline)| baseline.power_mw)
    }

    /// When an event that starts now was first read, by the start of one of its records; `slots` count from `now`.
    pub(super) fn first_read(
        &self,
        event: &str,
        slots: &[Slot],
        now: Timestamp,
    ) -> Option<Timestamp> {
        let prefix = crate::translate::id_prefix(event);
        self.entries(&prefix).iter().find_map(|(part, _, record)| {
            let slot = slots.iter().find(|slot| slot.id == part.interval && part.week == 0)?;
            Some(record.event.start_us - slot.from.since(now))
        })
    }

    /// The records that are neither closed nor over, with the prefixes and bases of their ids.
    pub(super) fn open(
        &self,
        now: Timestamp,
    ) -> impl Iterator<Item = (String, String, &'a EventRecord)> + '_ {
        self.0.iter().flat_map(move |(prefix, entries)| {
            let open = entries.iter().filter(move |entry| is_open(entry.2, now));
            open.map(move |(part, _, record)| ((*prefix).to_owned(), base(prefix, *part), *record))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_from_their_end() {
        let part = |interval, week| Part { interval, week };
        for (id, expected) in [
            ("openadr-e-1-0", Some(("openadr-e-1-", part(0, 0), 1))),
            ("openadr-e-1", Some(("openadr-e-", part(1, 0), 1))),
            ("openadr-e-1-w5", Some(("openadr-e-", part(1, 5), 1))),
            ("openadr-e-1-w5-r12", Some(("openadr-e-", part(1, 5), 12))),
            ("openadr-e-1-w5-0-r2", Some(("openadr-e-1-w5-", part(0, 0), 2))),
            ("openadr-e", None),
            ("openadr-e-r2", None),
            ("openadr-e-+1", None),
        ] {
            assert_eq!(parsed(id), expected, "{id}");
        }
        for (week, text) in [(0, "p-7"), (2, "p-7-w2")] {
            assert_eq!(base("p-", part(7, week)), text);
            assert_eq!(parsed(text), Some(("p-", part(7, week), 1)));
        }
    }
}
