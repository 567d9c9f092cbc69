//! The node's power limit: held whatever is ordered, at every instant, and reported.

use std::time::Duration;

use proptest::prelude::*;
use wattle_common::Power;
use wattle_power_agent::Event;

use crate::model::{GPUS, Node, SAFE_W, Step, step};

fn w(watts: u64) -> Power {
    Power::from_w(watts)
}

/// An order of these caps, watts.
fn order(generation: u64, lease_s: u64, power_limited: bool, caps: &[u64]) -> Step {
    let gpus = (0..).zip(caps).map(|(gpu, cap)| (gpu, Some(*cap), None)).collect();
    Step::Command { generation, age_s: 0, lease_s, power_limited, gpus }
}

fn caps(node: &Node) -> Vec<u64> {
    node.gpus.iter().map(|gpu| gpu.cap.as_mw() / 1_000).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// No cap rises above the room that the others leave, in any order of results, with ramps, refused
    /// settings, lost GPUs and restarts (the model checks it at each setting). Once the faults are over,
    /// the caps are the requested ones, lowered to the highest common level that fits.
    #[test]
    fn the_sum_of_the_caps_never_rises_above_the_limit(
        ramp_w in prop_oneof![Just(0u64), Just(70)],
        limit_w in 300u64..1_000,
        steps in prop::collection::vec(step(), 0..60),
    ) {
        let mut node = Node::with_limit(ramp_w, Some(limit_w));
        for step in steps {
            match step {
                // Another program's change is corrected at the next reading.
                Step::ExternalCap(..) => {}
                // Without a limit of the site a cap outside the GPU's range leaves the previous one.
                Step::Command { generation, age_s, lease_s, gpus, .. } => {
                    node.apply(Step::Command { generation, age_s, lease_s, power_limited: true, gpus });
                }
                step => node.apply(step),
            }
        }
        for model in &mut node.gpus {
            model.lost = false;
            model.refuses = false;
        }
        node.settle(Duration::from_secs(16));
        prop_assert!(node.sum() <= w(limit_w), "{}", node.sum());
        node.check_reached();
        node.newest = None;
        node.stopped = true;
        node.event(Event::StopRequested);
        while node.answer() {}
        node.check_reached();
        prop_assert!(node.machine.is_safe());
    }
}

#[test]
fn safe_caps_and_orders_are_lowered_to_the_limit() {
    let mut node = Node::with_limit(0, Some(420));
    node.advance(Duration::from_secs(1), true);
    assert_eq!(SAFE_W, 200);
    assert_eq!(caps(&node), [140, 140, 140]);
    node.apply(order(1, 30, false, &[300, 110, 300]));
    node.advance(Duration::from_secs(5), true);
    assert_eq!(caps(&node), [155, 110, 155]);
    assert_eq!(node.reported.clone().unwrap().node_limit_mw, Some(w(420)));
}

#[test]
fn a_gpu_that_refuses_its_cap_reduces_the_others() {
    let mut node = Node::with_limit(0, Some(600));
    node.gpus[2].cap = w(300);
    node.gpus[2].refuses = true;
    node.advance(Duration::from_secs(20), true);
    assert_eq!(caps(&node), [150, 150, 300]);
    node.gpus[2].refuses = false;
    node.advance(Duration::from_secs(10), true);
    assert_eq!(caps(&node), [200, 200, 200]);
}

#[test]
fn a_limit_below_the_lowest_caps_gives_the_lowest_caps() {
    let mut node = Node::with_limit(0, Some(250));
    node.advance(Duration::from_secs(1), true);
    assert_eq!(caps(&node), [100; GPUS as usize]);
    node.apply(order(1, 30, false, &[300, 300, 300]));
    node.advance(Duration::from_secs(5), true);
    assert_eq!(caps(&node), [100; GPUS as usize]);
}

#[test]
fn caps_fall_at_once_under_a_power_limit_and_rise_by_the_ramp() {
    let mut node = Node::new(20);
    node.advance(Duration::from_secs(1), true);
    node.apply(order(1, 60, true, &[100, 100, 100]));
    node.advance(Duration::from_millis(1), true);
    assert_eq!(caps(&node), [100, 100, 100]);
    node.apply(order(2, 60, true, &[300, 100, 100]));
    node.advance(Duration::from_millis(1_100), true);
    assert_eq!(caps(&node), [140, 100, 100]);
    node.apply(order(3, 60, false, &[100, 100, 100]));
    node.advance(Duration::from_millis(1), true);
    assert_eq!(caps(&node)[0], 140, "without a limit caps fall by the ramp");
}

#[test]
fn shares_bound_gpus_without_an_order_caps_out_of_range_and_expired_orders() {
    // The safe cap of the site is above the default of 300 W.
    let mut node = Node::new(0);
    for gpu in &mut node.gpus {
        gpu.cap = w(300);
    }
    node.advance(Duration::from_secs(1), true);
    node.apply(order(1, 10, true, &[50, 150]));
    node.advance(Duration::from_secs(60), true);
    assert_eq!(caps(&node), [100, 150, SAFE_W], "a share below the range is the lowest cap");

    // An agent without stored caps reads an order of a placer that is away.
    let mut node = Node::new(0);
    let Step::Command { gpus, .. } = order(1, 5, true, &[110, 120, 130]) else { unreachable!() };
    let late = Step::Command { generation: 1, age_s: 20, lease_s: 5, power_limited: true, gpus };
    node.apply(late);
    node.advance(Duration::from_secs(60), true);
    assert_eq!(caps(&node), [110, 120, 130]);
}
