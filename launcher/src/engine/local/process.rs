//! Linux processes: liveness, descendants, and signals that cannot reach a wrong process.
//!
//! Linux reuses pids. A process is therefore identified by pid, start time and boot, and signalled
//! through a pidfd that is opened before the start time is compared.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

pub use rustix::process::Signal;

/// Rounds of killing processes, which may start others meanwhile.
const KILL_ROUNDS: u32 = 200;

/// An identity of a process that is never reused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Its pid.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
    /// Which boot of the machine.
    pub boot: String,
}

/// The fields of `/proc/<pid>/stat` that are used here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    state: u8,
    parent: u32,
    session: u32,
    start_ticks: u64,
}

/// Parses a stat line; the command name in it may contain brackets and spaces.
fn parse_stat(line: &[u8]) -> Option<Stat> {
    let end = line.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(line.get(end + 1..)?).ok()?;
    // Fields from the third on, as proc(5) counts them: state, ppid, pgrp, session, ... starttime.
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    Some(Stat {
        state: *fields.first()?.as_bytes().first()?,
        parent: fields.get(1)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        start_ticks: fields.get(19)?.parse().ok()?,
    })
}

fn stat(pid: u32) -> Option<Stat> {
    parse_stat(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

fn boot() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

/// The process that has `pid` now.
#[must_use]
pub fn identity(pid: u32) -> Option<Identity> {
    Some(Identity { pid, start_ticks: stat(pid)?.start_ticks, boot: boot() })
}

/// Whether the machine has not been restarted since the process started.
#[must_use]
pub fn same_boot(process: &Identity) -> bool {
    process.boot == boot()
}

/// Whether the process has not ended. A zombie has ended.
#[must_use]
pub fn is_alive(process: &Identity) -> bool {
    same_boot(process)
        && stat(process.pid)
            .is_some_and(|stat| stat.start_ticks == process.start_ticks && !has_ended(stat.state))
}

const fn has_ended(state: u8) -> bool {
    matches!(state, b'Z' | b'X' | b'x')
}

/// A pidfd of the process; `None` if it has ended.
#[must_use]
pub fn handle(process: &Identity) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(process.pid).ok()?)?;
    let handle = pidfd_open(pid, PidfdFlags::NONBLOCK).ok()?;
    is_alive(process).then_some(handle)
}

/// Signals one process; `false` if it has ended.
pub fn signal(process: &Identity, signal: Signal) -> bool {
    handle(process).is_some_and(|handle| pidfd_send_signal(handle, signal).is_ok())
}

/// All live descendants of a process, in any session.
///
/// A supervisor adopts its orphaned descendants, so no process of a job can leave this tree.
#[must_use]
pub fn descendants(ancestor: u32) -> Vec<Identity> {
    let all = snapshot();
    let mut tree = BTreeSet::from([ancestor]);
    loop {
        let before = tree.len();
        tree.extend(
            all.iter()
                .filter(|(_, stat)| tree.contains(&stat.parent))
                .map(|(pid, _)| *pid)
                .collect::<Vec<_>>(),
        );
        if tree.len() == before {
            break;
        }
    }
    let boot = boot();
    all.iter()
        .filter(|(pid, stat)| *pid != ancestor && tree.contains(pid) && !has_ended(stat.state))
        .map(|(pid, stat)| Identity {
            pid: *pid,
            start_ticks: stat.start_ticks,
            boot: boot.clone(),
        })
        .collect()
}

/// The numbers of the children of a process, also of ended ones that it has not waited for.
pub(super) fn children(parent: u32) -> Vec<u32> {
    let all = snapshot().into_iter();
    all.filter(|(_, stat)| stat.parent == parent).map(|(number, _)| number).collect()
}

/// Kills the processes left in the session of a supervisor that has ended.
pub fn kill_session(leader: &Identity) {
    // Linux does not reuse a pid while a session of that number has members. So if another process
    // has the leader's pid, the session has no members left.
    if !same_boot(leader) || stat(leader.pid).is_some_and(|s| s.start_ticks != leader.start_ticks) {
        return;
    }
    for (pid, stat) in snapshot() {
        if stat.session == leader.pid && pid != leader.pid {
            signal(
                &Identity { pid, start_ticks: stat.start_ticks, boot: leader.boot.clone() },
                Signal::KILL,
            );
        }
    }
}

/// Kills the processes whose environment has all these variables (`KEY=VALUE`), and which started after a
/// process that has ended. The environments of other users' processes are not readable to every launcher.
pub fn kill_with_variables(since: &Identity, variables: &[String]) {
    if variables.is_empty() || !same_boot(since) {
        return;
    }
    let has_all = |pid: u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let known: BTreeSet<&[u8]> = environment.split(|byte| *byte == 0).collect();
        variables.iter().all(|variable| known.contains(variable.as_bytes()))
    };
    for _ in 0..KILL_ROUNDS {
        let all = snapshot().into_iter().filter(|(_, stat)| stat.start_ticks >= since.start_ticks);
        let live = all.filter(|(pid, stat)| !has_ended(stat.state) && has_all(*pid));
        let left: Vec<Identity> = live
            .map(|(pid, stat)| Identity {
                pid,
                start_ticks: stat.start_ticks,
                boot: since.boot.clone(),
            })
            .collect();
        if left.is_empty() {
            return;
        }
        for process in left {
            signal(&process, Signal::KILL);
        }
    }
}

fn snapshot() -> Vec<(u32, Stat)> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| {
            let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            Some((pid, stat(pid)?))
        })
        .collect()
}

/// The signal of this name, as [`wattle_common::job::check_signal`] allows it.
#[must_use]
pub fn signal_named(name: &str) -> Option<Signal> {
    Some(match name {
        "SIGUSR1" => Signal::USR1,
        "SIGUSR2" => Signal::USR2,
        "SIGTERM" => Signal::TERM,
        "SIGINT" => Signal::INT,
        "SIGHUP" => Signal::HUP,
        "SIGCONT" => Signal::CONT,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_lines_with_any_command_name_are_parsed() {
        let line =
            b"15666 (a) (b c) S 15615 15615 9899 0 -1 4194304 99 0 0 0 0 0 0 0 20 0 1 0 152412 31";
        assert_eq!(
            parse_stat(line),
            Some(Stat { state: b'S', parent: 15615, session: 9899, start_ticks: 152_412 })
        );
        for broken in [&b""[..], b"1 (x", b"1 (x) S", b"1 (x) S 1 2 q"] {
            assert_eq!(parse_stat(broken), None);
        }
    }

    #[test]
    fn a_reused_pid_is_not_the_same_process() {
        let me = identity(std::process::id()).unwrap();
        assert!(is_alive(&me));
        let before = Identity { start_ticks: me.start_ticks - 1, ..me.clone() };
        assert!(!is_alive(&before) && !signal(&before, Signal::KILL));
        let other_boot = Identity { boot: "another".into(), ..me };
        assert!(!is_alive(&other_boot) && !signal(&other_boot, Signal::KILL));
    }

    #[test]
    fn every_allowed_checkpoint_signal_is_known() {
        for name in ["SIGUSR1", "SIGUSR2", "SIGTERM", "SIGINT", "SIGHUP", "SIGCONT"] {
            assert_eq!(wattle_common::job::check_signal(name), Ok(name));
            assert!(signal_named(name).is_some(), "{name}");
        }
    }
}
