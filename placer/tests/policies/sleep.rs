//! The sleep rule that all policies share.

use std::time::Duration;

use wattle_common::Timestamp;
use wattle_common::job::GpuRequest;
use wattle_placer::{JobFacts, NodeDecision, NodeFacts, NodeKey, Problem, Wakefulness, policy};

use crate::helpers::{arrive, cluster, decide, facts, settle, show, surface};

fn wake(problem: &mut Problem) {
    let waking = |problem: &Problem| {
        let mut nodes = problem.keyed_nodes();
        nodes.find(|(_, node)| node.wakefulness == Wakefulness::Waking).map(|(key, _)| key)
    };
    while let Some(key) = waking(problem) {
        problem.node_is(key, Wakefulness::Awake);
    }
}

#[test]
fn a_node_that_nobody_uses_sleeps_after_five_minutes_and_wakes_for_who_waits() {
    for name in ["fifo", "srtf"] {
        let policy = policy(name).unwrap();
        let mut problem = cluster(&[4, 4, 4]);
        arrive(&mut problem, facts("stays", 2), None);
        assert_eq!(decide(&mut problem.clone(), &*policy).again_at, None);
        problem.nodes_sleep = true;
        let plan = decide(&mut problem, &*policy);
        assert_eq!(plan.again_at, Some(Timestamp::from_s(300)), "{name}");
        problem.now = Timestamp::from_us(299_999_999);
        assert!(decide(&mut problem, &*policy).is_empty());
        problem.now = Timestamp::from_s(300);
        let plan = decide(&mut problem, &*policy);
        assert_eq!(
            show(&problem, &plan),
            "n1 sleeps: nobody was on it for 300 s\nn2 sleeps: nobody was on it for 300 s\n"
        );
        // Room for one is awake; one node is enough for the next two; nobody can have 20.
        problem.now = Timestamp::from_s(400);
        for (job, gpus) in [("fits", 2), ("waits", 2), ("too", 2)] {
            arrive(&mut problem, facts(job, gpus), None);
        }
        let plan = decide(&mut problem, &*policy);
        assert_eq!(plan.decisions.len(), 1, "{plan:?}");
        assert_eq!(plan.nodes.len(), 1, "{plan:?}");
        problem.now = Timestamp::from_s(520);
        wake(&mut problem);
        assert_eq!(decide(&mut problem, &*policy).decisions.len(), 2, "{name}");
        let asleep = problem.node(NodeKey::at(2)).wakefulness;
        assert_eq!(asleep, Wakefulness::Asleep);
    }
}

#[test]
fn whoever_waits_for_more_than_there_is_wakes_and_keeps_awake_nobody() {
    let mut problem = cluster(&[4, 4]);
    problem.nodes_sleep = true;
    let fifo = policy("fifo").unwrap();
    arrive(&mut problem, facts("stays", 1), None);
    arrive(&mut problem, facts("large", 8), None);
    decide(&mut problem, &*fifo);
    problem.now = Timestamp::from_s(300);
    let plan = decide(&mut problem, &*fifo);
    expect_test::expect![[r#"
        n1 sleeps: nobody was on it for 300 s
        large waits: asks for 8 GPUs; 7 free, at most 4 on one node
    "#]]
    .assert_eq(&show(&problem, &plan));
    // Now there is enough, if the second node wakes; until it does, the first one stays awake.
    problem.job_ended(problem.job_key(&"stays".parse().unwrap()).unwrap());
    let plan = decide(&mut problem, &*fifo);
    expect_test::expect![[r#"
        n1 wakes: jobs wait for 4 GPUs
        large waits: asks for 8 GPUs; 4 free, at most 4 on one node
    "#]]
    .assert_eq(&show(&problem, &plan));
    problem.now = problem.now + Duration::from_secs(1_000);
    assert!(decide(&mut problem, &*fifo).is_empty());
    wake(&mut problem);
    expect_test::expect![[r#"
        large on n0:0,1,2,3 n1:0,1,2,3: first in the queue; first 2 wholly free nodes
    "#]]
    .assert_eq(&settle(&mut problem, &*fifo));
}

#[test]
fn what_takes_long_to_wake_stays_awake_as_long() {
    let mut problem = cluster(&[4]);
    problem.nodes_sleep = true;
    let mut facts = (*problem.node(NodeKey::at(0)).facts).clone();
    let watts = facts.watts.unwrap();
    let wakes_in = Duration::from_secs(900);
    facts.watts = Some(wattle_placer::NodeWatts { wakes_in, ..watts });
    problem.node_known(facts);
    let plan = decide(&mut problem, &*policy("fifo").unwrap());
    assert_eq!(plan.again_at, Some(Timestamp::from_s(900)));
}

#[test]
fn who_names_a_kind_wakes_nodes_of_that_kind() {
    for name in ["fifo", "srtf", "fifo-packed", "powerflow", "afs", "wattle"] {
        let policy = policy(name).unwrap();
        let mut problem = cluster(&[4, 4, 4]);
        for i in 1..3 {
            let facts = (*problem.node(NodeKey::at(i)).facts).clone();
            problem.node_known(NodeFacts { gpu_kind: format!("kind{i}"), ..facts });
        }
        problem.nodes_sleep = true;
        for i in 1..3 {
            problem.node_is(NodeKey::at(i), Wakefulness::Asleep);
        }
        // The V100s are awake and free, which is of no use to it.
        let gpu_kind = Some("kind2".into());
        let key = arrive(&mut problem, JobFacts { gpu_kind, ..facts("picky", 4) }, None);
        let mut said = surface(&"picky".parse().unwrap(), 0, GpuRequest::exactly(4));
        said.gpu_kind = "kind2".to_owned();
        problem.surface_known(key, said.into());
        let plan = decide(&mut problem, &*policy);
        let woken: Vec<_> = plan.nodes.iter().map(NodeDecision::node).collect();
        assert_eq!(woken, [NodeKey::at(2)], "{name}: {plan:?}");
        problem.now = Timestamp::from_s(120);
        wake(&mut problem);
        assert_eq!(decide(&mut problem, &*policy).decisions.len(), 1, "{name}");
    }
}
