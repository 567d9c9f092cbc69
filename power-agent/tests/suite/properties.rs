//! The power agent's promises, under any sequence of events.

use std::time::Duration;

use proptest::prelude::*;
use wattle_common::messages::{DesiredGpu, NodeDesired};
use wattle_common::{Power, Timestamp};
use wattle_power_agent::Event;
use wattle_testkit as kit;

use crate::model::{Node, SAFE_W, Step, step};

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Every setting is within the limits and of the newest desired state (checked at each action).
    /// Once the faults are over, the GPUs have the newest desired caps and clocks, and are in the
    /// safe state when the lease is over.
    #[test]
    fn gpus_reach_the_newest_desired_state_or_the_safe_state(ramp_w in prop_oneof![Just(0u64), Just(70)], steps in prop::collection::vec(step(), 0..60)) {
        let mut node = Node::new(ramp_w);
        for step in steps {
            node.apply(step);
        }
        for model in &mut node.gpus {
            model.lost = false;
            model.refuses = false;
        }
        // Two heartbeats: the first may still find a refused setting. The longest ramp, 200 W in
        // steps of 70 W, is shorter.
        node.settle(Duration::from_secs(11));
        node.check_reached();
        node.advance(Duration::from_secs(60), true);
        assert!(node.in_force().is_none(), "no lease of this test is longer");
        node.check_reached();
        assert!(node.machine.is_safe());
    }

    /// A shutdown sets the caps that the first agent found, from any state and after any crashes.
    #[test]
    fn a_shutdown_restores_the_caps_that_were_found(steps in prop::collection::vec(step(), 0..40)) {
        let mut node = Node::new(50);
        for step in steps {
            node.apply(step);
        }
        for model in &mut node.gpus {
            model.lost = false;
            model.refuses = false;
        }
        node.advance(Duration::from_secs(11), true);
        // From here on only the caps that were found are allowed.
        node.newest = None;
        node.stopped = true;
        node.event(Event::StopRequested);
        while node.answer() {}
        node.check_reached();
        assert!(node.machine.is_safe());
    }
}

fn desired(generation: u64, now: Timestamp, gpus: Vec<DesiredGpu>) -> NodeDesired {
    let expires_at = now + Duration::from_secs(30);
    NodeDesired { gpus, ..kit::node_desired("n0", generation, now, expires_at) }
}

#[test]
fn a_node_with_a_wrong_clock_obeys_within_a_lease() {
    for (ahead_s, behind_s) in [(0, 0), (3_600, 0), (0, 500)] {
        let mut node = Node::new(0);
        node.advance(Duration::from_secs(1), true);
        let cap = |w| DesiredGpu { gpu: 0, cap_mw: Some(Power::from_w(w)), clock_mhz_max: None };
        let placer = |node: &Node| {
            node.now + Duration::from_secs(behind_s) - Duration::from_secs(ahead_s.min(900))
        };
        // Renewals every 10 s; the second one is obeyed at the latest.
        for _ in 0..2 {
            let order = desired(3, placer(&node), vec![cap(150)]);
            node.newest = Some(NodeDesired { expires_at_us: Timestamp::FOREVER, ..order.clone() });
            node.event(Event::DesiredChanged(order));
            node.advance(Duration::from_secs(10), true);
        }
        assert_eq!(node.gpus[0].cap, Power::from_w(150), "{ahead_s} s ahead, {behind_s} s behind");
        // The placer is away: the lease ends 30 s after its last renewal was received.
        node.advance(Duration::from_secs(19), true);
        assert_eq!(node.gpus[0].cap, Power::from_w(150));
        node.newest = None;
        node.advance(Duration::from_secs(2), true);
        assert_eq!(node.gpus[0].cap, Power::from_w(SAFE_W));
    }
}

#[test]
fn no_cap_rises_after_the_lease_under_a_power_limit() {
    for restarts in [false, true] {
        let mut node = Node::new(0);
        node.advance(Duration::from_secs(1), true);
        let cap = |gpu, w| DesiredGpu { gpu, cap_mw: Some(Power::from_w(w)), clock_mhz_max: None };
        let gpus = [cap(0, 110), cap(1, 150), cap(2, 250)];
        node.apply(Step::Command {
            generation: 1,
            age_s: 0,
            lease_s: 30,
            power_limited: true,
            gpus: gpus
                .iter()
                .map(|gpu| (gpu.gpu, gpu.cap_mw.map(|cap| cap.as_mw() / 1_000), None))
                .collect(),
        });
        node.advance(Duration::from_secs(5), true);
        if restarts {
            node.apply(Step::Crash);
        }
        node.advance(Duration::from_secs(60), true);
        let caps: Vec<u64> = node.gpus.iter().map(|gpu| gpu.cap.as_mw() / 1_000).collect();
        assert_eq!(caps, [110, 150, SAFE_W], "restarted: {restarts}");
    }
}

#[test]
fn a_start_brings_the_gpus_to_their_safe_state() {
    let mut node = Node::new(0);
    node.advance(Duration::from_secs(1), true);
    assert!(node.gpus.iter().all(|c| c.cap == Power::from_w(SAFE_W) && c.clock.is_none()));
    assert_eq!(node.reported.unwrap().lease_until_us, None);
}

#[test]
fn a_hung_driver_is_reported_and_read_once() {
    let mut node = Node::new(0);
    node.advance(Duration::from_secs(1), true);
    node.advance(Duration::from_secs(60), false);
    assert_eq!(node.waiting.len(), 1, "{:?}", node.waiting);
    let report = node.reported.clone().unwrap();
    assert!(report.gpus.iter().all(|gpu| !gpu.healthy));
    assert!(node.now.since(report.at_us) <= node.settings.heartbeat, "reports continue");
    node.advance(Duration::from_secs(6), true);
    assert!(node.reported.unwrap().gpus.iter().all(|gpu| gpu.healthy));
}

#[test]
fn one_lost_gpu_does_not_affect_the_others() {
    let mut node = Node::new(0);
    node.advance(Duration::from_secs(1), true);
    node.gpus[1].lost = true;
    node.advance(Duration::from_secs(6), true);
    let cap = |gpu| DesiredGpu { gpu, cap_mw: Some(Power::from_w(150)), clock_mhz_max: None };
    let desired = desired(3, node.now, vec![cap(0), cap(1), cap(2)]);
    node.newest = Some(desired.clone());
    node.event(Event::DesiredChanged(desired));
    node.advance(Duration::from_secs(1), true);
    let report = node.reported.clone().unwrap();
    assert_eq!(report.observed_generation, 3);
    let healthy: Vec<bool> = report.gpus.iter().map(|gpu| gpu.healthy).collect();
    assert_eq!(healthy, [true, false, true]);
    assert_eq!(report.gpus[2].cap_mw, Some(Power::from_w(150)));
    assert_eq!(report.gpus[1].cap_mw, None, "a missing reading stays missing");
    node.gpus[1].lost = false;
    node.advance(Duration::from_secs(6), true);
    assert_eq!(node.gpus[1].cap, Power::from_w(150), "set to the desired cap");
}
