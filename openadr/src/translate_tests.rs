//! Tests of the translation: times, depths, refusals.

use proptest::prelude::*;
use serde_json::json;

use super::*;

/// 2026-11-29 14:25 UTC.
const NOW: Timestamp = Timestamp::from_s(1_795_962_300);

fn site() -> Site {
    Site {
        ven_name: "site-a".to_owned(),
        resource_name: "cluster".to_owned(),
        targets: vec!["group-1".to_owned()],
        levels: [10.0, 25.0, 40.0],
    }
}

fn program() -> Program {
    Program { id: "p".to_owned(), program_name: "load-shed".to_owned(), payload_descriptors: None }
}

fn event(fields: Value) -> Event {
    let mut event = json!({ "id": "e-1", "programID": "p" });
    event.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    wire::read(event).unwrap()
}

fn of(fields: Value) -> Result<Understood, String> {
    understood(&event(fields), &program(), &site(), NOW)
}

/// Seconds from now until start and end of each interval, and its request.
fn slots(fields: Value) -> Vec<(u64, u64, Option<Request>)> {
    let slots = of(fields).unwrap().slots;
    let after = |at: Timestamp| at.since(NOW).as_secs();
    slots.iter().map(|slot| (after(slot.from), after(slot.until), slot.request)).collect()
}

fn interval(id: i64, kind: &str, value: Value) -> Value {
    json!({ "id": id, "payloads": [{ "type": kind, "values": [value] }] })
}

const fn voluntary(depth: Depth) -> Option<Request> {
    Some(Request { depth, participation: Participation::Voluntary })
}

fn percent(percent: f64) -> Option<Request> {
    voluntary(Depth::Percent { percent })
}

#[test]
fn intervals_follow_each_other_unless_they_have_their_own_times() {
    let hour = json!({ "start": "2026-11-29T15:25:00Z", "duration": "PT1H" });
    let own = |mut interval: Value, period: Value| {
        interval["intervalPeriod"] = period;
        interval
    };
    let simple = |id, level| interval(id, SIMPLE, json!(level));
    let found = slots(json!({ "intervalPeriod": hour, "intervals": [
        simple(0, 1),
        own(simple(1, 2), json!({ "duration": "PT30M" })),
        simple(2, 0),
        own(simple(3, 3), json!({ "start": "2026-11-30T14:25:00Z" })),
    ]}));
    let expected = [
        (3_600, 7_200, percent(10.0)),
        (7_200, 9_000, percent(25.0)),
        (9_000, 12_600, None),
        (86_400, 90_000, percent(40.0)),
    ];
    assert_eq!(found, expected);
    // Prices that repeat are of no concern.
    let prices = json!({ "intervalPeriod": hour, "duration": "P9999Y", "intervals": [interval(0, "PRICE", json!(0.2))] });
    assert_eq!(slots(prices), [(3_600, 7_200, None)]);
    // The event's own duration ends them.
    let cut = json!({ "intervalPeriod": hour, "duration": "PT90M", "intervals": [simple(0, 1), simple(1, 2), simple(2, 3)] });
    assert_eq!(slots(cut), [(3_600, 7_200, percent(10.0)), (7_200, 9_000, percent(25.0))]);
}

#[test]
fn an_event_of_the_year_1_starts_when_it_is_read() {
    let now = json!({ "start": "0001-01-01T00:00:00Z", "duration": "P9999Y" });
    let alert = interval(0, ALERT_GRID_EMERGENCY, json!("The grid is under emergency conditions"));
    let found = of(json!({ "intervalPeriod": now, "intervals": [alert] })).unwrap();
    let mandatory = Participation::Mandatory;
    let request = Request { depth: Depth::Percent { percent: 40.0 }, participation: mandatory };
    let slot = Slot { id: 0, from: NOW, until: Timestamp::FOREVER, request: Some(request) };
    assert_eq!((found.slots, found.starts_now), (vec![slot], true));
    // The form of a cancellation.
    let none = json!({ "start": "0001-01-01", "duration": "PT0S" });
    let level = interval(0, SIMPLE, json!(1));
    assert_eq!(slots(json!({ "intervalPeriod": none, "intervals": [level] })), []);
}

#[test]
fn a_limit_counts_before_a_level_and_an_alert_makes_it_mandatory() {
    let period = json!({ "start": "0001-01-01", "duration": "PT1H" });
    let payloads = json!([
        { "type": SIMPLE, "values": [1] },
        { "type": IMPORT_CAPACITY_LIMIT, "values": [70.5] },
        { "type": ALERT_GRID_EMERGENCY, "values": ["x"] },
        { "type": "PRICE", "values": [0.17] },
        { "type": "GHG", "values": [300] },
    ]);
    let found = of(json!({ "intervalPeriod": period, "priority": 3,
        "intervals": [{ "id": 0, "payloads": payloads }] }))
    .unwrap();
    let depth = Depth::Target { power_mw: Power::from_w(70_500) };
    let participation = Participation::Mandatory;
    assert_eq!(found.slots[0].request, Some(Request { depth, participation }));
    let ignored: Vec<&String> = found.ignored.iter().collect();
    assert_eq!(
        (found.priority, ignored.as_slice()),
        (3, [&"GHG".to_owned(), &"PRICE".to_owned()].as_slice())
    );
}

#[test]
fn a_random_shift_is_bounded_and_the_same_in_each_poll() {
    let level = interval(0, SIMPLE, json!(1));
    let mut starts = BTreeSet::new();
    for number in 0..200 {
        let period = json!({ "start": "2026-11-29T15:25:00Z", "duration": "PT1H", "randomizeStart": "PT10M" });
        let fields =
            json!({ "id": format!("e-{number}"), "intervalPeriod": period, "intervals": [level] });
        let start = slots(fields.clone())[0].0;
        assert_eq!(slots(fields)[0].0, start);
        assert!((3_000..=4_200).contains(&start), "{start}");
        starts.insert(start);
    }
    assert!(
        starts.len() > 100 && *starts.first().unwrap() < 3_200 && *starts.last().unwrap() > 4_000
    );
}

#[test]
fn refusals_name_the_interval_and_what_is_accepted() {
    let period = json!({ "start": "2026-11-29T15:25:00Z", "duration": "PT1H" });
    let with = |interval: Value| json!({ "intervalPeriod": period, "intervals": [interval] });
    let mut amps = with(interval(0, IMPORT_CAPACITY_LIMIT, json!(5)));
    amps["payloadDescriptors"] = json!([{ "payloadType": IMPORT_CAPACITY_LIMIT, "units": "AMPS" }]);
    let mut repeated = with(interval(0, SIMPLE, json!(1)));
    repeated["duration"] = json!("P7D");
    let level = interval(0, SIMPLE, json!(1));
    for (fields, expected) in [
        (with(interval(2, SIMPLE, json!(4))), "interval 2: SIMPLE of 4: the levels 0, 1, 2 and 3"),
        (with(interval(0, SIMPLE, json!("high"))), "SIMPLE has not one number"),
        (with(interval(0, IMPORT_CAPACITY_LIMIT, json!(-5))), "of -5 kW: 0 to"),
        (with(interval(-1, SIMPLE, json!(1))), "interval -1: numbers from 0"),
        (amps, "in `AMPS`: KW is accepted"),
        (repeated, "repeated intervals are not supported"),
        (json!({ "intervals": [level] }), "interval 0 has no start"),
        (
            json!({ "intervalPeriod": { "start": "0001-01-01" }, "intervals": [level] }),
            "no duration",
        ),
        (
            json!({ "intervalPeriod": { "start": "noon" }, "intervals": [level] }),
            "`noon` is not a time",
        ),
        (
            json!({ "intervalPeriod": period, "intervals": [level, level] }),
            "interval 0: numbers from 0 to 99999999 are accepted, each once",
        ),
        (
            json!({ "intervalPeriod": { "randomizeStart": "P2D" }, "intervals": [level] }),
            "randomizeStart is longer than a day",
        ),
    ] {
        let error = of(fields).unwrap_err();
        assert!(error.contains(expected), "{error}: expected {expected}");
    }
}

#[test]
fn events_for_others_are_not_ours() {
    let is_ours = |targets: Value| is_addressed(&event(json!({ "targets": targets })), &site());
    for ours in
        [json!(null), json!([]), json!(["group-1"]), json!(["x", "site-a"]), json!(["cluster"])]
    {
        assert!(is_ours(ours.clone()), "{ours}");
    }
    assert!(is_ours(json!([{ "type": "VEN_NAME", "values": ["site-a"] }])));
    assert!(!is_ours(json!(["group-2"])) && !is_ours(json!([{ "type": "GROUP", "values": [1] }])));
}

#[test]
fn ids_are_stable_short_and_distinct() {
    let uuid = "6a7f3c1e-8d2b-4c55-9f10-0123456789ab";
    assert_eq!(id_prefix(uuid), format!("openadr-{uuid}-"));
    let long = [id_prefix(&"a".repeat(128)), id_prefix(&"a".repeat(127))];
    assert!(long[0] != long[1] && long.iter().all(|id| id.len() == id_prefix(uuid).len()));
    assert!(is_ours(&id_prefix("e"), &source(&program())) && !is_ours("openadr-e-0", "operator"));
}

proptest! {
    /// No text of a server ends the service.
    #[test]
    fn no_event_panics(
        start in "(0001-01-01|2026-1[0-2]-[0-3][0-9]T[0-2][0-9]:00:00Z|[ -~]{0,12})",
        duration in "(P[0-9]{1,12}[YMWD]|PT[0-9]{1,19}[HMS]|[ -~]{0,8})",
        random in "(PT[0-9]{1,9}S|[ -~]{0,4})",
        kind in "(SIMPLE|IMPORT_CAPACITY_LIMIT|ALERT_GRID_EMERGENCY|[A-Z]{1,4})",
        value in any::<f64>(),
        id in any::<i64>(),
        priority in any::<i64>(),
    ) {
        let fields = json!({
            "priority": priority, "duration": duration,
            "intervalPeriod": { "start": start, "duration": duration, "randomizeStart": random },
            "intervals": [
                { "id": id.checked_abs().unwrap_or(0) % 100, "payloads": [{ "type": kind, "values": [value] }] },
                { "id": 100, "intervalPeriod": { "start": start }, "payloads": [] },
            ],
        });
        if let Ok(found) = of(fields) {
            prop_assert!(found.slots.iter().all(|slot| slot.from < slot.until));
        }
    }
}
