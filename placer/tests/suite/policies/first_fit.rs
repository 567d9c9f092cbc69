//! FIFO and FIFO-packed in small examples.

use wattle_placer::policy;

use crate::policies::helpers::{arrive, cluster, decide, facts, node, show};

#[test]
fn fifo_blocks_at_its_head_and_rejects_infeasible_jobs() {
    let mut site = cluster(&[4, 4, 4]);
    for (name, gpus) in [("a", 3), ("b", 2), ("huge", 13), ("c", 6), ("d", 1)] {
        site.job_arrived(facts(name, gpus));
    }
    let fifo = policy("fifo").unwrap();
    let plan = site.plan(&*fifo);
    expect_test::expect![[r#"
        a on n0:0,1,2: first in the queue, on the first free GPUs in node order
        b on n1:0,1: first in the queue, on the first free GPUs in node order
        huge rejected: requests 13 GPUs; the cluster of 12 cannot provide them
        c waits: requests 6 GPUs; 7 free, at most 4 on one node
    "#]]
    .assert_eq(&show(&site, &plan));
    decide(&mut site, &*fifo);
    site.end("b");
    let plan = site.plan(&*fifo);
    expect_test::expect![[r#"
        c on n1:0,1,2,3 n2:0,1: first in the queue, on the first 2 free nodes
        d on n0:3: first in the queue, on the first free GPUs in node order
    "#]]
    .assert_eq(&show(&site, &plan));
}

#[test]
fn nothing_is_rejected_before_all_nodes_are_known() {
    let mut site = cluster(&[4]);
    site.inventory_known(false);
    site.job_arrived(facts("large", 8));
    let plan = decide(&mut site, &*policy("fifo").unwrap());
    assert!(plan.is_empty() && plan.blocked.is_some());
    site.node_known(node(1, 4));
    assert_eq!(decide(&mut site, &*policy("fifo").unwrap()).decisions.len(), 1);
}

#[test]
fn fifo_packed_fills_free_gpus_then_chooses_the_best_partner() {
    let mut site = cluster(&[2]);
    arrive(&mut site, facts("middle", 1), Some(1));
    arrive(&mut site, facts("light", 1), Some(0));
    // With the middle job 0.95 + 0.96; with the light job 0.98 + 0.98.
    arrive(&mut site, facts("third", 1), Some(0));
    // With the middle job: 0.60 + 0.50.
    arrive(&mut site, facts("heavy", 1), Some(2));
    let plan = decide(&mut site, &*policy("fifo-packed").unwrap());
    expect_test::expect![[r#"
        middle on n0:0: first in the queue, on the first free GPUs in node order
        light on n0:1: first in the queue, on the first free GPUs in node order
        third on n0:1, observed: no GPU is free: shared with job light; together 1.96 times the work of one job alone
        heavy waits: requests 1 GPU; 0 free, at most 0 on one node
    "#]]
    .assert_eq(&show(&site, &plan));
}
