//! Feeders of a small site.

use wattle_common::feeders::{Connection, Feeder};
use wattle_common::messages::{FeederStatus, FeedersStatus, GpuSummary, NodeSummary};
use wattle_common::{FeederId, Power, Timestamp};

use crate::node;

fn id(name: &str) -> FeederId {
    FeederId::new(name).expect("a name in tests is an id")
}

/// A feeder with its limit and static load, watts.
#[must_use]
pub fn feeder(name: &str, parent: Option<&str>, limit_w: u64, load_w: u64) -> Feeder {
    Feeder {
        name: id(name),
        parent: parent.map(id),
        limit_mw: Power::from_w(limit_w),
        static_load_mw: Power::from_w(load_w),
    }
}

/// Nodes on feeds, of which they need at least `min_feeds`.
#[must_use]
pub fn connection(nodes: &[&str], feeds: &[&str], min_feeds: u32) -> Connection {
    Connection {
        nodes: nodes.iter().map(|name| node(name)).collect(),
        feeds: feeds.iter().map(|feed| id(feed)).collect(),
        min_feeds,
    }
}

fn status(name: &str, parent: Option<&str>, limit_w: u64, expected_w: u64) -> FeederStatus {
    FeederStatus {
        feeder: feeder(name, parent, limit_w, 0),
        power_mw_expected: Power::from_w(expected_w),
        power_mw_worst: Power::from_w(expected_w),
        lost: None,
    }
}

/// Two boards with a PDU each. n0 is on both PDUs, n1 on the first; the second would be above its limit with the first
/// board lost.
#[must_use]
pub fn feeders_status() -> FeedersStatus {
    let mut board = status("board-a", None, 2_000, 525);
    board.feeder.static_load_mw = Power::from_w(50);
    let mut raised = status("pdu-b", Some("board-b"), 900, 475);
    (raised.power_mw_worst, raised.lost) = (Power::from_w(950), Some(id("board-a")));
    let pdu = status("pdu-a", Some("board-a"), 1_500, 475);
    let feeders = vec![board, pdu, status("board-b", None, 2_000, 475), raised];
    let connections =
        vec![connection(&["n0"], &["pdu-a", "pdu-b"], 1), connection(&["n1"], &["pdu-a"], 1)];
    FeedersStatus { at_us: Timestamp::from_s(90), feeders, connections, power_margin: None }
}

/// A summary of a node with these readings of its GPUs' power and the configured power of its host.
#[must_use]
pub fn node_summary<const GPUS: usize>(
    name: &str,
    gpus: [Option<Power>; GPUS],
    host: Option<Power>,
) -> NodeSummary {
    let reading = |(gpu, power_mw_mean): (u32, Option<Power>)| GpuSummary {
        gpu,
        power_mw_mean,
        energy_mj_total: None,
        utilization_gpu_percent_mean: None,
        meter: None,
        memory_used_mib: None,
        memory_free_mib: None,
        cap_mw_enforced: None,
        clock_mhz: None,
        cap_mw: None,
        temperature_c: None,
        throttle_reasons: None,
        jobs: Vec::new(),
        error: None,
    };
    NodeSummary {
        node: node(name),
        at_us: Timestamp::from_s(99),
        span_ms: 1_000,
        observed_generation: 0,
        samples: 10,
        readings_failed: 0,
        gpus: (0..).zip(gpus).map(reading).collect(),
        jobs: Vec::new(),
        power_mw_host: host,
        ledger_from_us: None,
    }
}
