//! Grants the time of simulated nodes for as long as it runs.
//!
//! It looks at the processes of the cluster ([`Activity`]) several times in each grain of time, and writes the
//! grant ([`Granter`]) to the state of every node. If it is killed, the time is held until it runs again; if it
//! is terminated, the time runs freely afterwards.

use std::path::PathBuf;
use std::time::Duration;

use wattle_common::time::grant::{Grant, Granter, grain};

use crate::activity::Activity;
use crate::job::Signals;
use crate::node::{Node, NodeError, boot_time};

/// Shortest pause after a look that found a process at work: with 200 µs such looks take 8 % of a core.
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// Longest pause: a look during which the kernel ran other processes, or the machine slept, is no measure.
const PAUSE_MAX: Duration = Duration::from_millis(10);
/// Share of the time that looks may take: a look that took long is followed by a pause this many times longer.
const PAUSE_PER_LOOK: u32 = 20;

/// Grants time to the nodes with these state files, which have the same rate, until SIGTERM or SIGINT. It waits
/// for the processes of their cluster and for `others`.
///
/// # Errors
/// If a file cannot be opened or written.
///
/// # Panics
/// Without a file.
pub fn run(paths: &[PathBuf], others: &[u32]) -> Result<(), NodeError> {
    let nodes = paths.iter().map(|path| Node::open(path)).collect::<Result<Vec<_>, _>>()?;
    let rate = nodes.first().expect("the command line requires a node").clock().rate;
    // After a kill between two writes the nodes may differ by one grant; the time never goes back.
    let last = nodes.iter().map(Node::grant).min_by_key(|grant| grant.held(boot_time()));
    let mut granter = Granter::resume(rate, last.unwrap_or_default());
    let mut activity = Activity::of(paths, others);
    let signals = Signals::block();
    allow_open_files();
    // The time is held from the start: until the first look the cluster may be at work.
    granter.hold(boot_time());
    put(&nodes, granter.grant())?;
    loop {
        let began = boot_time();
        let mut pause = PAUSE_MIN;
        if activity.all_asleep() {
            granter.all_asleep(boot_time());
            put(&nodes, granter.grant())?;
            // The next look is before the end of the grant, so that a quiet cluster is never held.
            pause = pause.max(grain(rate) / 2);
        }
        let took = boot_time().saturating_sub(began);
        let rest = (took * PAUSE_PER_LOOK).min(PAUSE_MAX);
        if signals.wait(pause.max(rest)).is_some() {
            // Jobs that are still to write their checkpoints need the time.
            return put(&nodes, granter.grant().released(boot_time()));
        }
    }
}

fn put(nodes: &[Node], grant: Grant) -> Result<(), NodeError> {
    nodes.iter().try_for_each(|node| node.set_grant(grant))
}

/// Permits as many open files as the system allows: each thread of the cluster has one.
fn allow_open_files() {
    // SAFETY: both calls access only this local value. Where they fail, the limit stays as it is.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}
