//! The only writer of a subject on a real nats-server that loses acknowledged messages.

use wattle_common::codec;
use wattle_common::messages::LedgerEntry;
use wattle_common::subject::StreamName;
use wattle_runtime::bus::{Appender, Bus};
use wattle_runtime::testing::NatsServer;

use crate::common::{connect, entry, ledger_subject, until, within};

async fn append(appender: &mut Appender<LedgerEntry>, bus: &Bus, node: &str, n: u64) {
    let subject = ledger_subject(bus, node);
    let id = format!("{node}-{n}");
    until("it is stored", async || match appender.append(bus, &subject, &id, entry(n)).await {
        Ok(()) => true,
        Err(error) => {
            assert!(error.is_transient(), "{error:?}");
            false
        }
    })
    .await;
}

/// The messages of a node in the stream, in order.
async fn stored(bus: &Bus, node: &str) -> Vec<u64> {
    let filter = ledger_subject(bus, node).to_string();
    let mut replay = bus.replay(StreamName::Ledger, Some(&filter)).await.unwrap();
    let mut found = Vec::new();
    while let Some(payload) = within("a message", replay.next()).await.unwrap() {
        let entry = codec::decode_json::<LedgerEntry>(&payload).unwrap();
        found.push(entry.energy_mj_host.as_mj());
    }
    found
}

/// The stream returns to an earlier state, as after the loss of the servers that had the newest messages.
#[tokio::test]
async fn recent_messages_that_the_server_has_lost_are_stored_again_once() {
    let server = NatsServer::start().await;
    let bus = connect(&server, "main").await;
    let ledger = StreamName::Ledger.name(bus.cluster());
    let (mut first, mut second) = (Appender::new(4), Appender::new(4));
    append(&mut first, &bus, "n0", 1).await;
    append(&mut second, &bus, "n1", 1).await;
    append(&mut first, &bus, "n0", 2).await;
    let mut snapshot = Vec::new();
    let description = bus.take_snapshot(&ledger, &mut snapshot).await.unwrap().unwrap();
    for n in 3..=5 {
        append(&mut first, &bus, "n0", n).await;
    }
    append(&mut second, &bus, "n1", 2).await;
    bus.delete_stream(&ledger).await.unwrap();
    bus.restore_snapshot(&ledger, &description, &mut snapshot.as_slice()).await.unwrap();
    assert_eq!((stored(&bus, "n0").await, stored(&bus, "n1").await), (vec![1, 2], vec![1]));

    // The other node's message has the sequence number of a lost one.
    append(&mut second, &bus, "n1", 3).await;
    assert_eq!(stored(&bus, "n1").await, [1, 2, 3]);
    append(&mut first, &bus, "n0", 6).await;
    assert_eq!(stored(&bus, "n0").await, [1, 2, 3, 4, 5, 6]);
    append(&mut first, &bus, "n0", 6).await;
    append(&mut first, &bus, "n0", 7).await;
    assert_eq!(stored(&bus, "n0").await, [1, 2, 3, 4, 5, 6, 7]);
}

#[tokio::test]
async fn a_lost_store_is_filled_with_the_recent_messages() {
    let mut server = NatsServer::start().await;
    let bus = connect(&server, "main").await;
    let mut appender = Appender::new(3);
    for n in 1..=5 {
        append(&mut appender, &bus, "n0", n).await;
    }
    server.restart_empty().await;
    append(&mut appender, &bus, "n0", 6).await;
    assert_eq!(stored(&bus, "n0").await, [4, 5, 6]);
}

/// After a failover of the writer, or a lost acknowledgement, nothing is missing.
#[tokio::test]
async fn later_messages_of_another_process_are_no_loss() {
    let server = NatsServer::start().await;
    let bus = connect(&server, "main").await;
    let (mut first, mut second) = (Appender::new(4), Appender::new(4));
    append(&mut first, &bus, "n0", 1).await;
    append(&mut second, &bus, "n0", 2).await;
    append(&mut first, &bus, "n0", 3).await;
    append(&mut second, &bus, "n0", 4).await;
    assert_eq!(stored(&bus, "n0").await, [1, 2, 3, 4]);
    // The server recognises a message that an earlier process has stored.
    append(&mut first, &bus, "n0", 4).await;
    append(&mut first, &bus, "n0", 5).await;
    assert_eq!(stored(&bus, "n0").await, [1, 2, 3, 4, 5]);
}

/// The server keeps the position of a consumer over the loss of messages of its stream.
#[tokio::test]
async fn a_consumer_receives_the_messages_after_a_loss() {
    let mut server = NatsServer::start().await;
    let bus = connect(&server, "main").await;
    let ledger = StreamName::Ledger.name(bus.cluster());
    let mut appender = Appender::new(1);
    let mut consumer = bus.consume(StreamName::Ledger, "test").await.unwrap();
    // Skips repetitions, which are possible after a restart of the server.
    let mut received_to = async |n| loop {
        let delivery = within("a message", consumer.next()).await.unwrap();
        delivery.ack().await.unwrap();
        let entry = codec::decode_json::<LedgerEntry>(&delivery.payload).unwrap();
        match entry.energy_mj_host.as_mj() {
            received if received == n => break,
            received => assert!(received < n, "{n} was not received before {received}"),
        }
    };
    let mut copy = None;
    for n in 1..=30 {
        append(&mut appender, &bus, "n0", n).await;
        received_to(n).await;
        if n == 2 {
            server.stop();
            copy = Some(server.copy_messages(&ledger));
            server.restart().await;
        }
    }
    server.stop();
    server.replace_messages(&ledger, copy.take().unwrap());
    server.restart().await;
    for n in 31..=33 {
        append(&mut appender, &bus, "n0", n).await;
    }
    assert_eq!(stored(&bus, "n0").await, [1, 2, 31, 32, 33]);
    for n in 31..=33 {
        received_to(n).await;
    }
}
