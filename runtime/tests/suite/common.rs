//! Shared by the tests on a real server: a bus, a deadline, and an awaited condition.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::time::Duration;

use wattle_common::ClusterId;
use wattle_common::id::NodeId;
use wattle_common::messages::{LedgerEntry, SubmitJob};
use wattle_common::subject::{NodeTopic, Subject};
use wattle_common::{Timestamp, units::Energy};
use wattle_runtime::bus::{Bus, BusConfig};
use wattle_runtime::testing::{self, NatsServer};
use wattle_testkit::{job_spec, ledger_entry};

/// Much longer than any step of a test; reaching it fails the test.
pub(crate) const DEADLINE: Duration = wattle_runtime::testing::HANG;

pub(crate) fn cluster(name: &str) -> ClusterId {
    ClusterId::new(name).unwrap()
}

pub(crate) async fn connect(server: &NatsServer, name: &str) -> Bus {
    let config = BusConfig::at(&server.url());
    within("connect", Bus::connect(&config, cluster(name), "test")).await.unwrap()
}

/// The result of `work`; panics after the deadline.
pub(crate) async fn within<T>(what: &str, work: impl Future<Output = T>) -> T {
    match tokio::time::timeout(DEADLINE, work).await {
        Ok(done) => done,
        Err(_) => panic!("{what}: not within {DEADLINE:?}"),
    }
}

/// Polls until `condition` holds; panics after the deadline.
pub(crate) async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let holds = testing::until(DEADLINE, async || condition().await.then_some(())).await;
    assert!(holds.is_some(), "{what}: not within {DEADLINE:?}");
}

pub(crate) fn job(name: &str) -> SubmitJob {
    SubmitJob { spec: job_spec(name, 1), submission: None, user_proven: false }
}

pub(crate) fn ledger_subject(bus: &Bus, node: &str) -> Subject {
    Subject::of_node(bus.cluster().clone(), NodeTopic::EnergyMetered, NodeId::new(node).unwrap())
}

/// A ledger entry recognised by its host energy.
pub(crate) fn entry(millijoules: u64) -> LedgerEntry {
    let host = Energy::from_mj(millijoules);
    ledger_entry("n0", Timestamp::EPOCH, Timestamp::from_s(60), host)
}
