//! Whether the processes of a simulated cluster sleep, as the kernel sees them.
//!
//! A process is of the cluster if its environment names the cluster's clock or one of its nodes: the services,
//! the NATS server, jobs and their supervisors, from the instant at which they are forked. Further ones are given
//! by their ids. The cluster sleeps if none of their threads runs, can run or waits for a disk. A message makes its
//! reader runnable when it is written to the socket, and a timer makes its owner runnable when it expires, so no
//! process has to cooperate. Work that moves between two processes while they are read can be missed; the clock
//! then runs for one grant too many.
//!
//! A look reads one file of the kernel if the whole machine is quiet, and otherwise the state of each thread
//! of the cluster, twice: a message could pass from a thread that was not yet read to one that was.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
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
    /// The number that the kernel gave last to a process or thread, before the last search for new ones.
    newest: Option<u32>,
}

/// A process of the cluster.
#[derive(Debug, Default)]
struct Member {
    /// CPU time, in ticks, when it was first seen at work since it slept.
    works_since: Option<u64>,
    /// The open state of each of its threads: to open a file of the kernel costs more than to read it.
    threads: BTreeMap<u32, File>,
    /// Whether a thread's state could not be opened, as with too many open files.
    unseen: bool,
}

impl Member {
    /// Opens the states of threads that have started since the last look.
    fn find_threads(&mut self, pid: u32) {
        self.unseen = false;
        for thread in numbers(&format!("/proc/{pid}/task")) {
            let Entry::Vacant(place) = self.threads.entry(thread) else { continue };
            match File::open(format!("/proc/{pid}/task/{thread}/stat")) {
                Ok(stat) => {
                    place.insert(stat);
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                // It may be at work, and is looked for again.
                Err(_) => self.unseen = true,
            }
        }
    }

    /// Whether a thread runs, can run or waits for a disk.
    fn is_at_work(&mut self) -> bool {
        let mut works = self.unseen;
        self.threads.retain(|_, stat| {
            // The name has at most 15 bytes, and the state follows it.
            let mut line = [0; 64];
            // A thread that has ended can no longer be read.
            let Ok(length) = stat.read_at(&mut line, 0) else { return false };
            works |= matches!(state_of(&line[..length]), Some(b'R' | b'D'));
            true
        });
        works
    }
}

/// The entries of a folder of the kernel that are numbers.
fn numbers(folder: &str) -> impl Iterator<Item = u32> + use<> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
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
            newest: None,
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
        // Read first: what starts during the search leads to another one.
        let newest = newest_number();
        let has_new = newest.is_none() || newest != self.newest;
        self.newest = newest;
        if has_new {
            self.list_processes();
        }
        self.find_members();
        for (pid, member) in &mut self.members {
            if has_new || member.unseen {
                member.find_threads(*pid);
            }
        }
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
        if !member.is_at_work() {
            member.works_since = None;
            return false;
        }
        let used = fs::read(format!("/proc/{pid}/stat")).ok().and_then(|line| ticks_of(&line));
        let used = used.unwrap_or_default();
        let since = *member.works_since.get_or_insert(used);
        used.saturating_sub(since) < COMPUTES_AFTER.as_secs() * TICKS_PER_S
    }

    /// Lists the processes of the machine, and forgets those that have ended.
    fn list_processes(&mut self) {
        let pids: BTreeSet<u32> = numbers("/proc").collect();
        if pids.is_empty() {
            // With too many open files nothing can be listed; the processes found before remain.
            self.newest = None;
            return;
        }
        self.members.retain(|pid, _| pids.contains(pid));
        self.others.retain(|pid, _| pids.contains(pid));
        for pid in pids {
            if !self.members.contains_key(&pid) {
                self.others.entry(pid).or_default();
            }
        }
    }

    /// Finds members among the processes that are not known yet to be of another cluster.
    fn find_members(&mut self) {
        let unknown = self.others.iter().filter(|(_, looks)| **looks < LOOKS_UNTIL_KNOWN);
        let unknown: Vec<u32> = unknown.map(|(pid, _)| *pid).collect();
        for pid in unknown {
            if self.is_member(pid) {
                self.others.remove(&pid);
                // Its threads are found in this look.
                self.members.insert(pid, Member { unseen: true, ..Member::default() });
            } else if let Some(looks) = self.others.get_mut(&pid) {
                *looks += 1;
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
    let Ok(stat) = fs::read_to_string("/proc/stat") else { return false };
    let count = |name: &str| {
        let line = stat.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse::<u32>().ok()
    };
    // The thread that reads is one of those that run.
    count("procs_running ").is_some_and(|running| running <= 1)
        && count("procs_blocked ") == Some(0)
}

/// The number that was given last to a process or thread: the last field of the file, as proc_loadavg(5)
/// describes it.
fn newest_number() -> Option<u32> {
    let line = fs::read_to_string("/proc/loadavg").ok()?;
    line.split_ascii_whitespace().next_back()?.parse().ok()
}

/// What follows the program's name in a line of `/proc/PID/stat`. The name is in parentheses and may contain any
/// byte.
fn behind_name(line: &[u8]) -> &[u8] {
    line.iter().rposition(|byte| *byte == b')').map_or(&[], |end| &line[end + 1..])
}

/// The state: `R` runs or can run, `D` waits for a disk, others sleep, have stopped or ended.
fn state_of(line: &[u8]) -> Option<u8> {
    behind_name(line).trim_ascii_start().first().copied()
}

/// CPU time in user and kernel mode, ticks: fields 14 and 15 of the line, of which the state is field 3.
fn ticks_of(line: &[u8]) -> Option<u64> {
    let fields = std::str::from_utf8(behind_name(line)).ok()?.split_ascii_whitespace();
    let mut times = fields.skip(11).map(str::parse::<u64>);
    Some(times.next()?.ok()? + times.next()?.ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_a_thread_is_read_behind_any_name() {
        let line = b"42 (a) R (b)) S 1 42 42 0 -1 4194304 100 0 0 0 17 5 0 0 20 0 3 0 1234 0";
        assert_eq!((state_of(line), ticks_of(line)), (Some(b'S'), Some(22)));
        assert_eq!((state_of(b""), ticks_of(b"1 (x) R")), (None, None));
    }

    #[test]
    fn this_test_runs() {
        let pid = std::process::id();
        let mut own = Member::default();
        own.find_threads(pid);
        assert!(own.is_at_work());
        let line = fs::read(format!("/proc/{pid}/stat")).unwrap();
        assert!(ticks_of(&line).is_some());
    }
}
