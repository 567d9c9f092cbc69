//! Which stored messages of the ledger count.

use std::time::Duration;

use wattle_common::bounds::plausible_ledger_entry;
use wattle_common::messages::LedgerEntry;
use wattle_common::{Energy, Power, Timestamp, codec};
use wattle_testkit::{ledger_entry, node};

const NOW: Timestamp = Timestamp::from_s(1_000_000_000);
const OWN: &str = "wattle.v1.main.energy.metered.n0";

#[test]
fn entries_of_other_nodes_and_absurd_ones_do_not_count() {
    let span = Duration::from_secs(60);
    let good = ledger_entry("n0", NOW - span, NOW, Power::from_w(300).over(span));
    let read = |subject: &str, now: Timestamp, entry: &LedgerEntry| {
        plausible_ledger_entry(subject, &codec::encode_json(entry), now)
    };
    assert_eq!(read(OWN, NOW, &good), Some(good.clone()));
    let behind = NOW - Duration::from_secs(86_400);
    assert_eq!(read(OWN, behind, &good), Some(good.clone()), "the reader's clock is a day behind");
    assert_eq!(read("wattle.v1.main.energy.metered.n1", NOW, &good), None);
    assert_eq!(read("wattle.v1.main.node.summarized", NOW, &good), None);
    let change = |change: fn(&mut LedgerEntry)| {
        let mut changed = good.clone();
        change(&mut changed);
        read(OWN, NOW, &changed)
    };
    assert_eq!(change(|entry| entry.node = node("n1")), None);
    assert_eq!(change(|entry| entry.until_us = Timestamp::from_us(u64::MAX)), None);
    assert_eq!(change(|entry| entry.from_us = Timestamp::EPOCH), None);
    assert_eq!(change(|entry| entry.energy_mj_host = Energy::from_mj(u64::MAX)), None);
    assert_eq!(change(|entry| entry.energy_mj_gpus = vec![Some(Energy::from_mj(u64::MAX))]), None);
    assert_eq!(plausible_ledger_entry(OWN, b"{}", NOW), None);
}
