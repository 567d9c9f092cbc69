//! A list of events of an OpenADR server in its service, with a placer that accepts what its book does.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use wattle_common::Machine as _;
use wattle_common::event::{EventBook, SiteFigures};
use wattle_common::messages::EventRequest;
use wattle_openadr::machine::{Action, Answer, Event, Listing, Settings, VenMachine};
use wattle_openadr::translate::Site;
use wattle_openadr::wire;

use super::machines::NOW;

/// Most actions after one input.
const ACTIONS_MAX: usize = 20_000;

fn answer(book: &mut EventBook, request: &EventRequest, now: wattle_common::Timestamp) -> Answer {
    let id = request.event().clone();
    let changed = match request.clone() {
        EventRequest::Add { event } => book.add(event, now, &SiteFigures::default()),
        EventRequest::Change { event, duration_s } => book.change(&event, duration_s, now),
        EventRequest::Cancel { event } => book.cancel(&event, now),
        EventRequest::Decline { event } => book.decline(&event, now),
    };
    match changed {
        Ok(_) => Answer::Stored(Box::new(book.events[&id].clone())),
        Err(error) => Answer::Refused(error.to_string()),
    }
}

/// The same list is read by several polls. The placer's records stay valid, and the second poll requests nothing that
/// was accepted.
pub(super) fn run(bytes: &[u8]) {
    let Ok(elements) = wire::elements(bytes) else { return };
    let program = serde_json::from_str(r#"{"id": "p-1", "programName": "shed"}"#);
    let programs = BTreeMap::from([("p-1".to_owned(), program.expect("a program"))]);
    let site = Site {
        ven_name: "site-a".to_owned(),
        resource_name: "site-a".to_owned(),
        targets: Vec::new(),
        levels: [10.0, 25.0, 40.0],
    };
    let settings = Settings { site, poll: Duration::from_secs(15), seed: 1 };
    let mut book = EventBook::default();
    let mut machine = VenMachine::new(settings, book.clone(), NOW);
    let mut now = NOW;
    let mut actions = Vec::new();
    for _ in 0..3 {
        machine.wake(now, &mut actions);
        let mut queue = VecDeque::from(std::mem::take(&mut actions));
        let mut count = 0;
        while let Some(action) = queue.pop_front() {
            count += 1;
            assert!(count < ACTIONS_MAX, "actions without an end");
            let event = match action {
                Action::Poll => {
                    let events = elements.iter().cloned().map(wire::read).collect();
                    let programs = programs.clone();
                    Event::Polled(Ok(Listing {
                        programs,
                        missing: Vec::new(),
                        refused: Vec::new(),
                        events,
                    }))
                }
                Action::Request(request) => {
                    let answer = answer(&mut book, &request, now);
                    Event::Answered(request, answer)
                }
                Action::Measure(measure) => Event::Measured(measure, Ok(1e6)),
                Action::Report(place, report) => Event::Reported { place, report, result: Ok(()) },
                Action::Info(_) | Action::Warn(_) => continue,
            };
            machine.handle(now, event, &mut actions);
            queue.extend(actions.drain(..));
        }
        assert_eq!(book.check(), Ok(()));
        now = now + Duration::from_secs(3_600);
    }
}
