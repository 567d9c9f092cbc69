//! Random histories of the server, the placer and the service.

use proptest::prelude::*;

use super::*;

/// A step of a random history.
#[derive(Clone, Debug)]
enum Step {
    Set { event: usize, kw: u64, start_min: u64, length_min: u64 },
    Delete(usize),
    Away(bool),
    Silent(bool),
    Restart,
    Minutes(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..3_usize, 30..90_u64, 0..120_u64, 1..120_u64).prop_map(
            |(event, kw, start_min, length_min)| Step::Set { event, kw, start_min, length_min }
        ),
        (0..3_usize).prop_map(Step::Delete),
        any::<bool>().prop_map(Step::Away),
        any::<bool>().prop_map(Step::Silent),
        Just(Step::Restart),
        (1..40_u64).prop_map(Step::Minutes),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    /// After any history the open records are those of the server's intervals that are not over.
    #[test]
    fn the_placer_has_what_the_server_lists(steps in prop::collection::vec(step(), 1..25)) {
        let mut world = World::new(Vec::new());
        let mut events: BTreeMap<usize, (u64, Timestamp, Timestamp)> = BTreeMap::new();
        let mut is_away = false;
        for step in steps.into_iter().chain([Step::Away(false), Step::Silent(false), Step::Minutes(6)]) {
            match step {
                Step::Set { event, kw, start_min, length_min } => {
                    let from = Timestamp::from_s(world.now.as_us() / 1_000_000) + Duration::from_secs(60 * start_min);
                    events.insert(event, (kw, from, from + Duration::from_secs(60 * length_min)));
                }
                Step::Delete(event) => drop(events.remove(&event)),
                Step::Away(away) => is_away = away,
                Step::Silent(silent) => world.answers = !silent,
                Step::Restart => world.restart(),
                Step::Minutes(minutes) => {
                    let until = world.now.since(NOW).as_secs() / 60 + minutes;
                    let written = |(number, (kw, from, until)): (&usize, &(u64, Timestamp, Timestamp))| {
                        let mut event = limit(&format!("e{number}"), *kw);
                        let duration = format!("PT{}S", until.since(*from).as_secs());
                        event["intervalPeriod"] = json!({ "start": instant::shown(*from), "duration": duration });
                        event
                    };
                    world.events = (!is_away).then(|| events.iter().map(written).collect());
                    world.poll_until(until);
                }
            }
        }
        world.poll();
        let open = world.placer.events.values().filter(|record| records::is_open(record, world.now));
        let found: Vec<_> = open
            .map(|record| (record.target_mw, record.event.start_us, record.end_us))
            .collect();
        let now = world.now;
        let wanted = events.values().filter(|(_, _, until)| *until > now);
        let mut wanted: Vec<_> =
            wanted.map(|(kw, from, until)| (Power::from_w(kw * 1_000), *from, *until)).collect();
        let mut found = found;
        found.sort();
        wanted.sort();
        prop_assert_eq!(found, wanted, "{:?}", world.log);
    }
}
