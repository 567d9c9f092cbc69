//! Processes die at any instant; the node stays whole, and the dead leave their cards.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::Duration;

use crate::support::{HEAVY, Job, Place, again, is_child, rate_when, until};
use nvml_sim::node::Node;
use wattle_common::Power;

const LONG: [&str; 4] = ["--workload", HEAVY, "--steps", "100000000"];

#[test]
fn a_killed_tenant_leaves_its_cards_even_as_a_zombie() {
    let place = Place::new(60);
    let node = Node::open(&place.node("n0", 2)).unwrap();
    let idle = node.gpu().idle;
    let mut job = Job::start(node.path(), "0,1", "j", &LONG, &[]);
    rate_when(&node, "j", |_| true);
    let before = node.look().unwrap();
    assert!(before.state.cards.iter().all(|card| card.power > idle && card.shares.len() == 1));

    job.child.kill().unwrap();
    // Nobody has waited for it: it is a zombie now.
    let after = until("the dead leave", || {
        let view = node.look().unwrap();
        view.state.claims.iter().all(Option::is_none).then_some(view)
    });
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", job.pid())).unwrap();
    assert!(stat.contains(") Z "), "{stat}");
    for card in &after.state.cards {
        assert_eq!((card.power, card.shares.len()), (idle, 0));
    }
    // Its energy stays counted, and the counter goes on at idle power.
    let energy = |view: &nvml_sim::node::View| view.state.energy(&view.state.cards[0], view.at);
    assert!(energy(&after).as_nj() > energy(&before).as_nj());
    let later = until("time passes", || {
        let view = node.look().unwrap();
        (view.at.since(after.at) > Duration::from_secs(1)).then_some(view)
    });
    let spent = energy(&later).as_nj() - energy(&after).as_nj();
    let span = later.at.since(after.at).as_micros();
    assert_eq!(spent, u128::from(idle.as_mw()) * span);

    // The place is free for the next one.
    let _next = Job::start(node.path(), "0,1", "k", &LONG, &[]);
    rate_when(&node, "k", |_| true);
}

/// Starts this test again as a child, and waits until it says that it is ready.
fn ready_child(test: &str, place: &Place) -> std::process::Child {
    let mut child = again(test)
        .env("WATTLE_SIM_NODE", place.dir().join("n0.node"))
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

fn childs_node() -> Node {
    Node::open(std::env::var("WATTLE_SIM_NODE").unwrap().as_ref()).unwrap()
}

#[test]
fn a_writer_killed_in_mid_write_leaves_the_old_state() {
    let test = "a_writer_killed_in_mid_write_leaves_the_old_state";
    if is_child() {
        let node = childs_node();
        let _half = node.half_written().unwrap();
        println!("READY");
        loop {
            std::thread::park();
        }
    }
    let place = Place::new(1);
    let node = Node::open(&place.node("n0", 2)).unwrap();
    let set = |mw| {
        let cap = Power::from_mw(mw);
        node.update(|state, physics, at| state.set_cap(physics, at, 0, cap))
    };
    set(200_000).unwrap();
    for round in 0..4u64 {
        let mut child = ready_child(test, &place);
        // The writer holds its lock over half a state: readers see the whole one, at once, in
        // this process and in a new one.
        let cap = |node: &Node| node.look().unwrap().state.cards[0].cap.as_mw();
        assert_eq!(cap(&node), 200_000 + round);
        assert_eq!(cap(&Node::open(node.path()).unwrap()), 200_000 + round);
        child.kill().unwrap();
        child.wait().unwrap();
        // The lock went with it.
        set(200_001 + round).unwrap();
        assert_eq!(cap(&Node::open(node.path()).unwrap()), 200_001 + round);
    }
}

#[test]
fn writers_killed_at_any_instant_never_leave_a_mixture() {
    let test = "writers_killed_at_any_instant_never_leave_a_mixture";
    if is_child() {
        let node = childs_node();
        println!("READY");
        for round in 0.. {
            let cap = Power::from_mw(100_000 + round % 150_000);
            // Both cards in one event: nobody may ever see them differ.
            node.update(|state, physics, at| {
                state.set_cap(physics, at, 0, cap)?;
                state.set_cap(physics, at, 1, cap)
            })
            .unwrap();
        }
    }
    let place = Place::new(60);
    let node = Node::open(&place.node("n0", 2)).unwrap();
    let (mut changes, mut last) = (0, (Power::ZERO, 0));
    let mut look = |node: &Node| {
        let view = node.look().unwrap();
        let caps: Vec<_> = view.state.cards.iter().map(|card| card.cap).collect();
        assert_eq!(caps[0], caps[1], "a mixture of two states");
        // Idle cards draw the same whatever their cap, so the counter has one right value.
        let energy = view.state.energy(&view.state.cards[0], view.at).as_nj();
        assert!(energy >= last.1, "the energy counter went back");
        changes += u32::from(caps[0] != last.0);
        last = (caps[0], energy);
        changes
    };
    for round in 0..30u64 {
        let mut child = ready_child(test, &place);
        // It writes by now; it dies a little later, at another point of a write each time.
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
    let view = node.look().unwrap();
    let energy = view.state.energy(&view.state.cards[0], view.at).as_nj();
    let made = node.clock().epoch_us;
    let at_most = u128::from(node.gpu().idle.as_mw()) * u128::from(view.at.as_us() - made);
    // The node was made a moment after its clock's epoch.
    let made_late = u128::from(node.gpu().idle.as_mw()) * 60_000_000;
    assert!(energy <= at_most && energy + made_late > at_most, "{energy} of {at_most}");
}

#[test]
fn what_is_no_node_is_refused_with_a_remedy() {
    let place = Place::new(1);
    let error = |bytes: &[u8]| {
        let path = place.dir().join("x");
        std::fs::write(&path, bytes).unwrap();
        Node::open(&path).unwrap_err().to_string()
    };
    assert!(error(b"").contains("not the state file"));
    assert!(error(&[7; 10_000]).contains("not the state file"));
    let whole = std::fs::read(place.node("n0", 2)).unwrap();
    assert!(error(&whole[..whole.len() - 8]).contains("cut short"));
    let mut spoilt = whole.clone();
    spoilt[4_096..].fill(0xff);
    assert!(error(&spoilt).contains("corrupt"));
    let missing = Node::open(&place.dir().join("none")).unwrap_err().to_string();
    assert!(missing.contains("wattle-simnode create"), "{missing}");
}
