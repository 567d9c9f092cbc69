//! Processes killed at any instant: the state stays consistent and their GPUs are released.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::Duration;

use crate::support::{HEAVY, Job, SimCluster, child_of, is_child, rate_when, until};
use nvml_sim::node::Node;
use wattle_common::Power;

const LONG: [&str; 4] = ["--workload", HEAVY, "--steps", "100000000"];

#[test]
fn killed_tenant_releases_its_gpus_even_as_a_zombie() {
    let cluster = SimCluster::new(60);
    let node = Node::open(&cluster.node("n0", 2)).unwrap();
    let idle = node.model().idle;
    let mut job = Job::start(node.path(), "0,1", "j", &LONG, &[]);
    rate_when(&node, "j", |_| true);
    let before = node.observe().unwrap();
    assert!(before.state.gpus.iter().all(|gpu| gpu.power > idle && gpu.shares.len() == 1));

    job.child.kill().unwrap();
    // Not reaped: a zombie.
    let after = until("the claim is released", || {
        let snapshot = node.observe().unwrap();
        snapshot.state.claims.iter().all(Option::is_none).then_some(snapshot)
    });
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", job.pid())).unwrap();
    assert!(stat.contains(") Z "), "{stat}");
    for gpu in &after.state.gpus {
        assert_eq!((gpu.power, gpu.shares.len()), (idle, 0));
    }
    // The energy counter continues at idle power.
    let energy = |snapshot: &nvml_sim::node::Snapshot| {
        snapshot.state.energy(&snapshot.state.gpus[0], snapshot.at)
    };
    assert!(energy(&after).as_nj() > energy(&before).as_nj());
    let later = until("time passes", || {
        let snapshot = node.observe().unwrap();
        (snapshot.at.since(after.at) > Duration::from_secs(1)).then_some(snapshot)
    });
    let spent = energy(&later).as_nj() - energy(&after).as_nj();
    let span = later.at.since(after.at).as_micros();
    assert_eq!(spent, u128::from(idle.as_mw()) * span);

    // The slot is free for another process.
    let _next = Job::start(node.path(), "0,1", "k", &LONG, &[]);
    rate_when(&node, "k", |_| true);
}

/// Starts this test in a child process and waits until it is ready.
fn ready_child(test: &str, cluster: &SimCluster) -> std::process::Child {
    let mut child = child_of(test)
        .env("WATTLE_SIM_NODE", cluster.dir().join("n0.node"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("READY") {
        line.clear();
        assert!(out.read_line(&mut line).unwrap() > 0, "the child ended early");
    }
    child.stdout = Some(out.into_inner());
    child
}

fn node_of_child() -> Node {
    Node::open(std::env::var("WATTLE_SIM_NODE").unwrap().as_ref()).unwrap()
}

#[test]
fn writer_killed_during_a_write_leaves_the_old_state() {
    let test = "writer_killed_during_a_write_leaves_the_old_state";
    if is_child() {
        let node = node_of_child();
        let _half = node.write_partially().unwrap();
        println!("READY");
        loop {
            std::thread::park();
        }
    }
    let cluster = SimCluster::new(1);
    let node = Node::open(&cluster.node("n0", 2)).unwrap();
    let set = |mw| {
        let cap = Power::from_mw(mw);
        node.update(|state, hardware, at| state.set_cap(hardware, at, 0, cap))
    };
    set(200_000).unwrap();
    for round in 0..4u64 {
        let mut child = ready_child(test, &cluster);
        // The writer holds its lock with half a state written: existing and new readers still see
        // the previous state.
        let cap = |node: &Node| node.observe().unwrap().state.gpus[0].cap.as_mw();
        assert_eq!(cap(&node), 200_000 + round);
        assert_eq!(cap(&Node::open(node.path()).unwrap()), 200_000 + round);
        child.kill().unwrap();
        child.wait().unwrap();
        // Its lock is released.
        set(200_001 + round).unwrap();
        assert_eq!(cap(&Node::open(node.path()).unwrap()), 200_001 + round);
    }
}

#[test]
fn writers_killed_at_any_instant_leave_a_consistent_state() {
    let test = "writers_killed_at_any_instant_leave_a_consistent_state";
    if is_child() {
        let node = node_of_child();
        println!("READY");
        for round in 0.. {
            let cap = Power::from_mw(100_000 + round % 150_000);
            // Both GPUs in one update: readers must never see different caps.
            node.update(|state, hardware, at| {
                state.set_cap(hardware, at, 0, cap)?;
                state.set_cap(hardware, at, 1, cap)
            })
            .unwrap();
        }
    }
    let cluster = SimCluster::new(60);
    let node = Node::open(&cluster.node("n0", 2)).unwrap();
    let (mut changes, mut last) = (0, (Power::ZERO, 0));
    let mut look = |node: &Node| {
        let snapshot = node.observe().unwrap();
        let caps: Vec<_> = snapshot.state.gpus.iter().map(|gpu| gpu.cap).collect();
        assert_eq!(caps[0], caps[1], "inconsistent state");
        // Idle power does not depend on the cap, so the counter's value is determined.
        let energy = snapshot.state.energy(&snapshot.state.gpus[0], snapshot.at).as_nj();
        assert!(energy >= last.1, "the energy counter decreased");
        changes += u32::from(caps[0] != last.0);
        last = (caps[0], energy);
        changes
    };
    for round in 0..30u64 {
        let mut child = ready_child(test, &cluster);
        // Kill it during a write, at a different point in each round.
        let goal = look(&node) + 4;
        until("the child writes", || (look(&node) >= goal).then_some(()));
        let until_us = nvml_sim::node::wall_us() + 137 * round;
        while nvml_sim::node::wall_us() < until_us {
            look(&node);
        }
        child.kill().unwrap();
        look(&node);
        child.wait().unwrap();
        look(&Node::open(node.path()).unwrap());
    }
    let snapshot = node.observe().unwrap();
    let energy = snapshot.state.energy(&snapshot.state.gpus[0], snapshot.at).as_nj();
    let created_us = node.clock().epoch_us;
    let at_most =
        u128::from(node.model().idle.as_mw()) * u128::from(snapshot.at.as_us() - created_us);
    // The node was created slightly after the epoch of its clock.
    let creation_delay = u128::from(node.model().idle.as_mw()) * 60_000_000;
    assert!(energy <= at_most && energy + creation_delay > at_most, "{energy} of {at_most}");
}

#[test]
fn invalid_state_file_is_refused_with_a_remedy() {
    let cluster = SimCluster::new(1);
    let error = |bytes: &[u8]| {
        let path = cluster.dir().join("x");
        std::fs::write(&path, bytes).unwrap();
        Node::open(&path).unwrap_err().to_string()
    };
    assert!(error(b"").contains("not the state file"));
    assert!(error(&[7; 10_000]).contains("not the state file"));
    let valid = std::fs::read(cluster.node("n0", 2)).unwrap();
    assert!(error(&valid[..valid.len() - 8]).contains("truncated"));
    let mut spoilt = valid.clone();
    spoilt[4_096..].fill(0xff);
    assert!(error(&spoilt).contains("corrupt"));
    let missing = Node::open(&cluster.dir().join("none")).unwrap_err().to_string();
    assert!(missing.contains("wattle-simnode create"), "{missing}");
}
