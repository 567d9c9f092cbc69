//! Processes as Linux shows them: who lives, who belongs together, how to signal them safely.
//!
//! A pid alone names nobody: it is given again after its process has gone. So a process is known by
//! pid, start time and boot, and signalled through a pidfd that was opened before the start time
//! was compared; a signal can reach nobody else.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

pub use rustix::process::Signal;

/// A process that cannot be taken for another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Its pid.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
    /// Which boot of the machine.
    pub boot: String,
}

/// What `/proc/<pid>/stat` says, as far as it is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    state: u8,
    parent: u32,
    session: u32,
    start_ticks: u64,
}

/// Reads a stat line; the name in it may hold anything, brackets and spaces too.
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

/// Who has `pid` now.
#[must_use]
pub fn identity(pid: u32) -> Option<Identity> {
    Some(Identity { pid, start_ticks: stat(pid)?.start_ticks, boot: boot() })
}

/// Whether the machine has not been restarted since.
#[must_use]
pub fn same_boot(who: &Identity) -> bool {
    who.boot == boot()
}

/// Whether the process is there and has not ended. One that only waits to be reaped has.
#[must_use]
pub fn is_alive(who: &Identity) -> bool {
    same_boot(who)
        && stat(who.pid)
            .is_some_and(|stat| stat.start_ticks == who.start_ticks && !is_over(stat.state))
}

const fn is_over(state: u8) -> bool {
    matches!(state, b'Z' | b'X' | b'x')
}

/// A handle on the process that no other process can inherit; `None` where it is gone.
#[must_use]
pub fn handle(who: &Identity) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(who.pid).ok()?)?;
    let handle = pidfd_open(pid, PidfdFlags::NONBLOCK).ok()?;
    is_alive(who).then_some(handle)
}

/// Signals one process; `false` where it is gone.
pub fn signal(who: &Identity, signal: Signal) -> bool {
    handle(who).is_some_and(|handle| pidfd_send_signal(handle, signal).is_ok())
}

/// Everything the process has started, however far down and in whatever session, itself left out.
///
/// A supervisor adopts the orphans among them, so nothing a job starts can leave this tree.
#[must_use]
pub fn descendants(ancestor: u32) -> Vec<Identity> {
    let all = snapshot();
    let mut family = BTreeSet::from([ancestor]);
    loop {
        let before = family.len();
        family.extend(
            all.iter()
                .filter(|(_, stat)| family.contains(&stat.parent))
                .map(|(pid, _)| *pid)
                .collect::<Vec<_>>(),
        );
        if family.len() == before {
            break;
        }
    }
    let boot = boot();
    all.iter()
        .filter(|(pid, stat)| *pid != ancestor && family.contains(pid) && !is_over(stat.state))
        .map(|(pid, stat)| Identity {
            pid: *pid,
            start_ticks: stat.start_ticks,
            boot: boot.clone(),
        })
        .collect()
}

/// Kills what is left of the session of a supervisor that is gone.
pub fn kill_session(leader: &Identity) {
    // A live process under the leader's pid is another one: a pid is not given again while a
    // session of that number has members, so the session is gone.
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
    fn a_process_may_have_any_name() {
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
    fn a_pid_given_again_is_another_process() {
        let me = identity(std::process::id()).unwrap();
        assert!(is_alive(&me));
        let before = Identity { start_ticks: me.start_ticks - 1, ..me.clone() };
        assert!(!is_alive(&before) && !signal(&before, Signal::KILL));
        let other_boot = Identity { boot: "another".into(), ..me };
        assert!(!is_alive(&other_boot) && !signal(&other_boot, Signal::KILL));
    }

    #[test]
    fn every_signal_that_may_be_asked_for_is_known() {
        for name in ["SIGUSR1", "SIGUSR2", "SIGTERM", "SIGINT", "SIGHUP", "SIGCONT"] {
            assert_eq!(wattle_common::job::check_signal(name), Ok(name));
            assert!(signal_named(name).is_some(), "{name}");
        }
    }
}
