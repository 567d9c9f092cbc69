//! Buckets and streams on a real nats-server, through its crashes.

use crate::common::{connect, entry, ledger_subject, until, within};
use serde::{Deserialize, Serialize};
use wattle_common::codec;
use wattle_common::messages::LedgerEntry;
use wattle_common::subject::{Bucket, StreamName};
use wattle_runtime::bus::{Bus, BusError, Change, Consumer, Watch};
use wattle_runtime::testing::NatsServer;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Value {
    n: u64,
}

const ONE: Value = Value { n: 1 };
const TWO: Value = Value { n: 2 };

fn value_of(change: &Change) -> Option<u64> {
    let bytes = change.value.as_ref()?;
    Some(codec::decode_json::<Value>(bytes).unwrap().n)
}

/// The next change of `key` to `n`; other changes, which may be repetitions, are skipped.
async fn change_to(watch: &mut Watch, key: &str, n: Option<u64>) -> Change {
    let what = format!("{key} becomes {n:?}");
    within(&what, async {
        loop {
            let change = watch.next().await.expect("the bus is there");
            if change.key == key && value_of(&change) == n {
                return change;
            }
        }
    })
    .await
}

#[tokio::test]
async fn update_requires_the_current_revision() {
    let server = NatsServer::start().await;
    let bus = connect(&server, "main").await;
    let jobs = bus.bucket(Bucket::Jobs).await.unwrap();
    assert_eq!(jobs.get::<Value>("j1").await.unwrap(), None);
    let first = jobs.create("j1", &ONE).await.unwrap();
    assert_eq!(jobs.get("j1").await.unwrap(), Some((ONE, first)));
    let again = jobs.create("j1", &TWO).await.unwrap_err();
    assert!(matches!(again, BusError::Conflict { .. }), "{again:?}");

    let second = jobs.update("j1", &TWO, first).await.unwrap();
    assert!(second > first);
    let stale = jobs.update("j1", &ONE, first).await.unwrap_err();
    assert!(matches!(&stale, BusError::Conflict { key, .. } if key == "j1"), "{stale:?}");
    assert_eq!(jobs.get("j1").await.unwrap(), Some((TWO, second)));

    jobs.put("a.b", &ONE).await.unwrap();
    assert_eq!(jobs.keys().await.unwrap(), ["a.b", "j1"]);
    jobs.delete("j1").await.unwrap();
    jobs.delete("never-there").await.unwrap();
    assert_eq!(jobs.get::<Value>("j1").await.unwrap(), None);
    assert_eq!(jobs.keys().await.unwrap(), ["a.b"]);
    // A deleted key can be created again.
    jobs.create("j1", &ONE).await.unwrap();

    let unread = jobs.get::<u32>("j1").await.unwrap_err();
    assert!(matches!(unread, BusError::Codec(_)), "{unread:?}");
}

#[tokio::test]
async fn buckets_are_separate_for_each_cluster() {
    let server = NatsServer::start().await;
    let (east, west) = (connect(&server, "east").await, connect(&server, "west").await);
    let in_east = east.bucket(Bucket::Desired).await.unwrap();
    in_east.put("n0", &ONE).await.unwrap();
    // A bucket opened on another connection contains the stored values.
    let again = connect(&server, "east").await.bucket(Bucket::Desired).await.unwrap();
    assert_eq!(again.get("n0").await.unwrap().map(|(value, _)| value), Some(ONE));
    let in_west = west.bucket(Bucket::Desired).await.unwrap();
    assert_eq!(in_west.get::<Value>("n0").await.unwrap(), None);
    assert_eq!(in_west.keys().await.unwrap(), Vec::<String>::new());
    for bucket in Bucket::ALL {
        east.bucket(bucket).await.unwrap();
    }
}

#[tokio::test]
async fn existing_limits_are_kept_and_foreign_streams_refused() {
    let server = NatsServer::start().await;
    let client = async_nats::connect(server.url()).await.unwrap();
    let jetstream = async_nats::jetstream::new(client);
    let bus = connect(&server, "main").await;
    bus.bucket(Bucket::Jobs).await.unwrap();
    let mut stream = jetstream.get_stream("KV_wattle-v1-main-jobs").await.unwrap();
    let mut config = stream.info().await.unwrap().config.clone();
    config.max_bytes = 77 << 20;
    jetstream.update_stream(config).await.unwrap();
    bus.bucket(Bucket::Jobs).await.unwrap();
    assert_eq!(stream.info().await.unwrap().config.max_bytes, 77 << 20);

    let foreign = async_nats::jetstream::stream::Config {
        name: "KV_wattle-v1-main-surfaces".to_owned(),
        subjects: vec!["something.else".to_owned()],
        ..Default::default()
    };
    jetstream.create_stream(foreign).await.unwrap();
    let Err(error) = bus.bucket(Bucket::Surfaces).await else { panic!("opened") };
    assert!(matches!(error, BusError::Foreign { .. }), "{error:?}");
    assert!(error.to_string().contains("something.else"), "{error}");
}

#[tokio::test]
async fn watch_returns_current_values_then_changes() {
    let server = NatsServer::start().await;
    let bus = connect(&server, "main").await;
    let bucket = bus.bucket(Bucket::Desired).await.unwrap();

    let mut empty = bucket.watch().await.unwrap();
    assert_eq!(within("the empty bucket is known", empty.initial()).await, []);
    assert!(empty.caught_up());

    bucket.put("n0", &ONE).await.unwrap();
    // A value that is replaced before it is delivered is not delivered.
    let change = change_to(&mut empty, "n0", Some(1)).await;
    assert!(change.initial_done);
    bucket.put("n0", &TWO).await.unwrap();
    bucket.put("n1", &ONE).await.unwrap();
    bucket.put("n2", &ONE).await.unwrap();
    bucket.delete("n2").await.unwrap();
    change_to(&mut empty, "n2", None).await;

    let mut watch = bucket.watch().await.unwrap();
    let initial = within("the last values", watch.initial()).await;
    let values: Vec<_> = initial.iter().map(|c| (c.key.as_str(), value_of(c))).collect();
    assert_eq!(values, [("n0", Some(2)), ("n1", Some(1))]);
    let revision = bucket.put("n1", &TWO).await.unwrap();
    let change = change_to(&mut watch, "n1", Some(2)).await;
    assert_eq!((change.revision, change.initial_done), (revision, true));

    // Without `initial`, the mark comes with the last of the first values.
    let mut plain = bucket.watch().await.unwrap();
    let mut marks = Vec::new();
    for _ in 0..3 {
        marks.push(within("a value", plain.next()).await.unwrap().initial_done);
    }
    assert_eq!(marks, [false, false, true]);
}

#[tokio::test]
async fn watch_survives_a_server_crash_without_gaps() {
    let mut server = NatsServer::start().await;
    let bus = connect(&server, "main").await;
    let bucket = bus.bucket(Bucket::Actual).await.unwrap();
    bucket.put("power.n0", &ONE).await.unwrap();
    let mut watch = bucket.watch().await.unwrap();
    assert_eq!(within("the last value", watch.initial()).await.len(), 1);

    for round in 10..13 {
        server.kill();
        until("the loss is noticed", async || !bus.is_connected()).await;
        let away = bucket.put("power.n0", &ONE).await.unwrap_err();
        assert!(away.is_transient(), "{away:?}");
        server.restart().await;
        // Another client reconnects first and writes before this watch is restored.
        let other = connect(&server, "main").await.bucket(Bucket::Actual).await.unwrap();
        other.put("power.n0", &Value { n: round }).await.unwrap();
        change_to(&mut watch, "power.n0", Some(round)).await;
        // Later changes follow.
        other.put("launcher.n0", &Value { n: round }).await.unwrap();
        change_to(&mut watch, "launcher.n0", Some(round)).await;
    }
}

#[tokio::test]
async fn watch_survives_a_lost_store() {
    let mut server = NatsServer::start().await;
    let bus = connect(&server, "main").await;
    let bucket = bus.bucket(Bucket::Jobs).await.unwrap();
    for _ in 0..5 {
        bucket.put("j1", &ONE).await.unwrap();
    }
    let mut watch = bucket.watch().await.unwrap();
    change_to(&mut watch, "j1", Some(1)).await;
    server.restart_empty().await;
    // The next write finds no stream at first; the watch creates it again.
    until("it is written", async || bucket.put("j2", &TWO).await.is_ok()).await;
    change_to(&mut watch, "j2", Some(2)).await;
}

#[tokio::test]
async fn missing_jetstream_error_names_server_and_remedy() {
    let server = NatsServer::start_without_jetstream().await;
    let bus = connect(&server, "main").await;
    let Err(error) = within("it gives up", bus.bucket(Bucket::Jobs)).await else {
        panic!("opened")
    };
    assert!(matches!(error, BusError::NoJetStream { .. }), "{error:?}");
    assert!(error.to_string().contains("-js"), "{error}");
}

async fn taken(consumer: &mut Consumer) -> u64 {
    let delivery = within("a message", consumer.next()).await.unwrap();
    delivery.ack().await.unwrap();
    codec::decode_json::<LedgerEntry>(&delivery.payload).unwrap().energy_mj_host.as_mj()
}

async fn stored(bus: &Bus, n: u64) {
    let subject = ledger_subject(bus, "n0");
    let id = format!("n0-{n}");
    until("it is stored", async || match bus.store(&subject, &id, &entry(n)).await {
        Ok(()) => true,
        Err(error) => {
            assert!(error.is_transient(), "{error:?}");
            false
        }
    })
    .await;
}

#[tokio::test]
async fn repeated_message_id_is_stored_once() {
    let server = NatsServer::start().await;
    let bus = connect(&server, "main").await;
    stored(&bus, 1).await;
    stored(&bus, 1).await;
    stored(&bus, 2).await;
    let mut consumer = bus.consume(StreamName::Ledger, "test").await.unwrap();
    assert_eq!(taken(&mut consumer).await, 1);
    assert_eq!(taken(&mut consumer).await, 2);
    let mut windows = bus.consume(StreamName::Windows, "test").await.unwrap();
    stored(&bus, 3).await;
    assert_eq!(taken(&mut consumer).await, 3);
    let nothing = tokio::time::timeout(std::time::Duration::from_millis(50), windows.next()).await;
    assert!(nothing.is_err(), "ledger entries are not windows");
}

#[tokio::test]
async fn message_that_is_never_acknowledged_is_terminated() {
    use async_nats::jetstream::{self, AckKind, consumer::PullConsumer};
    use futures_util::StreamExt;

    let server = NatsServer::start().await;
    let bus = connect(&server, "main").await;
    stored(&bus, 1).await;
    drop(bus.consume(StreamName::Ledger, "test").await.unwrap());
    // More than ten deliveries without an acknowledgement, as to a service that ends at each. The server
    // does not count deliveries to a consumer that is gone, so some more.
    let client = async_nats::connect(server.url()).await.unwrap();
    let stream = jetstream::new(client).get_stream(StreamName::Ledger.name(bus.cluster())).await;
    let consumer: PullConsumer = stream.unwrap().get_consumer("test").await.unwrap();
    loop {
        // One request for one message: none is pending when this consumer goes.
        let mut messages = consumer.fetch().max_messages(1).messages().await.unwrap();
        let Some(message) = within("a delivery", messages.next()).await else { continue };
        let message = message.unwrap();
        let deliveries = message.info().unwrap().delivered;
        message.ack_with(AckKind::Nak(None)).await.unwrap();
        if deliveries >= 15 {
            break;
        }
    }
    stored(&bus, 2).await;
    let mut consumer = bus.consume(StreamName::Ledger, "test").await.unwrap();
    assert_eq!(taken(&mut consumer).await, 2, "the first was terminated");
}

#[tokio::test]
async fn replay_ends_with_the_newest_stored_message() {
    let server = NatsServer::start().await;
    let bus = connect(&server, "main").await;
    let all = async |filter: Option<&str>| {
        let mut replay = bus.replay(StreamName::Ledger, filter).await.unwrap();
        let mut found = Vec::new();
        while let Some(payload) = within("a message", replay.next()).await.unwrap() {
            let entry = codec::decode_json::<LedgerEntry>(&payload).unwrap();
            found.push(entry.energy_mj_host.as_mj());
        }
        found
    };
    assert!(all(None).await.is_empty(), "an empty stream");
    for n in 1..=600 {
        stored(&bus, n).await;
    }
    assert_eq!(all(None).await, (1..=600).collect::<Vec<_>>());
    // A replay leaves nothing on the server: the next one is complete again.
    assert_eq!(all(Some(&ledger_subject(&bus, "n0").to_string())).await.len(), 600);
    assert!(all(Some(&ledger_subject(&bus, "n1").to_string())).await.is_empty());
}

#[tokio::test]
async fn consumer_resumes_after_crashes() {
    let mut server = NatsServer::start().await;
    let bus = connect(&server, "main").await;
    let mut consumer = bus.consume(StreamName::Ledger, "budget").await.unwrap();
    for n in 1..=3 {
        stored(&bus, n).await;
    }
    assert_eq!(taken(&mut consumer).await, 1);
    // The second message is received and not acknowledged before its consumer ends.
    let two = within("two", consumer.next()).await.unwrap();
    assert_eq!(two.sequence, 2);
    drop((two, consumer));

    let mut consumer = bus.consume(StreamName::Ledger, "budget").await.unwrap();
    // In order: the third is held back until the second is acknowledged. The server may deliver the second
    // again while its acknowledgement is on the way.
    let mut order = vec![taken(&mut consumer).await];
    while order.last() != Some(&3) {
        order.push(taken(&mut consumer).await);
    }
    order.dedup();
    assert_eq!(order, [2, 3]);

    // A killed server may lose the last acknowledgements, never a message.
    server.restart().await;
    stored(&bus, 4).await;
    while taken(&mut consumer).await != 4 {}
    server.restart_empty().await;
    stored(&bus, 5).await;
    while taken(&mut consumer).await != 5 {}
}

/// The initial values of a watch and the list of keys are complete while every value is rewritten.
#[tokio::test]
async fn initial_values_are_complete_under_concurrent_writes() {
    let server = NatsServer::start().await;
    let (bus, other) = (connect(&server, "main").await, connect(&server, "main").await);
    let actual = bus.bucket(Bucket::Actual).await.unwrap();
    let written = other.bucket(Bucket::Actual).await.unwrap();
    let keys = ["n0", "n1", "n2"];
    for key in keys {
        written.put(key, &ONE).await.unwrap();
    }
    for round in 0..150 {
        // Some writes fall between all steps of the reads; then none follow.
        let writes = async {
            for n in 0..(round % 8) {
                for key in keys {
                    written.put(key, &Value { n }).await.unwrap();
                }
            }
        };
        let reads = async {
            let mut watch = actual.watch().await.unwrap();
            let initial = within("the watch's beginning", watch.initial()).await;
            let mut found: Vec<String> = initial.into_iter().map(|change| change.key).collect();
            found.sort();
            found.dedup();
            assert_eq!(found, keys, "round {round}");
            assert_eq!(actual.keys().await.unwrap(), keys, "round {round}");
        };
        tokio::join!(writes, reads);
    }
}
