//! Which requests to the placer and which reports to the server follow from the server's events and the placer's records.
//!
//! Each interval of an event has a grid event with an id of its own. The machine compares it with the placer's records,
//! which are all that it remembers over a restart:
//!
//! * An interval without a record is announced.
//! * A record whose end differs is changed, also after its start.
//! * A record whose start, depth or kind differs gets a successor with the next revision in its id; it is cancelled when
//!   its successor is stored, so that a target holds throughout.
//! * A record without an interval is cancelled, if the last list of events was complete.
//! * What a person has declined or cancelled stays so until the server changes the interval.
//!
//! An interval longer than a grid event may last is announced in weeks, each a day ahead. A reduction in per cent refers
//! to the power before the first announcement of the server's event, also for later intervals and revisions.

mod intake;
mod records;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use wattle_common::event::{Closed, Depth, EVENTS_MAX, EventBook, EventRecord, kw};
use wattle_common::messages::EventRequest;
use wattle_common::{EventId, Machine, Timestamp};
use wattle_grid::instant;
use wattle_grid::retry::Schedule;

use self::records::{Records, Wanted, wanted};
use crate::report::{EventReports, Measure, Sources};
use crate::translate::{Site, Slot, Understood, id_prefix};
use crate::wire::{self, Program, Refused, Report, shown};

/// Pause before a request that the placer has refused is repeated, system time.
const REFUSED_AGAIN: Duration = Duration::from_secs(300);
/// Number of reports in progress from which on no event adds more.
const REPORTS_MAX: usize = 100;

/// How the machine works.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What the configuration states about events.
    pub site: Site,
    /// Interval of the polls, system time.
    pub poll: Duration,
    /// Seed of the jitter of polls.
    pub seed: u64,
}

/// What a poll has read.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// The configured programs, by the server's ids.
    pub programs: BTreeMap<String, Program>,
    /// The configured programs that are not among the listed ones that can be used.
    pub missing: Vec<String>,
    /// Why listed programs cannot be used.
    pub refused: Vec<String>,
    /// Their events, and the elements that cannot be used.
    pub events: Vec<Result<wire::Event, Refused>>,
}

/// Why a poll has read nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The cause.
    pub reason: String,
    /// The pause that the server requests.
    pub retry_after: Option<Duration>,
}

/// The placer's answer to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// It is stored.
    Stored(Box<EventRecord>),
    /// It is refused, with the cause.
    Refused(String),
    /// There was no answer, with the cause.
    Absent(String),
}

/// What has happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// A poll has ended.
    Polled(Result<Listing, Failure>),
    /// The placer's records have changed.
    RecordsChanged(EventBook),
    /// A request has ended.
    Answered(EventRequest, Answer),
    /// The energy of an interval was read.
    Measured(Measure, Result<f64, String>),
    /// A report was sent.
    Reported {
        /// The place of its descriptor in the event.
        place: usize,
        /// The report.
        report: Box<Report>,
        /// Whether the server has accepted it, or why not.
        result: Result<(), String>,
    },
}

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Read programs and events.
    Poll,
    /// Send a request to the placer.
    Request(EventRequest),
    /// Read the energy of an interval.
    Measure(Measure),
    /// Send a report: the place of its descriptor, and the report.
    Report(usize, Box<Report>),
    /// Log what a person need not act on.
    Info(String),
    /// Log what a person may have to act on.
    Warn(String),
}

/// The state in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measures {
    /// Whether the last poll has read the events; absent: none has ended.
    pub is_reachable: Option<bool>,
    /// Events that are followed.
    pub followed: usize,
    /// Events that cannot be used, and grid events that the placer refuses.
    pub refused: usize,
    /// Kinds of payloads and reports that are ignored.
    pub ignored: usize,
}

/// An event that is followed.
#[derive(Clone, Debug)]
struct Followed {
    event: wire::Event,
    source: String,
    understood: Understood,
}

/// The decisions of the service.
#[derive(Debug)]
pub struct VenMachine {
    settings: Settings,
    schedule: Schedule,
    /// When the next poll is due; absent: one is in progress.
    poll_at: Option<Timestamp>,
    book: EventBook,
    followed: BTreeMap<String, Followed>,
    /// Events that cannot be used, with the causes.
    unusable: BTreeMap<String, String>,
    /// Whether the last list of events had every event of the programs that it had.
    is_complete: bool,
    /// Whether the last list of programs lacked a configured one.
    lacks_programs: bool,
    /// Prefixes of events that a program which is listed no longer has.
    removed: BTreeSet<String>,
    /// When events that start now were first read.
    first_read: BTreeMap<String, Timestamp>,
    reports: BTreeMap<String, EventReports>,
    /// Number of reports in progress.
    reporting: usize,
    is_measuring: bool,
    outstanding: BTreeSet<EventId>,
    refused: BTreeMap<EventId, (EventRequest, Timestamp)>,
    /// Records that this process has cancelled.
    withdrawn: BTreeSet<EventId>,
    /// The last text about each subject.
    logged: BTreeMap<String, String>,
    ignored: BTreeSet<String>,
    is_reachable: Option<bool>,
}

impl VenMachine {
    /// A machine that knows the placer's records, and polls at once.
    #[must_use]
    pub fn new(settings: Settings, book: EventBook, now: Timestamp) -> Self {
        Self {
            schedule: Schedule::new(settings.poll, settings.seed),
            settings,
            poll_at: Some(now),
            book,
            followed: BTreeMap::new(),
            unusable: BTreeMap::new(),
            is_complete: false,
            lacks_programs: false,
            removed: BTreeSet::new(),
            first_read: BTreeMap::new(),
            reports: BTreeMap::new(),
            reporting: 0,
            is_measuring: false,
            outstanding: BTreeSet::new(),
            refused: BTreeMap::new(),
            withdrawn: BTreeSet::new(),
            logged: BTreeMap::new(),
            ignored: BTreeSet::new(),
            is_reachable: None,
        }
    }

    /// The state in numbers.
    #[must_use]
    pub fn measures(&self) -> Measures {
        Measures {
            is_reachable: self.is_reachable,
            followed: self.followed.len(),
            refused: self.unusable.len() + self.refused.len(),
            ignored: self.ignored.len(),
        }
    }

    /// Logs a text about a subject, once until it changes.
    fn warn(&mut self, subject: &str, text: String, out: &mut Vec<Action>) {
        if self.logged.get(subject) != Some(&text) {
            self.logged.insert(subject.to_owned(), text.clone());
            out.push(Action::Warn(text));
        }
    }

    /// Compares the intervals with the records.
    fn compare(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        let records = Records::of(&self.book);
        let mut requests = Vec::new();
        let mut all = Vec::new();
        for Followed { event, source, understood } in self.followed.values() {
            all.extend(wanted(&id_prefix(&event.id), source, understood, now));
        }
        let kept: BTreeSet<String> = all.iter().map(Wanted::base).collect();
        // More than the placer accepts are not requested.
        all.sort_by_key(|wanted| wanted.event.start_us);
        let count = all.len();
        for wanted in all.iter().take(EVENTS_MAX) {
            self.compare_one(&records, wanted, now, &mut requests);
        }
        if self.is_complete {
            let unusable: BTreeSet<String> = self.unusable.keys().map(|id| id_prefix(id)).collect();
            let followed: BTreeSet<String> = self.followed.keys().map(|id| id_prefix(id)).collect();
            let gone = records
                .open(now)
                .filter(|(prefix, base, _)| !kept.contains(base) && !unusable.contains(prefix));
            // Of a record alone it is not known whether its program is the missing one.
            let gone = gone.filter(|(prefix, ..)| {
                !self.lacks_programs || self.removed.contains(prefix) || followed.contains(prefix)
            });
            for (_, _, record) in gone {
                requests.push(EventRequest::Cancel { event: record.event.event.clone() });
            }
        }
        for request in requests {
            let event = request.event();
            let waits = self
                .refused
                .get(event)
                .is_some_and(|(known, again)| *known == request && now < *again);
            if !waits && self.outstanding.insert(event.clone()) {
                out.push(Action::Request(request));
            }
        }
        if count > EVENTS_MAX {
            let text = format!("of {count} intervals only the first {EVENTS_MAX} are announced");
            self.warn("the number of intervals", text, out);
        }
    }

    fn compare_one(
        &self,
        records: &Records<'_>,
        wanted: &Wanted,
        now: Timestamp,
        requests: &mut Vec<EventRequest>,
    ) {
        let reference = records.reference(&wanted.prefix);
        // A later announcement would refer to the power under an earlier one.
        let depth = match (wanted.event.depth, reference) {
            (Depth::Percent { percent }, Some(drawn)) => {
                Depth::Target { power_mw: drawn.scale(1.0 - percent / 100.0) }
            }
            (depth, _) => depth,
        };
        let add =
            |revision| wanted.announced(revision, depth).map(|event| EventRequest::Add { event });
        let revisions = records.revisions(wanted);
        let Some((revision, record)) = revisions.last().copied() else {
            requests.extend(add(1));
            return;
        };
        let has_depth = match depth {
            Depth::Target { power_mw } => power_mw == record.target_mw,
            _ => false,
        };
        let event = &record.event;
        let is_same = (event.depth == wanted.event.depth || has_depth)
            && event.start_us == wanted.event.start_us
            && event.participation == wanted.event.participation;
        let duration_s = wanted.event.duration_s;
        let end = record.reached() + Duration::from_secs(duration_s);
        match record.closed {
            _ if !is_same => requests.extend(add(revision + 1)),
            Some(Closed::Cancelled { .. }) if self.withdrawn.contains(&event.event) => {
                requests.extend(add(revision + 1));
            }
            Some(_) => {}
            None if record.state(now).is_over() => requests.extend(add(revision + 1)),
            None if record.end_us != end => {
                requests.push(EventRequest::Change { event: event.event.clone(), duration_s });
            }
            None => {}
        }
        let before = revisions.iter().rev().skip(1).filter(|_| is_same);
        let open = before.filter(|(_, record)| records::is_open(record, now));
        requests.extend(
            open.map(|(_, record)| EventRequest::Cancel { event: record.event.event.clone() }),
        );
    }

    /// The reports that are due.
    fn report(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        let records = Records::of(&self.book);
        for (id, Followed { event, understood, .. }) in &self.followed {
            if event.report_descriptors.as_deref().is_none_or(<[_]>::is_empty) {
                continue;
            }
            if self.reporting >= REPORTS_MAX {
                break;
            }
            let prefix = id_prefix(id);
            let record = |slot: &Slot| records.newest(&prefix, slot.id).cloned();
            let (site, slots) = (&self.settings.site, understood.slots.as_slice());
            let sources = Sources { site, event, slots, record: &record };
            let reports = self.reports.entry(id.clone()).or_default();
            let (due, measure) = reports.due(&sources, now);
            self.reporting += due.len();
            out.extend(
                due.into_iter().map(|(place, report)| Action::Report(place, Box::new(report))),
            );
            if let Some(measure) = measure.filter(|_| !self.is_measuring) {
                self.is_measuring = true;
                out.push(Action::Measure(measure));
            }
        }
    }

    fn answered(
        &mut self,
        now: Timestamp,
        request: EventRequest,
        answer: Answer,
        out: &mut Vec<Action>,
    ) {
        let event = request.event().clone();
        self.outstanding.remove(&event);
        match answer {
            Answer::Stored(record) => {
                let verb = match &request {
                    EventRequest::Add { .. } => "announced",
                    EventRequest::Change { .. } => "changed",
                    EventRequest::Cancel { .. } | EventRequest::Decline { .. } => "cancelled",
                };
                if let EventRequest::Cancel { event } = &request {
                    self.withdrawn.insert(event.clone());
                }
                self.refused.remove(&event);
                self.logged.remove(event.as_str());
                let (start, end) =
                    (instant::shown(record.event.start_us), instant::shown(record.end_us));
                let target = kw(record.target_mw);
                out.push(Action::Info(format!(
                    "{event} {verb}: at most {target} from {start} until {end}"
                )));
                self.book.events.insert(event, *record);
                let book = &self.book;
                self.withdrawn.retain(|event| book.events.contains_key(event));
            }
            Answer::Refused(error) => {
                self.refused.insert(event.clone(), (request, now + REFUSED_AGAIN));
                self.warn(
                    event.as_str(),
                    format!("the placer refuses {event}: {}", shown_long(&error)),
                    out,
                );
            }
            Answer::Absent(error) => {
                self.warn("the placer", format!("the placer does not answer: {error}"), out);
            }
        }
    }
}

/// A text of the placer, without control characters.
fn shown_long(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(4 * wire::TEXT_LEN_MAX).collect()
}

impl Machine for VenMachine {
    type Event = Event;
    type Action = Action;

    fn handle(&mut self, now: Timestamp, event: Event, out: &mut Vec<Action>) {
        match event {
            Event::Polled(Ok(listing)) => {
                self.poll_at = Some(now + self.schedule.succeeded());
                if self.is_reachable == Some(false) {
                    out.push(Action::Info("the server answers again".to_owned()));
                    self.logged.remove("the server");
                }
                self.is_reachable = Some(true);
                self.polled(now, listing, out);
            }
            Event::Polled(Err(failure)) => {
                self.poll_at = Some(now + self.schedule.failed(failure.retry_after));
                self.is_reachable = Some(false);
                let text = format!("events not read, known ones continue: {}", failure.reason);
                self.warn("the server", text, out);
            }
            Event::RecordsChanged(book) => self.book = book,
            Event::Answered(request, answer) => {
                let is_stored = matches!(answer, Answer::Stored(_));
                self.answered(now, request, answer, out);
                if !is_stored {
                    // It is repeated after a later poll.
                    return;
                }
            }
            Event::Measured(Measure { event, slot }, joules) => {
                self.is_measuring = false;
                let reports = self.reports.get_mut(&event);
                let is_missing = reports.is_some_and(|reports| {
                    reports.measured(&slot, joules.as_ref().ok().copied(), now)
                });
                if let (true, Err(error)) = (is_missing, joules) {
                    let text = format!(
                        "USAGE of event {event}, interval {} is not reported: {error}",
                        slot.id
                    );
                    self.warn(&format!("usage {event} {}", slot.id), text, out);
                }
            }
            Event::Reported { place, report, result } => {
                self.reporting = self.reporting.saturating_sub(1);
                let name = format!("{} of event {}", report.report_name, report.event_id);
                if let Err(error) = &result {
                    let error = shown(error);
                    self.warn(
                        &format!("report {name}"),
                        format!("report {name} not sent: {error}"),
                        out,
                    );
                }
                let event = report.event_id.clone();
                if let Some(reports) = self.reports.get_mut(&event) {
                    reports.sent(place, result.is_ok().then_some(*report));
                }
                // A report that was not accepted is sent again after the next poll.
                return;
            }
        }
        if self.is_reachable.is_some() {
            self.compare(now, out);
            self.report(now, out);
        }
    }

    fn wake(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        if self.poll_at.is_some_and(|at| at <= now) {
            self.poll_at = None;
            out.push(Action::Poll);
        }
    }

    fn next_wake(&self) -> Option<(Timestamp, &'static str)> {
        self.poll_at.map(|at| (at, "poll due"))
    }
}

#[cfg(test)]
mod tests;
