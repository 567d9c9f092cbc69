//! An agent that only advises: it issues no setting (the model fails at each one) and reports what it would
//! set.

use std::time::Duration;

use proptest::prelude::*;
use wattle_common::{Frequency, Power};
use wattle_power_agent::{Event, PowerMachine};

use crate::model::{Node, SAFE_W, Step, node_id, step};

fn w(watts: u64) -> Power {
    Power::from_w(watts)
}

fn advised(limit_w: Option<u64>) -> Node {
    let mut node = Node::with_limit(70, limit_w);
    node.settings.advise_only = true;
    node.machine = PowerMachine::new(node_id(), node.settings.clone()).without_stored_caps();
    node
}

/// The caps and clocks that the GPUs have.
fn set(node: &Node) -> Vec<(Power, Option<Frequency>)> {
    node.gpus.iter().map(|gpu| (gpu.cap, gpu.clock)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Orders, expired leases, lost GPUs, changes by other programs, restarts and the stop change nothing.
    #[test]
    fn nothing_is_ever_set(
        limit_w in prop::option::of(300u64..1_000),
        steps in prop::collection::vec(step(), 0..60),
    ) {
        let mut node = advised(limit_w);
        for step in steps {
            let mut before = set(&node);
            if let Step::ExternalCap(gpu, watts) = &step {
                before[*gpu as usize].0 = w(*watts);
            }
            node.apply(step);
            prop_assert_eq!(set(&node), before);
        }
        let before = set(&node);
        node.event(Event::StopRequested);
        prop_assert!(node.machine.is_safe());
        while node.answer() {}
        prop_assert_eq!(set(&node), before);
    }
}

#[test]
fn the_report_has_the_real_and_the_advised_settings() {
    let mut node = advised(None);
    node.advance(Duration::from_secs(1), true);
    let order = vec![(0, Some(180), Some(1_200)), (1, None, None), (2, Some(400), None)];
    node.apply(Step::Command {
        generation: 1,
        age_s: 0,
        lease_s: 20,
        power_limited: false,
        gpus: order,
    });
    node.advance(Duration::from_secs(6), true);
    let report = node.reported.clone().unwrap();
    assert!(report.advise_only && report.lease_until_us.is_some());
    let real: Vec<_> = report.gpus.iter().map(|gpu| gpu.cap_mw.unwrap()).collect();
    assert_eq!(real, [w(100), w(160), w(220)]);
    assert!(report.gpus.iter().all(|gpu| gpu.clock_mhz_max.is_none()));
    let advised: Vec<_> = report.gpus.iter().map(|gpu| gpu.cap_mw_advised.unwrap()).collect();
    // GPU 2 does not support 400 W; its safe cap stays advised.
    assert_eq!(advised, [w(180), w(300), w(SAFE_W)]);
    assert_eq!(report.gpus[0].clock_mhz_max_advised, Some(Frequency::from_mhz(1_200)));
    assert!(report.gpus[2].last_error.as_ref().unwrap().contains("400 W"));
    // After the lease the safe caps are advised.
    node.advance(Duration::from_secs(30), true);
    let report = node.reported.clone().unwrap();
    assert!(report.gpus.iter().all(|gpu| gpu.cap_mw_advised == Some(w(SAFE_W))));
    assert_eq!(report.gpus[0].clock_mhz_max_advised, None);
}

#[test]
fn a_limit_that_is_not_held_is_not_reported() {
    let mut node = advised(Some(600));
    node.advance(Duration::from_secs(1), true);
    let report = node.reported.clone().unwrap();
    assert_eq!(report.node_limit_mw, None);
    // The advised caps obey it.
    let advised: Power = report.gpus.iter().filter_map(|gpu| gpu.cap_mw_advised).sum();
    assert!(advised <= w(600), "{advised}");
}
