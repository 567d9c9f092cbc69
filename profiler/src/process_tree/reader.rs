//! Reads the origins of processes from `/proc`.
//!
//! The pids that NVML reports are the node's, so the profiler must run in the node's own process
//! namespace.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;

use super::{ProcessOrigin, SlurmId};

/// Most ancestors that are read: shells and launchers within launchers, with room to spare.
const ANCESTORS_MAX: usize = 16;

/// Reads the origin of each process on a GPU once.
#[derive(Default)]
pub(crate) struct OriginReader {
    known: BTreeMap<u32, Arc<ProcessOrigin>>,
}

impl OriginReader {
    /// The origin of `pid`; empty if the process has ended or is hidden.
    pub(crate) fn origin(&mut self, pid: u32) -> Arc<ProcessOrigin> {
        if let Some(origin) = self.known.get(&pid) {
            return Arc::clone(origin);
        }
        let origin = Arc::new(read(pid));
        // An unreadable process is read again: it may just have started.
        if !origin.sessions.is_empty() {
            self.known.insert(pid, Arc::clone(&origin));
        }
        origin
    }

    /// Forgets every process for which `on_gpu` is false, because Linux reuses pids.
    pub(crate) fn retain(&mut self, on_gpu: impl Fn(u32) -> bool) {
        self.known.retain(|pid, _| on_gpu(*pid));
    }
}

/// The origin of `pid` now; empty if the process has ended or is hidden.
pub(crate) fn read(pid: u32) -> ProcessOrigin {
    let mut origin = ProcessOrigin::default();
    let mut at = pid;
    for _ in 0..ANCESTORS_MAX {
        if at <= 1 {
            break;
        }
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{at}/stat")) else { break };
        let Some((parent, session)) = parse_stat(&stat) else { break };
        if !origin.sessions.contains(&session) {
            origin.sessions.push(session);
        }
        let cgroups = std::fs::read_to_string(format!("/proc/{at}/cgroup")).unwrap_or_default();
        for path in cgroup_paths(&cgroups) {
            if !origin.cgroups.iter().any(|known| known == path) {
                origin.cgroups.push(path.to_owned());
            }
        }
        if let Some(id) = slurm_id(at).filter(|id| !origin.slurm_jobs.contains(id)) {
            origin.slurm_jobs.push(id);
        }
        at = parent;
    }
    origin
}

/// The Slurm job in the environment of `pid`; `None` if there is none, or it is hidden.
fn slurm_id(pid: u32) -> Option<SlurmId> {
    let path = format!("/proc/{pid}/environ");
    let uid = std::fs::metadata(&path).ok()?.uid();
    Some(SlurmId { job: slurm_job_id(&std::fs::read(&path).ok()?)?, uid })
}

/// The value of `SLURM_JOB_ID` in an environment of zero-terminated entries.
fn slurm_job_id(environment: &[u8]) -> Option<u32> {
    let mut entries = environment.split(|byte| *byte == 0);
    let value = entries.find_map(|entry| entry.strip_prefix(b"SLURM_JOB_ID="))?;
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// Parent and session: the second and fourth field after the command name, which is in
/// parentheses and may contain any character.
fn parse_stat(stat: &str) -> Option<(u32, u32)> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    let parent = fields.nth(1)?.parse().ok()?;
    let session = fields.nth(1)?.parse().ok()?;
    Some((parent, session))
}

/// The paths in `/proc/<pid>/cgroup`: `hierarchy:controllers:path` on each line.
fn cgroup_paths(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| line.splitn(3, ':').nth(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_lines_with_any_command_name_are_parsed() {
        assert_eq!(parse_stat("7 (a) b) (c) S 3 7 5 0 -1"), Some((3, 5)));
        assert_eq!(parse_stat("7 (sh) S 3"), None);
        assert_eq!(parse_stat(""), None);
    }

    #[test]
    fn slurm_job_ids_are_read_from_environments() {
        let id = |text: &str| slurm_job_id(text.as_bytes());
        assert_eq!(id("A=1\0SLURM_JOB_ID=42\0B=SLURM_JOB_ID=7\0"), Some(42));
        assert_eq!(id("B=SLURM_JOB_ID=7\0XSLURM_JOB_ID=8"), None);
        assert_eq!(id("SLURM_JOB_ID=-1"), None);
        assert_eq!(id(""), None);
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .env("SLURM_JOB_ID", "4242")
            .spawn()
            .unwrap();
        // The kernel fills in the environment shortly after the start.
        let is_found = || read(child.id()).slurm_jobs.iter().any(|id| id.job == 4_242);
        let found = (0..1_000_000).any(|_| is_found());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found);
    }

    #[test]
    fn cgroup_paths_of_both_versions_are_parsed() {
        let text = "12:devices:/slurm/job_1\n3:name=systemd:/a:b\n0::/user.slice\nnonsense\n";
        let paths: Vec<&str> = cgroup_paths(text).collect();
        assert_eq!(paths, ["/slurm/job_1", "/a:b", "/user.slice"]);
    }

    #[test]
    fn origins_are_read_once_and_forgotten() {
        let mut reader = OriginReader::default();
        let own = std::process::id();
        let origin = reader.origin(own);
        assert!(!origin.sessions.is_empty());
        assert!(Arc::ptr_eq(&origin, &reader.origin(own)));
        assert_eq!(read(u32::MAX), ProcessOrigin::default());
        reader.retain(|_| false);
        assert!(reader.known.is_empty());
    }
}
