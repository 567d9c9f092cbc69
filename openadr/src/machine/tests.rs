//! The machine against a model of the server and the real book of events of the placer, on virtual time.

mod history;

use serde_json::{Value, json};
use wattle_common::Power;
use wattle_common::event::{EventState, MeasuredBy, MeasuredMean, SiteFigures};

use super::*;
use crate::translate;

/// 2026-11-29 14:25 UTC.
const NOW: Timestamp = Timestamp::from_s(1_795_962_300);

/// A server, the service and a placer.
struct World {
    machine: VenMachine,
    placer: EventBook,
    now: Timestamp,
    /// The mean power of the site, kW.
    drawn: Option<u64>,
    /// The events of the server; absent: it is away.
    events: Option<Vec<Value>>,
    /// Configured programs that the server does not list.
    missing: Vec<String>,
    answers: bool,
    reports: BTreeMap<String, Report>,
    log: Vec<String>,
    requests: usize,
}

fn machine(placer: &EventBook, now: Timestamp) -> VenMachine {
    let site = Site {
        ven_name: "site-a".to_owned(),
        resource_name: "site-a".to_owned(),
        targets: Vec::new(),
        levels: [10.0, 25.0, 40.0],
    };
    let settings = Settings { site, poll: Duration::from_secs(15), seed: 1 };
    VenMachine::new(settings, placer.clone(), now)
}

impl World {
    fn new(events: Vec<Value>) -> Self {
        let placer = EventBook::default();
        Self {
            machine: machine(&placer, NOW),
            placer,
            now: NOW,
            drawn: Some(100),
            events: Some(events),
            missing: Vec::new(),
            answers: true,
            reports: BTreeMap::new(),
            log: Vec::new(),
            requests: 0,
        }
    }

    fn site(&self) -> SiteFigures {
        let drawn = self.drawn.map(|kw| MeasuredMean {
            power_mw: Power::from_w(kw * 1_000),
            from_us: self.now - Duration::from_secs(900),
            until_us: self.now,
            method: MeasuredBy::EnergyLedger,
        });
        SiteFigures { drawn, idle: Some(Power::from_w(20_000)) }
    }

    fn answer(&mut self, request: &EventRequest) -> Answer {
        self.requests += 1;
        if !self.answers {
            return Answer::Absent("no responders".to_owned());
        }
        let (now, site) = (self.now, self.site());
        let id = request.event().clone();
        let changed = match request.clone() {
            EventRequest::Add { event } => self.placer.add(event, now, &site),
            EventRequest::Change { event, duration_s } => {
                self.placer.change(&event, duration_s, now)
            }
            EventRequest::Cancel { event } => self.placer.cancel(&event, now),
            EventRequest::Decline { event } => self.placer.decline(&event, now),
        };
        match changed {
            Ok(_) => Answer::Stored(Box::new(self.placer.events[&id].clone())),
            Err(error) => Answer::Refused(error.to_string()),
        }
    }

    fn listing(&self) -> Result<Listing, Failure> {
        let Some(events) = &self.events else {
            return Err(Failure { reason: "it is away".to_owned(), retry_after: None });
        };
        let program: Program =
            serde_json::from_value(json!({ "id": "p", "programName": "shed" })).unwrap();
        let is_listed = !self.missing.contains(&program.program_name);
        let events = events.iter().cloned().map(wire::read);
        Ok(Listing {
            programs: is_listed.then(|| ("p".to_owned(), program)).into_iter().collect(),
            missing: self.missing.clone(),
            refused: Vec::new(),
            // Those of a program that is not listed are not requested.
            events: events.filter(|_| is_listed).collect(),
        })
    }

    /// Advances to the next poll and carries out everything that follows from it.
    fn poll(&mut self) {
        let (at, _) = self.machine.next_wake().unwrap();
        self.now = self.now.max(at);
        let mut actions = Vec::new();
        self.machine.wake(self.now, &mut actions);
        self.carry_out(actions);
        let (now, before) = (self.now, self.site().drawn);
        self.placer.follow(now, |_| before);
        let mut actions = Vec::new();
        self.machine.handle(now, Event::RecordsChanged(self.placer.clone()), &mut actions);
        self.carry_out(actions);
    }

    fn carry_out(&mut self, actions: Vec<Action>) {
        let mut queue = std::collections::VecDeque::from(actions);
        while let Some(action) = queue.pop_front() {
            let event = match action {
                Action::Poll => Event::Polled(self.listing()),
                Action::Request(request) => {
                    let answer = self.answer(&request);
                    Event::Answered(request, answer)
                }
                Action::Measure(measure) => {
                    let length_s = measure.slot.until.since(measure.slot.from).as_secs_f64();
                    // The site draws 70 kW.
                    Event::Measured(measure, Ok(70_000.0 * length_s))
                }
                Action::Report(place, report) => {
                    self.reports.insert(report.report_name.clone(), (*report).clone());
                    Event::Reported { place, report, result: Ok(()) }
                }
                Action::Info(text) | Action::Warn(text) => {
                    self.log.push(text);
                    continue;
                }
            };
            let mut more = Vec::new();
            self.machine.handle(self.now, event, &mut more);
            queue.extend(more);
        }
    }

    fn poll_until(&mut self, minute: u64) {
        while self.now < NOW + Duration::from_secs(60 * minute) {
            self.poll();
        }
    }

    /// The service is killed and started again.
    fn restart(&mut self) {
        self.machine = machine(&self.placer, self.now);
    }

    /// The records that ever have a target or are still planned: id, state, target in kW, minutes from the beginning.
    fn records(&self) -> Vec<(String, EventState, u64, u64, u64)> {
        let minute = |at: Timestamp| at.since(NOW).as_secs() / 60;
        let row = |record: &EventRecord| {
            let (id, state) = (record.event.event.to_string(), record.state(self.now));
            let target = record.target_mw.as_mw() / 1_000_000;
            (id, state, target, minute(record.event.start_us), minute(record.end_us))
        };
        self.placer.events.values().map(row).collect()
    }

    fn logged(&self, part: &str) -> usize {
        self.log.iter().filter(|text| text.contains(part)).count()
    }
}

fn payload(kind: &str, value: Value) -> Value {
    json!([{ "type": kind, "values": [value] }])
}

/// An event of an hour, an hour ahead.
fn event(id: &str, kind: &str, value: Value) -> Value {
    json!({
        "id": id, "programID": "p", "modificationDateTime": "2026-11-29T14:00:00Z",
        "intervalPeriod": { "start": "2026-11-29T15:25:00Z", "duration": "PT1H" },
        "intervals": [{ "id": 0, "payloads": payload(kind, value) }],
    })
}

fn limit(id: &str, kw: u64) -> Value {
    event(id, translate::IMPORT_CAPACITY_LIMIT, json!(kw))
}

#[test]
fn an_event_is_announced_once_changed_and_cancelled() {
    let mut world = World::new(vec![limit("e", 70)]);
    for _ in 0..5 {
        world.poll();
        world.restart();
        world.poll();
    }
    let id = "openadr-e-0".to_owned();
    assert_eq!(world.records(), [(id.clone(), EventState::Planned, 70, 60, 120)]);
    assert_eq!(world.requests, 1, "nothing is requested again, also after a restart");
    // Its end changes after its start.
    world.poll_until(70);
    world.events.as_mut().unwrap()[0]["intervalPeriod"]["duration"] = json!("PT90M");
    world.poll();
    assert_eq!(world.records(), [(id.clone(), EventState::Active, 70, 60, 150)]);
    // It is deleted before its end.
    world.poll_until(80);
    world.events = Some(Vec::new());
    world.poll();
    assert_eq!(world.records()[0].1, EventState::Cancelled);
    assert_eq!((world.placer.events.len(), world.requests), (1, 3));
    // It is listed again.
    world.events = Some(vec![limit("e", 70)]);
    world.poll();
    assert_eq!(world.records()[1], ("openadr-e-0-r2".to_owned(), EventState::Active, 70, 60, 120));
}

#[test]
fn a_changed_depth_or_start_is_a_new_revision_without_a_gap() {
    let mut world = World::new(vec![event("e", translate::SIMPLE, json!(1))]);
    world.poll_until(65);
    assert_eq!(world.records()[0].2, 90);
    // The power under the event is no baseline of its revision.
    world.drawn = Some(90);
    world.events = Some(vec![event("e", translate::SIMPLE, json!(3))]);
    world.poll();
    let expected = [
        ("openadr-e-0".to_owned(), EventState::Cancelled, 90, 60, 65),
        ("openadr-e-0-r2".to_owned(), EventState::Active, 60, 60, 120),
    ];
    assert_eq!(world.records(), expected);
    let requests = world.requests;
    world.restart();
    world.poll();
    assert_eq!(world.requests, requests, "it stays so");
    // A refused revision leaves the one before in force.
    world.events = Some(vec![limit("e", 5)]);
    world.poll();
    assert_eq!(world.records(), expected);
    assert_eq!(world.logged("the placer refuses openadr-e-0-r3: depth = to 5 kW"), 1);
    world.poll_until(69);
    assert_eq!(world.logged("the placer refuses"), 1, "named once");
    assert_eq!(world.machine.measures().refused, 1);
}

#[test]
fn a_refused_request_is_repeated_after_five_minutes() {
    let mut world = World::new(vec![event("e", translate::SIMPLE, json!(2))]);
    world.drawn = None;
    world.poll_until(4);
    assert_eq!((world.requests, world.placer.events.len()), (1, 0));
    world.drawn = Some(100);
    world.poll_until(6);
    assert_eq!(world.records()[0].2, 75);
    assert_eq!(
        world.machine.measures(),
        Measures { is_reachable: Some(true), followed: 1, ..Measures::default() }
    );
    // A placer that is away is requested again at each poll.
    let mut world = World::new(vec![limit("e", 70)]);
    world.answers = false;
    world.poll();
    world.poll();
    assert_eq!(
        (world.requests, world.logged("the placer does not answer")),
        (4, 1),
        "after polls and changes of records"
    );
    world.answers = true;
    world.poll();
    assert_eq!(world.records().len(), 1);
}

#[test]
fn known_events_continue_while_the_server_is_away_or_answers_nonsense() {
    let mut world = World::new(vec![limit("e", 70), limit("f", 80)]);
    world.poll();
    let before = world.records();
    world.events = None;
    world.poll_until(5);
    assert_eq!(world.machine.measures().is_reachable, Some(false));
    assert_eq!(world.logged("events not read, known ones continue: it is away"), 1);
    // One cannot be used, of another even the id is missing.
    let wrong = limit("e", 70);
    world.events = Some(vec![json!({ "id": "e", "programID": 7 }), limit("f", 80)]);
    world.restart();
    world.poll();
    assert_eq!(world.logged("event e cannot be used: invalid type"), 1);
    world.events = Some(vec![json!("nonsense"), wrong]);
    world.poll();
    assert_eq!(world.records(), before);
    assert_eq!(world.logged("so none is cancelled"), 1);
    // An older version, as another server of the same system may send it.
    let mut old = limit("e", 75);
    old["modificationDateTime"] = json!("2026-11-29T13:00:00Z");
    world.events = Some(vec![old, limit("f", 80)]);
    world.poll();
    assert_eq!(world.records(), before);
    world.events = Some(vec![limit("f", 80)]);
    world.poll();
    assert_eq!(world.records()[0].1, EventState::Cancelled);
}

#[test]
fn events_of_a_program_that_is_not_listed_continue() {
    let mut world = World::new(vec![limit("e", 70), limit("f", 80)]);
    world.poll();
    let before = world.records();
    world.missing = vec!["shed".to_owned()];
    world.poll_until(3);
    assert_eq!(world.records(), before);
    assert_eq!(world.logged("the server lists no program `shed`"), 1);
    // Another process knows only the records.
    world.restart();
    world.poll_until(6);
    assert_eq!(world.records(), before);
    // While another program is missing, this one's events are cancelled where the server removes them.
    world.missing = vec!["other".to_owned()];
    world.poll();
    world.answers = false;
    world.events = Some(vec![limit("f", 80)]);
    world.poll();
    assert_eq!(world.records(), before);
    world.answers = true;
    world.poll_until(9);
    assert_eq!(world.records()[0].1, EventState::Cancelled);
    assert_eq!(world.records()[1], before[1]);
    // The list is complete.
    (world.missing, world.events) = (Vec::new(), Some(Vec::new()));
    world.poll();
    assert_eq!(world.records()[1].1, EventState::Cancelled);
}

#[test]
fn what_a_person_has_declined_or_cancelled_stays_so_until_it_changes() {
    let mut world = World::new(vec![limit("e", 70), limit("f", 80)]);
    world.poll();
    let id = |text: &str| EventId::new(text).unwrap();
    world.placer.decline(&id("openadr-e-0"), world.now).unwrap();
    world.placer.cancel(&id("openadr-f-0"), world.now).unwrap();
    world.restart();
    world.poll();
    world.poll();
    assert_eq!(world.records().len(), 2);
    world.events = Some(vec![limit("e", 60), limit("f", 80)]);
    world.poll();
    assert_eq!(world.records()[1], ("openadr-e-0-r2".to_owned(), EventState::Planned, 60, 60, 120));
    // Another person's event is not the server's.
    let mut own = world.placer.events[&id("openadr-f-0")].event.clone();
    (own.event, own.source) = (id("openadr-peak-1"), "operator".to_owned());
    world.placer.add(own, world.now, &world.site()).unwrap();
    world.poll();
    world.poll();
    assert_eq!(world.placer.events[&id("openadr-peak-1")].closed, None);
}

#[test]
fn an_endless_emergency_continues_from_week_to_week_with_one_baseline() {
    let period = json!({ "start": "0001-01-01", "duration": "P9999Y" });
    let mut alert = event("e", translate::ALERT_GRID_EMERGENCY, json!("emergency"));
    alert["intervalPeriod"] = period;
    let mut world = World::new(vec![alert]);
    world.poll();
    world.drawn = Some(60);
    let day = Duration::from_secs(86_400);
    for days in 0..16 {
        world.now = NOW + day * days + Duration::from_secs(60);
        world.restart();
        world.poll();
        let active = world.records().iter().filter(|record| record.1 == EventState::Active).count();
        assert_eq!(active, 1, "{days}: {:?}", world.records());
    }
    let week = 7 * 24 * 60;
    let expected = [0, 1, 2].map(|number| (60, number * week, (number + 1) * week));
    let found: Vec<_> = world.records().into_iter().map(|row| (row.2, row.3, row.4)).collect();
    assert_eq!(found, expected);
    world.events = Some(Vec::new());
    world.poll();
    assert!(world.placer.events.values().all(|record| !records::is_open(record, world.now)));
}

#[test]
fn reports_have_the_known_values_and_are_sent_again_when_they_change() {
    let mut event = event("e", translate::SIMPLE, json!(2));
    event["intervals"] = json!([
        { "id": 0, "payloads": payload(translate::SIMPLE, json!(2)) },
        { "id": 7, "payloads": payload(translate::SIMPLE, json!(0)) },
        { "id": 8, "payloads": payload("PRICE", json!(0.2)) },
    ]);
    event["reportDescriptors"] = json!([
        { "payloadType": "LOAD_SHED_DELTA_AVAILABLE" },
        { "payloadType": "BASELINE", "numIntervals": 1, "units": "KWH" },
        { "payloadType": "USAGE", "frequency": 1, "aggregate": true },
        { "payloadType": "STORAGE_CHARGE_LEVEL" },
        { "payloadType": "USAGE", "targets": ["another"] },
    ]);
    let mut world = World::new(vec![event]);
    world.poll();
    let rows = |world: &World, name: &str| {
        let report = world.reports.get(name)?;
        let rows = report.resources[0]["intervals"].as_array().unwrap().iter();
        let row = |row: &Value| {
            (row["id"].as_i64().unwrap(), row["payloads"][0]["values"][0].as_f64().unwrap())
        };
        Some(rows.map(row).collect::<Vec<_>>())
    };
    assert_eq!(rows(&world, "wattle-LOAD_SHED_DELTA_AVAILABLE-0"), Some(vec![(0, 25.0)]));
    assert_eq!(world.reports.len(), 1, "{:?}", world.reports);
    world.poll_until(123);
    assert_eq!(rows(&world, "wattle-BASELINE-1"), Some(vec![(0, 100.0)]));
    assert_eq!(rows(&world, "wattle-USAGE-2"), Some(vec![(0, 70.0)]), "after the first interval");
    let sent = world.reports.clone();
    world.reports.clear();
    world.poll_until(150);
    assert_eq!(world.reports, BTreeMap::new(), "nothing has changed");
    // After a restart each is sent again, with the same name and content.
    world.restart();
    world.poll_until(152);
    assert_eq!(world.reports, sent);
    world.poll_until(250);
    assert_eq!(rows(&world, "wattle-USAGE-2"), Some(vec![(0, 70.0), (7, 70.0), (8, 70.0)]));
    let usage = serde_json::to_string_pretty(&world.reports["wattle-USAGE-2"]).unwrap();
    for part in [
        "\"eventID\": \"e\"",
        "\"clientName\": \"site-a\"",
        "\"resourceName\": \"AGGREGATED_REPORT\"",
        "\"units\": \"KWH\"",
        "\"readingType\": \"DIRECT_READ\"",
        "\"start\": \"2026-11-29T16:25:00Z\"",
        "\"duration\": \"PT3600S\"",
    ] {
        assert!(usage.contains(part), "{part}: {usage}");
    }
    assert_eq!(world.logged("report STORAGE_CHARGE_LEVEL is not sent"), 2, "once by each process");
    assert_eq!(world.logged("payload PRICE is ignored"), 2);
}

#[test]
fn energy_that_is_not_known_is_not_reported() {
    let mut event = limit("e", 70);
    event["reportDescriptors"] = json!([{ "payloadType": "USAGE" }]);
    let mut world = World::new(vec![event]);
    world.poll_until(119);
    let mut out = Vec::new();
    let slot = world.machine.followed["e"].understood.slots[0].clone();
    let measure = Measure { event: "e".to_owned(), slot };
    for minute in [123, 129, 135] {
        world.now = NOW + Duration::from_secs(60 * minute);
        out.clear();
        world.machine.report(world.now, &mut out);
        assert_eq!(out, [Action::Measure(measure.clone())]);
        out.clear();
        let unknown = Err("node n0 was metered for 60 s of 3600 s".to_owned());
        world.machine.handle(world.now, Event::Measured(measure.clone(), unknown), &mut out);
    }
    let text =
        "USAGE of event e, interval 0 is not reported: node n0 was metered for 60 s of 3600 s";
    assert_eq!(out, [Action::Warn(text.to_owned())]);
    world.poll_until(300);
    assert_eq!(world.reports, BTreeMap::new());
}

#[test]
fn no_more_is_announced_than_the_placer_accepts() {
    let events = (0..150).map(|number| limit(&format!("e{number}"), 70)).collect();
    let mut world = World::new(events);
    world.poll();
    world.poll();
    assert_eq!((world.placer.events.len(), world.requests), (EVENTS_MAX, EVENTS_MAX));
    assert_eq!(world.logged("of 150 intervals only the first 100 are announced"), 1);
}
