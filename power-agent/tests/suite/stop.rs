//! What an agent knows about its GPUs when it has stopped.

use std::time::Duration;

use wattle_power_agent::Event;

use crate::model::{Node, Step};

fn stopped(refuses: bool) -> Node {
    let mut node = Node::new(0);
    node.advance(Duration::from_secs(1), true);
    let gpus = vec![(0, Some(150), Some(1_200))];
    node.apply(Step::Command { generation: 1, age_s: 0, lease_s: 30, power_limited: false, gpus });
    node.advance(Duration::from_secs(6), true);
    node.apply(Step::Refuse(0, refuses));
    // From here on only the caps that were found are allowed.
    node.newest = None;
    node.stopped = true;
    node.event(Event::StopRequested);
    while node.answer() {}
    node
}

#[test]
fn a_refused_reset_leaves_a_cap_behind() {
    let node = stopped(false);
    assert!(node.machine.is_safe() && node.machine.leaves_nothing_behind());
    // The agent does not wait for a driver that refuses, such as a daemon that has stopped before it.
    let node = stopped(true);
    assert!(node.machine.is_safe() && !node.machine.leaves_nothing_behind());
}

#[test]
fn an_agent_that_never_set_anything_leaves_nothing_behind() {
    let mut node = Node::new(0);
    for gpu in 0..3 {
        node.apply(Step::Refuse(gpu, true));
    }
    node.advance(Duration::from_secs(6), true);
    node.newest = None;
    node.stopped = true;
    node.event(Event::StopRequested);
    while node.answer() {}
    assert!(node.machine.leaves_nothing_behind());
}
