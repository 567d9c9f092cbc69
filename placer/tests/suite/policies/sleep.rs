//! The sleep rule that all policies share.

use std::time::Duration;

use wattle_baselines::{NAMES, policy};
use wattle_common::Timestamp;
use wattle_placer::{NodeFacts, NodeKey, Wakefulness};

use crate::policies::helpers::{
    arrive, cluster, converge, decide, decide_until_empty, facts, node, show, wake,
};

#[test]
fn an_idle_node_sleeps_after_five_minutes_and_wakes_for_a_queued_job() {
    for name in ["fifo", "srtf"] {
        let policy = policy(name).unwrap();
        let mut site = cluster(&[4, 4, 4]);
        arrive(&mut site, facts("stays", 2), None);
        assert_eq!(decide(&mut site.clone(), &*policy).again_at, None);
        site.limits.nodes_sleep = true;
        let plan = decide(&mut site, &*policy);
        assert_eq!(plan.again_at, Some(Timestamp::from_s(300)), "{name}");
        site.advance_to(Timestamp::from_us(299_999_999));
        assert!(decide(&mut site, &*policy).is_empty());
        site.advance_to(Timestamp::from_s(300));
        let plan = decide(&mut site, &*policy);
        assert_eq!(show(&site, &plan), "n1 sleeps: idle for 300 s\nn2 sleeps: idle for 300 s\n");
        // One job fits awake nodes; one node is enough for the next two; 20 GPUs are infeasible.
        site.advance_to(Timestamp::from_s(400));
        for (job, gpus) in [("fits", 2), ("waits", 2), ("too", 2)] {
            arrive(&mut site, facts(job, gpus), None);
        }
        let plan = decide(&mut site, &*policy);
        assert_eq!(plan.decisions.len(), 1, "{plan:?}");
        assert_eq!(plan.nodes.len(), 1, "{plan:?}");
        site.advance_to(Timestamp::from_s(520));
        wake(&mut site);
        assert_eq!(decide(&mut site, &*policy).decisions.len(), 2, "{name}");
        let asleep = site.node(NodeKey::at(2)).wakefulness;
        assert_eq!(asleep, Wakefulness::Asleep);
    }
}

#[test]
fn a_node_with_unhealthy_gpus_stays_awake_because_their_recovery_is_reported_only_then() {
    let mut site = cluster(&[4, 4]);
    site.node_known(NodeFacts { healthy: 0b0101, ..node(1, 4) });
    site.limits.nodes_sleep = true;
    let fifo = policy("fifo").unwrap();
    decide(&mut site, &*fifo);
    site.advance_to(Timestamp::from_s(300));
    let plan = decide(&mut site, &*fifo);
    assert_eq!(show(&site, &plan), "n0 sleeps: idle for 300 s\n");
    site.node_known(node(1, 4));
    let plan = decide(&mut site, &*fifo);
    assert_eq!(show(&site, &plan), "n1 sleeps: idle for 300 s\n");
}

/// Its healthy GPUs form no block.
#[test]
fn a_job_starts_on_the_healthy_gpus_of_a_damaged_node_which_is_woken_for_it() {
    for name in NAMES {
        let mut site = cluster(&[4]);
        site.limits.nodes_sleep = true;
        site.node_known(NodeFacts { healthy: 0b0101, ..node(0, 4) });
        site.wakefulness_changed(NodeKey::at(0), Wakefulness::Asleep);
        let policy = policy(name).unwrap();
        let pair = arrive(&mut site, facts("pair", 2), Some(0));
        decide_until_empty(&mut site, &*policy);
        let is = site.node(NodeKey::at(0)).wakefulness;
        assert_eq!(is, Wakefulness::Waking, "{name}");
        wake(&mut site);
        decide_until_empty(&mut site, &*policy);
        assert_eq!(site.size(pair).0, 2, "{name}");
    }
}

#[test]
fn an_infeasible_job_neither_wakes_nodes_nor_keeps_them_awake() {
    let mut site = cluster(&[4, 4]);
    site.limits.nodes_sleep = true;
    let fifo = policy("fifo").unwrap();
    arrive(&mut site, facts("stays", 1), None);
    arrive(&mut site, facts("large", 8), None);
    decide(&mut site, &*fifo);
    site.advance_to(Timestamp::from_s(300));
    let plan = decide(&mut site, &*fifo);
    expect_test::expect![[r#"
        n1 sleeps: idle for 300 s
        large waits: requests 8 GPUs; 7 free, at most 4 on one node
    "#]]
    .assert_eq(&show(&site, &plan));
    // With the second node awake there are enough GPUs; the first node stays awake meanwhile.
    site.end("stays");
    let plan = decide(&mut site, &*fifo);
    expect_test::expect![[r#"
        n1 wakes: queued jobs need 4 GPUs
        large waits: requests 8 GPUs; 4 free, at most 4 on one node
    "#]]
    .assert_eq(&show(&site, &plan));
    site.pass(Duration::from_secs(1_000));
    assert!(decide(&mut site, &*fifo).is_empty());
    wake(&mut site);
    expect_test::expect![[r#"
        large on n0:0,1,2,3 n1:0,1,2,3: first in the queue, on the first 2 free nodes
    "#]]
    .assert_eq(&converge(&mut site, &*fifo));
}

#[test]
fn a_node_stays_awake_as_long_as_it_takes_to_wake() {
    let mut site = cluster(&[4]);
    site.limits.nodes_sleep = true;
    let mut facts = (*site.node(NodeKey::at(0)).facts).clone();
    let watts = facts.watts.unwrap();
    let wakes_in = Duration::from_secs(900);
    facts.watts = Some(wattle_placer::NodeWatts { wakes_in, ..watts });
    site.node_known(facts);
    let plan = decide(&mut site, &*policy("fifo").unwrap());
    assert_eq!(plan.again_at, Some(Timestamp::from_s(900)));
}

#[test]
fn the_nodes_that_one_plan_wakes_leave_none_to_wake_for_the_next() {
    let mut site = cluster(&[4, 8, 8]);
    site.limits.nodes_sleep = true;
    let fifo = policy("fifo").unwrap();
    site.advance_to(Timestamp::from_s(300));
    decide(&mut site, &*fifo);
    // The first woken node suits a smaller job behind it better than the node that was counted for it.
    for (job, gpus) in [("five", 5), ("one", 1), ("four", 4)] {
        arrive(&mut site, facts(job, gpus), None);
    }
    decide(&mut site, &*fifo);
    wake(&mut site);
    decide(&mut site, &*fifo);
    let waiting = site.queue().count();
    assert_eq!(waiting, 0);
}
