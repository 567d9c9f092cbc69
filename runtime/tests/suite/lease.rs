//! The lease of a service and the buckets that only its holder writes, on a real nats-server.

use std::time::Duration;

use crate::common::{connect, until, within};
use wattle_common::Timestamp;
use wattle_common::messages::{LeaseHolder, ServiceLease};
use wattle_common::subject::{Bucket, LeaseKey};
use wattle_runtime::bus::{Bus, ExclusiveBucket, ExclusiveError, LeaderElector, Stored};
use wattle_runtime::shell::Shutdown;
use wattle_runtime::testing::NatsServer;

/// An elector whose lease is not renewed during a test.
async fn elector(bus: &Bus) -> LeaderElector {
    LeaderElector::new(bus, LeaseKey::Placer, Duration::from_secs(600)).await.unwrap()
}

#[tokio::test]
async fn values_of_other_clients_are_overwritten_by_the_holder() {
    let server = NatsServer::start().await;
    let bus = connect(&server, "main").await;
    let shutdown = Shutdown::default();
    let lease = elector(&bus).await.acquire(|_| ()).await;
    let (mut bucket, values) = ExclusiveBucket::open(&bus, Bucket::Jobs, &lease).await.unwrap();
    assert!(values.is_empty());
    assert_eq!(bucket.put("a", &1_u64, &shutdown).await.unwrap(), Stored::Immediately);
    assert_eq!(bucket.put("a", &2_u64, &shutdown).await.unwrap(), Stored::Immediately);
    assert_eq!(bucket.delete("a", &shutdown).await.unwrap(), Stored::Immediately);
    assert_eq!(bucket.put("a", &3_u64, &shutdown).await.unwrap(), Stored::Immediately);
    let (mut bucket, values) = ExclusiveBucket::open(&bus, Bucket::Jobs, &lease).await.unwrap();
    assert_eq!(values.len(), 1);
    assert_eq!(bucket.put("a", &4_u64, &shutdown).await.unwrap(), Stored::Immediately);
    let other = bus.bucket(Bucket::Jobs).await.unwrap();
    other.put("a", &"not a number").await.unwrap();
    assert_eq!(bucket.put("a", &5_u64, &shutdown).await.unwrap(), Stored::Immediately);
    other.put("a", &6_u64).await.unwrap();
    assert_eq!(bucket.put("a", &7_u64, &shutdown).await.unwrap(), Stored::Immediately);
    assert_eq!(other.get::<u64>("a").await.unwrap().unwrap().0, 7);
    assert!(!bucket.take_lost(), "nothing that was acknowledged is missing");
}

#[tokio::test]
async fn lost_values_are_reported_to_their_owner() {
    let server = NatsServer::start().await;
    let bus = connect(&server, "main").await;
    let shutdown = Shutdown::default();
    let lease = elector(&bus).await.acquire(|_| ()).await;
    let (mut bucket, _) = ExclusiveBucket::open(&bus, Bucket::Jobs, &lease).await.unwrap();
    for value in 0..5_u64 {
        assert_eq!(bucket.put("a", &value, &shutdown).await.unwrap(), Stored::Immediately);
    }
    assert!(!bucket.take_lost());
    bus.delete_stream("KV_wattle-v1-main-jobs").await.unwrap();
    bus.create_storage().await.unwrap();
    let stored = within("it is stored", bucket.put("b", &7_u64, &shutdown)).await;
    assert!(matches!(stored, Ok(Stored::Immediately | Stored::AfterRetry)), "{stored:?}");
    assert!(bucket.take_lost() && !bucket.take_lost(), "once");
    let reader = bus.bucket(Bucket::Jobs).await.unwrap();
    assert_eq!(reader.keys().await.unwrap(), ["b"]);
}

/// An earlier holder that does not know yet that it lost the lease, because it was paused, can write,
/// create and delete nothing.
#[tokio::test]
async fn earlier_holder_is_refused_by_the_store() {
    let server = NatsServer::start().await;
    let bus = connect(&server, "main").await;
    let shutdown = Shutdown::default();
    let first = elector(&bus).await.acquire(|_| ()).await;
    let (mut old, _) = ExclusiveBucket::open(&bus, Bucket::Jobs, &first).await.unwrap();
    let _ = old.put("a", &1_u64, &shutdown).await.unwrap();
    let (mut idle, _) = ExclusiveBucket::open(&bus, Bucket::Desired, &first).await.unwrap();

    release_for_test(&bus).await;
    let second = elector(&bus).await.acquire(|_| ()).await;
    let (mut new, values) = ExclusiveBucket::open(&bus, Bucket::Jobs, &second).await.unwrap();
    assert_eq!(values.len(), 1);
    let (mut other, _) = ExclusiveBucket::open(&bus, Bucket::Desired, &second).await.unwrap();
    assert!(first.is_valid(), "by its own clock");
    let refused =
        |result: Result<_, ExclusiveError>| matches!(result, Err(ExclusiveError::Lost(_)));
    // A changed value, a value that the new holder has not touched, a new one, and a deletion.
    assert_eq!(new.put("b", &5_u64, &shutdown).await.unwrap(), Stored::Immediately);
    assert!(refused(old.put("a", &2_u64, &shutdown).await));
    assert!(refused(old.put("c", &3_u64, &shutdown).await));
    assert!(refused(old.delete("b", &shutdown).await.map(|_| Stored::Immediately)));
    assert!(refused(idle.put("n0", &4_u64, &shutdown).await));
    assert!(!first.is_valid(), "it has noticed");
    let jobs = bus.bucket(Bucket::Jobs).await.unwrap();
    assert_eq!(jobs.keys().await.unwrap(), ["a", "b"]);
    assert_eq!(jobs.get::<u64>("a").await.unwrap().unwrap().0, 1);
    assert_eq!(bus.bucket(Bucket::Desired).await.unwrap().keys().await.unwrap(), [""; 0]);

    // Its attempts left marks; the new holder continues.
    assert_eq!(new.put("a", &6_u64, &shutdown).await.unwrap(), Stored::Immediately);
    assert_eq!(other.put("n0", &7_u64, &shutdown).await.unwrap(), Stored::Immediately);
}

/// Lets the next process acquire the lease without the knowledge of its holder.
async fn release_for_test(bus: &Bus) {
    let leases = bus.bucket(Bucket::Leases).await.unwrap();
    let (mut lease, _) = leases.get::<ServiceLease>("placer").await.unwrap().unwrap();
    lease.released = true;
    leases.put("placer", &lease).await.unwrap();
}

/// Of many processes one holds the lease; the next follows when it is released, or ends with the lease. How
/// long this takes is a test of [`wattle_common::lease`] on virtual time.
#[tokio::test]
async fn one_process_holds_the_lease_at_a_time() {
    let server = NatsServer::start().await;
    let bus = connect(&server, "main").await;
    let length = Duration::from_millis(900);
    let (sender, mut leaders) = tokio::sync::mpsc::channel(3);
    for number in 0..3 {
        let elector = LeaderElector::new(&bus, LeaseKey::Registry, length).await.unwrap();
        let sender = sender.clone();
        tokio::spawn(async move {
            let leadership = elector.acquire(|_| ()).await;
            let _ = sender.send((number, leadership)).await;
        });
    }
    let (one, first) = within("a leader", leaders.recv()).await.unwrap();
    // It renews the lease. On a busy machine a renewal may be late, and the next process acquires the lease:
    // then it is not valid here.
    let leases = bus.bucket(Bucket::Leases).await.unwrap();
    let mut next = None;
    until("it is renewed or another one leads", async || {
        next = leaders.try_recv().ok();
        let (_, revision) = leases.get::<ServiceLease>("registry").await.unwrap().unwrap();
        revision >= 7 || next.is_some()
    })
    .await;
    if next.is_none() {
        first.release().await;
    }
    assert!(!first.is_valid());
    let (two, second) = match next {
        Some(next) => next,
        None => within("the next", leaders.recv()).await.unwrap(),
    };
    // Dropped: not released, and its process still exists.
    drop(second);
    let (three, _third) = within("the last", leaders.recv()).await.unwrap();
    assert!(!first.is_valid() && one != two && two != three && one != three);
}

/// A process is found by its lease also where it answers no request; a lease without renewals is over.
#[tokio::test]
async fn the_holder_of_a_lease_is_found_by_its_renewals() {
    let server = NatsServer::start().await;
    let bus = connect(&server, "main").await;
    let key = LeaseKey::Registry;
    assert_eq!(within("read", bus.lease_holder(&key)).await.unwrap(), None);
    let leases = bus.bucket(Bucket::Leases).await.unwrap();
    let other =
        LeaseHolder { instance: "other".to_owned(), boot: None, pid_namespace: None, pid: 1 };
    let of_other = ServiceLease {
        holder: other.clone(),
        length_ms: 5_000,
        since_us: Timestamp::EPOCH,
        released: false,
    };
    leases.put("registry", &of_other).await.unwrap();
    let renewing = async {
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            leases.put("registry", &of_other).await.unwrap();
        }
    };
    tokio::select! {
        found = within("renewed", bus.lease_holder(&key)) => assert_eq!(found.unwrap(), Some(other)),
        () = renewing => unreachable!(),
    }
    let over = ServiceLease { length_ms: 600, ..of_other };
    leases.put("registry", &over).await.unwrap();
    assert_eq!(within("over", bus.lease_holder(&key)).await.unwrap(), None);
}

/// The lease of a process that was away is confirmed again if no other process acquired it.
#[tokio::test]
async fn lease_continues_after_an_outage_and_a_lost_store() {
    let mut server = NatsServer::start().await;
    let bus = connect(&server, "main").await;
    let length = Duration::from_millis(600);
    let elector = LeaderElector::new(&bus, LeaseKey::Placer, length).await.unwrap();
    let lease = elector.acquire(|_| ()).await;
    let (mut jobs, _) = ExclusiveBucket::open(&bus, Bucket::Jobs, &lease).await.unwrap();
    server.kill();
    until("the lease has ended", async || !lease.is_valid()).await;
    server.restart().await;
    within("confirmed", lease.confirm()).await.unwrap();
    until("the lease is valid again", async || lease.is_valid()).await;
    let shutdown = Shutdown::default();
    let _ = within("stored", jobs.put("a", &1_u64, &shutdown)).await.unwrap();
    server.restart_empty().await;
    let _ = within("stored again", jobs.put("a", &2_u64, &shutdown)).await.unwrap();
    within("confirmed", lease.confirm()).await.unwrap();
    let leases = bus.bucket(Bucket::Leases).await.unwrap();
    assert_eq!(leases.keys().await.unwrap(), ["placer"]);
}

/// Values that are sent together are stored in their order. A value that is refused, and another client's
/// write in between, cost no other value.
#[tokio::test]
async fn values_sent_together_are_all_stored() {
    let server = NatsServer::start().await;
    let bus = connect(&server, "main").await;
    let lease = elector(&bus).await.acquire(|_| ()).await;
    let (mut jobs, _) = ExclusiveBucket::open(&bus, Bucket::Jobs, &lease).await.unwrap();
    let shutdown = Shutdown::default();
    let keys: Vec<String> = (0..600).map(|i| format!("job-{i:03}")).collect();
    let reader = bus.bucket(Bucket::Jobs).await.unwrap();
    for round in 0..2 {
        let texts: Vec<String> = (0..600).map(|i| format!("{round} {i}")).collect();
        let values: Vec<(&str, &String)> = keys.iter().map(String::as_str).zip(&texts).collect();
        let stored = within("all are stored", jobs.put_all(&values, &shutdown)).await;
        assert!(stored.iter().all(|stored| matches!(stored, Ok(Stored::Immediately))), "{round}");
        let (_, first) = reader.get::<String>("job-000").await.unwrap().unwrap();
        let (text, last) = reader.get::<String>("job-599").await.unwrap().unwrap();
        assert_eq!((text, last - first), (format!("{round} 599"), 599));
        // The next round begins with a conflict.
        reader.put("other", &0).await.unwrap();
    }
    let deleted = within("all are deleted", jobs.delete_all(&keys, &shutdown)).await;
    assert_eq!(deleted.len(), 600);
    assert!(deleted.iter().all(|stored| matches!(stored, Ok(Stored::Immediately))));
    assert_eq!(reader.keys().await.unwrap(), ["other"]);
    let (short, long) = ("short".to_owned(), "x".repeat(2 << 20));
    let values = [("a", &short), ("b", &long), ("c", &short)];
    let stored = within("two are stored", jobs.put_all(&values, &shutdown)).await;
    let refused = |stored: &Result<Stored, ExclusiveError>| match stored {
        Ok(_) => false,
        Err(error) => error.refused_value().is_some(),
    };
    assert_eq!(stored.iter().map(refused).collect::<Vec<_>>(), [false, true, false]);
    assert!(jobs.contains("c") && !jobs.contains("b"));
    assert_eq!(reader.get::<String>("c").await.unwrap().unwrap().0, short);
}

/// A process that takes over after the server has lost everything stores again what the holder had stored: from the
/// copy that it has kept on standby.
#[tokio::test]
async fn values_that_the_server_has_lost_are_stored_again_at_a_takeover() {
    let mut server = NatsServer::start().await;
    let (bus, other) = (connect(&server, "main").await, connect(&server, "main").await);
    let start = async |bus: &Bus| {
        let length = Duration::from_secs(5);
        let copied = [Bucket::Jobs];
        LeaderElector::with_copies(bus, LeaseKey::Placer, length, &copied).await.unwrap()
    };
    let (first, second) = (start(&bus).await, start(&other).await);
    let lease = first.acquire(|_| ()).await;
    let (mut jobs, _) = ExclusiveBucket::open(&bus, Bucket::Jobs, &lease).await.unwrap();
    let shutdown = Shutdown::default();
    let keys: Vec<String> = (0..15).map(|number| format!("queued-{number:02}")).collect();
    let texts: Vec<(&str, &String)> = keys.iter().map(|key| (key.as_str(), key)).collect();
    let stored = jobs.put_all(&texts, &shutdown).await;
    assert!(stored.iter().all(Result::is_ok));
    let _ = jobs.put("ended", &1_u64, &shutdown).await.unwrap();
    let _ = jobs.delete("ended", &shutdown).await.unwrap();
    let _ = jobs.put("queued-00", &"changed", &shutdown).await.unwrap();
    // Only after all changes there are 17 values.
    let _ = jobs.put("x", &1_u64, &shutdown).await.unwrap();
    let _ = jobs.put("y", &1_u64, &shutdown).await.unwrap();
    let is_copied = async || second.copied(Bucket::Jobs) == 17;
    until("the values are copied", is_copied).await;
    server.kill();
    drop((jobs, lease, first));
    server.restart_empty().await;
    let lease = within("the second leads", second.acquire(|_| ())).await;
    let opened = within("opened", ExclusiveBucket::open(&other, Bucket::Jobs, &lease)).await;
    let (mut jobs, values) = opened.unwrap();
    let mut found: Vec<&str> = values.iter().map(|change| change.key.as_str()).collect();
    found.sort_unstable();
    assert_eq!(found[..15], keys);
    assert_eq!(found[15..], ["x", "y"]);
    let reader = other.bucket(Bucket::Jobs).await.unwrap();
    assert_eq!(reader.get::<String>("queued-00").await.unwrap().unwrap().0, "changed");
    // The fence continues after the values.
    assert_eq!(jobs.put("next", &2_u64, &shutdown).await.unwrap(), Stored::Immediately);
    assert_eq!(reader.keys().await.unwrap().len(), 18);
}

/// The holder notices a lost bucket, and one that ends earlier than before, without a write of its own.
#[tokio::test]
async fn a_lost_bucket_is_noticed_without_a_write() {
    let mut server = NatsServer::start().await;
    let bus = connect(&server, "main").await;
    let copied = [Bucket::Budget];
    let length = Duration::from_secs(5);
    let elector =
        LeaderElector::with_copies(&bus, LeaseKey::Placer, length, &copied).await.unwrap();
    let lease = elector.acquire(|_| ()).await;
    let (mut budget, _) = ExclusiveBucket::open(&bus, Bucket::Budget, &lease).await.unwrap();
    let shutdown = Shutdown::default();
    let reader = bus.bucket(Bucket::Budget).await.unwrap();
    for round in 1..=3_u64 {
        // The last key is new in each round, so that the number of copied values shows that it has arrived.
        for key in ["set", "status", &format!("round-{round}")] {
            let _ = budget.put(key, &round, &shutdown).await.unwrap();
        }
        let values = 2 + usize::try_from(round).unwrap();
        until("the values are copied", async || elector.copied(Bucket::Budget) == values).await;
        budget.check().await.unwrap();
        assert!(!budget.take_lost(), "nothing is lost");
        match round {
            1 => server.restart_empty().await,
            2 => bus.delete_stream("KV_wattle-v1-main-budget").await.unwrap(),
            _ => {
                server.stop();
                let shorter = server.copy_messages("KV_wattle-v1-main-budget");
                server.restart().await;
                for _ in 0..5 {
                    let _ = budget.put("status", &round, &shutdown).await.unwrap();
                }
                server.stop();
                server.replace_messages("KV_wattle-v1-main-budget", shorter);
                server.restart().await;
            }
        }
        until("the loss is noticed", async || {
            budget.check().await.unwrap();
            budget.take_lost()
        })
        .await;
        until("the values are there", async || {
            budget.check().await.unwrap();
            let value = async |key: &str| reader.get::<u64>(key).await.ok().flatten();
            let values = (value("set").await, value("status").await);
            values.0.is_some_and(|it| it.0 == round) && values.1.is_some_and(|it| it.0 == round)
        })
        .await;
    }
}
