//! The clock that waits for the processes of its cluster.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nvml_sim::node::Node;
use wattle_common::Timestamp;

use crate::support::{SimCluster, until};

/// A process that ends with the test.
struct Running(Child);

impl Running {
    fn clock(node: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wattle-simnode"));
        command.arg("clock").arg("--state").arg(node);
        Self(command.spawn().unwrap())
    }

    /// A process of the cluster that never sleeps.
    fn busy(node: &Path) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", "while :; do :; done"]).env("WATTLE_CLOCK", node);
        Self(command.stdin(Stdio::null()).spawn().unwrap())
    }

    /// CPU time, hundredths of a second.
    fn cpu(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap();
        let (_, fields) = stat.rsplit_once(')').unwrap();
        fields.split_ascii_whitespace().skip(11).take(2).map(|n| n.parse::<u64>().unwrap()).sum()
    }

    fn signal(&mut self, name: &str) {
        let sent = Command::new("kill").args(["-s", name, &self.0.id().to_string()]).status();
        assert!(sent.unwrap().success());
        self.0.wait().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn until_later(node: &Node, than: Timestamp) {
    until("the time passes", || (node.now() > than).then_some(()));
}

/// The time at which the clock is held.
fn until_held(node: &Node) -> Timestamp {
    let mut last = node.now();
    until("the clock is held", || {
        // Free, it would advance by 30 s.
        std::thread::park_timeout(Duration::from_millis(30));
        let now = node.now();
        (std::mem::replace(&mut last, now) == now).then_some(now)
    })
}

#[test]
fn a_process_at_work_holds_the_clock_unless_it_never_sleeps() {
    let cluster = SimCluster::new(1_000);
    let path = cluster.node("n0", 1);
    let node = Node::open(&path).unwrap();
    let _clock = Running::clock(&path);
    until_later(&node, node.now());

    let busy = Running::busy(&path);
    let held = until_held(&node);
    let began = busy.cpu();
    until("it works", || (busy.cpu() > began + 20).then_some(()));
    // Whatever the machine does meanwhile: 2 s of work are waited for.
    let now = node.now();
    if busy.cpu() < 150 {
        assert_eq!(now, held);
    }
    until_later(&node, held);
    assert!(busy.cpu() >= 200, "it computed without a pause before the clock ran again");
}

#[test]
fn without_its_process_the_clock_stands_and_ended_it_is_free() {
    let cluster = SimCluster::new(1_000);
    let path = cluster.node("n0", 1);
    let node = Node::open(&path).unwrap();
    let mut clock = Running::clock(&path);
    until_later(&node, node.now());
    until("it is granted", || (!node.grant().is_free()).then_some(()));
    clock.signal("KILL");
    let held = until_held(&node);
    let mut clock = Running::clock(&path);
    until_later(&node, held);
    let _busy = Running::busy(&path);
    clock.signal("TERM");
    assert!(node.grant().is_free());
    until_later(&node, node.now());
}
