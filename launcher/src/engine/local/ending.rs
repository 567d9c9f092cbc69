//! Ends every process of a job whose supervisor this process is, without the help of a cgroup.
//!
//! The supervisor is the subreaper of the job: a process whose parent ends becomes its child, in whatever
//! session it is. So the job is over exactly when the supervisor has no child left. A process that starts
//! another one and exits at once is gone before a list of all processes shows it. So the newest process numbers
//! are tried one by one, which takes microseconds: the kernel states of each whether it is a child.

use std::fs;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::{Pid, getpgid, getpgrp, getpid};
use rustix::event::{Timespec, poll};

use super::process;

/// Number of the newest process numbers that are tried.
const NEWEST: i32 = 1_024;
/// Pause after a round in which no process has ended, wall time: the short one in the first rounds.
const PAUSES: [Timespec; 2] =
    [Timespec { tv_sec: 0, tv_nsec: 200_000 }, Timespec { tv_sec: 0, tv_nsec: 20_000_000 }];
/// Rounds with the short pause.
const ROUNDS_SHORT: u32 = 1_000;
/// Rounds in succession without an end after which the processes left count as hung: about a minute.
const ROUNDS_MAX: u32 = ROUNDS_SHORT + 3_000;
/// Rounds between two lists of all processes.
const LIST_EVERY: u32 = 8;

/// Which ended processes of the job there were in a round.
enum Reaped {
    Some,
    None,
    /// No process of the job is left.
    All,
}

/// Kills and reaps the descendants of this process until none is left. Returns `false` if some do not end:
/// they hang in the kernel (a driver, a network disk), or belong to another user.
pub(super) fn kill_descendants() -> bool {
    let me = getpid().as_raw().unsigned_abs();
    run_first();
    let mut quiet = 0;
    for round in 0_u32.. {
        if quiet >= ROUNDS_MAX {
            break;
        }
        if round.is_multiple_of(LIST_EVERY) {
            for descendant in process::descendants(me) {
                process::signal(&descendant, process::Signal::KILL);
            }
        }
        kill_newest_children();
        match reap() {
            Reaped::All => return true,
            Reaped::Some => quiet = 0,
            Reaped::None => {
                quiet += 1;
                let _ = poll(&mut [], Some(&PAUSES[usize::from(quiet > ROUNDS_SHORT)]));
            }
        }
    }
    false
}

/// Runs this process ahead of those that it kills, where that is permitted: a job that starts processes in new
/// sessions otherwise leaves it almost no time, and the ended ones fill the table of processes.
fn run_first() {
    let _ = rustix::process::nice(-20);
    // Each session is an autogroup; `nice` compares processes of one autogroup only, see sched(7).
    let _ = fs::write("/proc/self/autogroup", "-20");
}

/// Kills the children of this process that have one of the newest process numbers, with their process groups.
fn kill_newest_children() {
    let Some(newest) = newest_pid() else { return };
    for pid in ((newest - NEWEST).max(2)..=newest).map(Pid::from_raw) {
        let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        // An error: it is not a child. A child keeps its number and that of its group until it is reaped, so no
        // other process can have them.
        if waitid(Id::Pid(pid), look) == Ok(WaitStatus::StillAlive) {
            if let Ok(group) = getpgid(Some(pid))
                && group != getpgrp()
            {
                let _ = killpg(group, Signal::SIGKILL);
            }
            let _ = kill(pid, Signal::SIGKILL);
        }
    }
}

/// The number of the process that was started last: the last field of the file, as proc(5) describes it.
fn newest_pid() -> Option<i32> {
    fs::read_to_string("/proc/loadavg").ok()?.split_ascii_whitespace().next_back()?.parse().ok()
}

/// Reaps the children that have ended.
fn reap() -> Reaped {
    let mut reaped = Reaped::None;
    loop {
        match waitpid(Pid::from_raw(-1), Some(WaitPidFlag::WNOHANG)) {
            Err(Errno::ECHILD) => return Reaped::All,
            Ok(WaitStatus::StillAlive) => return reaped,
            // An error: a signal without a name has ended it. It is reaped all the same.
            Ok(_) | Err(_) => reaped = Reaped::Some,
        }
    }
}
