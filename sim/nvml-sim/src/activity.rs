//! Whether the processes of a simulated cluster sleep, as the kernel sees them.
//!
//! A process is of the cluster if its environment names the cluster's clock or one of its nodes: the services,
//! the NATS server, jobs and their supervisors, from the instant at which they are forked. Further ones are given
//! by their ids. The cluster sleeps if
//! none of their threads runs, can run or waits for a disk. A message that is on its way makes its reader
//! runnable when it is written to the socket, a timer does when it expires, so nothing that happens on this
//! machine is missed, and no process has to cooperate.
//!
//! A look reads one file of the kernel if the whole machine is quiet, and otherwise the state of each thread
//! of the cluster, twice: a message could pass from a thread that was not yet read to one that was.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use wattle_common::env;

/// A process that computes for this long without a pause is not waited for until it sleeps again: a program
/// that never sleeps must not stop the clock. CPU time.
const COMPUTES_AFTER: Duration = Duration::from_secs(2);
/// The kernel's unit of CPU time in `/proc/PID/stat`: USER_HZ is 100 on every Linux architecture of today.
const TICKS_PER_S: u64 = 100;
/// A process of another cluster may still become one of this by exec, until this many looks have seen it.
const LOOKS_UNTIL_KNOWN: u32 = 200;

/// Looks at the processes of one cluster.
#[derive(Debug)]
pub(crate) struct Activity {
    /// `NAME=VALUE` of the environment, of which a process of the cluster has at least one.
    marks: Vec<Vec<u8>>,
    members: BTreeMap<u32, Member>,
    /// Processes outside the cluster, with the number of looks that have seen them.
    others: BTreeMap<u32, u32>,
    /// The member that was last seen at work: it is read first, because it probably still works.
    busy: Option<u32>,
}

/// A process of the cluster.
#[derive(Debug, Default)]
struct Member {
    /// CPU time, in ticks, when it was first seen at work since it slept.
    works_since: Option<u64>,
}

impl Activity {
    /// The processes whose environment names one of these nodes, as node or as clock, and `others`.
    #[must_use]
    pub(crate) fn of(nodes: &[PathBuf], others: &[u32]) -> Self {
        let mark = |name: &str, path: &PathBuf| {
            [name.as_bytes(), b"=", path.as_os_str().as_encoded_bytes()].concat()
        };
        let marks =
            nodes.iter().flat_map(|path| [mark(env::CLOCK, path), mark(env::SIM_NODE, path)]);
        Self {
            marks: marks.collect(),
            members: others.iter().map(|pid| (*pid, Member::default())).collect(),
            others: BTreeMap::from([(std::process::id(), LOOKS_UNTIL_KNOWN)]),
            busy: None,
        }
    }

    /// Whether all processes of the cluster sleep.
    pub(crate) fn all_asleep(&mut self) -> bool {
        if machine_is_quiet() {
            self.members.values_mut().for_each(|member| member.works_since = None);
            return true;
        }
        if let Some(pid) = self.busy
            && self.works(pid)
        {
            return false;
        }
        self.find_members();
        self.members_sleep() && self.members_sleep()
    }

    fn members_sleep(&mut self) -> bool {
        let pids: Vec<u32> = self.members.keys().copied().collect();
        let busy = pids.into_iter().find(|pid| self.works(*pid));
        self.busy = busy;
        busy.is_none()
    }

    /// Whether a process works, and has done so for less than [`COMPUTES_AFTER`].
    fn works(&mut self, pid: u32) -> bool {
        let Some(member) = self.members.get_mut(&pid) else { return false };
        let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
        let works = threads.flatten().any(|thread| {
            let stat = thread.path().join("stat");
            read(&stat).is_some_and(|stat| matches!(state_of(&stat), Some(b'R' | b'D')))
        });
        if !works {
            member.works_since = None;
            return false;
        }
        let used = read(Path::new(&format!("/proc/{pid}/stat"))).and_then(|stat| ticks_of(&stat));
        let used = used.unwrap_or_default();
        let since = *member.works_since.get_or_insert(used);
        used.saturating_sub(since) < COMPUTES_AFTER.as_secs() * TICKS_PER_S
    }

    /// Finds new processes of the cluster and forgets those that have ended.
    fn find_members(&mut self) {
        let Ok(entries) = fs::read_dir("/proc") else { return };
        let pids: BTreeSet<u32> = entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect();
        self.members.retain(|pid, _| pids.contains(pid));
        self.others.retain(|pid, _| pids.contains(pid));
        for pid in pids {
            let looks = self.others.get(&pid).copied().unwrap_or_default();
            if self.members.contains_key(&pid) || looks >= LOOKS_UNTIL_KNOWN {
                continue;
            }
            if self.is_member(pid) {
                self.others.remove(&pid);
                self.members.insert(pid, Member::default());
            } else {
                self.others.insert(pid, looks + 1);
            }
        }
    }

    /// Whether the environment of a process has one of the marks. One that cannot be read has none.
    fn is_member(&self, pid: u32) -> bool {
        let Ok(environment) = fs::read(format!("/proc/{pid}/environ")) else { return false };
        let mut variables = environment.split(|byte| *byte == 0);
        variables.any(|variable| self.marks.iter().any(|mark| mark == variable))
    }
}

/// Whether no other thread of this machine runs, can run or waits for a disk.
fn machine_is_quiet() -> bool {
    let Some(stat) = read(Path::new("/proc/stat")) else { return false };
    let count = |name: &str| {
        let line = stat.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse::<u32>().ok()
    };
    // The thread that reads is one of those that run.
    count("procs_running ").is_some_and(|running| running <= 1)
        && count("procs_blocked ") == Some(0)
}

/// A file of the kernel. A program may have any name, so its text need not be UTF-8.
fn read(path: &Path) -> Option<String> {
    Some(String::from_utf8_lossy(&fs::read(path).ok()?).into_owned())
}

/// The fields of `/proc/PID/stat` after the program's name, which is in parentheses and may contain any byte.
fn fields(stat: &str) -> impl Iterator<Item = &str> {
    stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_ascii_whitespace()
}

/// The state: `R` runs or can run, `D` waits for a disk, others sleep, have stopped or ended.
fn state_of(stat: &str) -> Option<u8> {
    fields(stat).next()?.bytes().next()
}

/// CPU time in user and kernel mode, ticks: fields 14 and 15 of the line, of which the state is field 3.
fn ticks_of(stat: &str) -> Option<u64> {
    let mut times = fields(stat).skip(11).map(str::parse::<u64>);
    Some(times.next()?.ok()? + times.next()?.ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_a_thread_is_read_behind_any_name() {
        let line = "42 (a) R (b)) S 1 42 42 0 -1 4194304 100 0 0 0 17 5 0 0 20 0 3 0 1234 0";
        assert_eq!((state_of(line), ticks_of(line)), (Some(b'S'), Some(22)));
        assert_eq!((state_of(""), ticks_of("1 (x) R")), (None, None));
    }

    #[test]
    fn this_test_runs() {
        let own = PathBuf::from("/proc/thread-self/stat");
        assert_eq!(read(&own).as_deref().and_then(state_of), Some(b'R'));
        assert!(read(&own).as_deref().and_then(ticks_of).is_some());
    }
}
