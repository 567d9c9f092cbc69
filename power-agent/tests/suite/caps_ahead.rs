//! Bounds of every cap under a power limit over time: they hold without a placer, and end on time.

use std::time::Duration;

use wattle_common::messages::{CapBound, DesiredGpu, NodeDesired};
use wattle_common::{Power, Timestamp};
use wattle_testkit::node_desired;

use crate::model::{Node, SAFE_W, Step};

/// An order of these caps with a lease of 60 s: from 100 s to 200 s no cap is above `bound_w`.
fn order(node: &Node, generation: u64, caps: &[u64], bound_w: u64) -> NodeDesired {
    let at = |s| Timestamp::EPOCH + Duration::from_secs(s);
    let gpu = |(gpu, watts): (u32, &u64)| DesiredGpu {
        gpu,
        cap_mw: Some(Power::from_w(*watts)),
        clock_mhz_max: None,
    };
    NodeDesired {
        gpus: (0..).zip(caps).map(gpu).collect(),
        power_limited: true,
        caps_ahead: vec![
            CapBound {
                from_us: at(100),
                cap_mw: Some(Power::from_w(bound_w)),
                ..CapBound::default()
            },
            CapBound { from_us: at(200), ..CapBound::default() },
        ],
        ..node_desired("n0", generation, node.now, node.now + Duration::from_secs(60))
    }
}

/// Time passes until this second, and settings are made.
fn caps_at(node: &mut Node, second: u64) -> Vec<u64> {
    let until = Timestamp::EPOCH + Duration::from_secs(second);
    node.advance(until.since(node.now), true);
    while node.answer() {}
    node.gpus.iter().map(|gpu| gpu.cap.as_mw() / 1_000).collect()
}

fn node(ramp_w: u64) -> Node {
    let mut node = Node::with_limit(ramp_w, None);
    node.now = Timestamp::EPOCH;
    caps_at(&mut node, 1);
    node
}

#[test]
fn bounds_hold_and_end_on_time_without_a_placer() {
    for ramp_w in [0, 70] {
        let mut node = node(ramp_w);
        node.order(order(&node, 1, &[250, 150], 120));
        assert_eq!(caps_at(&mut node, 55), [250, 150, 300]);
        // After the lease the shares hold: of the safe caps only those above the share are lowered.
        assert_eq!(caps_at(&mut node, 99), [SAFE_W, 150, SAFE_W]);
        assert_eq!(caps_at(&mut node, 100), [120, 120, 120]);
        node.apply(Step::Crash);
        assert_eq!(caps_at(&mut node, 150), [120, 120, 120], "also after a kill");
        assert_eq!(caps_at(&mut node, 201), [SAFE_W, 150, SAFE_W]);
    }
}

#[test]
fn a_bound_holds_within_the_lease_and_a_newer_order_replaces_it() {
    let mut node = node(0);
    caps_at(&mut node, 70);
    node.order(order(&node, 1, &[250, 150], 180));
    assert_eq!(caps_at(&mut node, 99), [250, 150, 300]);
    assert_eq!(caps_at(&mut node, 100), [180, 150, 180]);
    // A bound that the GPU does not support is the nearest cap that it does.
    node.order(order(&node, 2, &[250, 150], 1));
    assert_eq!(caps_at(&mut node, 110), [100, 100, 100]);
    let lifted = NodeDesired { caps_ahead: Vec::new(), ..order(&node, 3, &[250, 150], 1) };
    node.order(lifted);
    assert_eq!(caps_at(&mut node, 111), [250, 150, 300]);
}
