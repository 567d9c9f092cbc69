//! Finds the job of a process, whatever engine started it.
//!
//! A launcher's report describes the processes of each job ([`JobProcesses`]). A job may start
//! workers in sessions of their own, as torchrun does; they still descend from the job's
//! processes. So a description is compared with a process and all its ancestors.

#[cfg(feature = "service")]
pub(crate) mod reader;

use wattle_common::messages::JobProcesses;

/// The sessions and cgroups of a process and its ancestors; empty if they could not be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessOrigin {
    /// Session ids, the process's own first.
    pub sessions: Vec<u32>,
    /// Cgroup paths, the process's own first.
    pub cgroups: Vec<String>,
}

impl ProcessOrigin {
    /// Whether the process, or one of its ancestors, is one of `processes`.
    #[must_use]
    pub fn is_of(&self, processes: &JobProcesses) -> bool {
        match processes {
            JobProcesses::Session(session) => self.sessions.contains(session),
            JobProcesses::Cgroup(segments) => {
                self.cgroups.iter().any(|path| contains_segments(path, segments))
            }
        }
    }
}

fn contains_segments(path: &str, segments: &str) -> bool {
    fn split(path: &str) -> Vec<&str> {
        path.split('/').filter(|segment| !segment.is_empty()).collect()
    }
    let segments = split(segments);
    !segments.is_empty() && split(path).windows(segments.len()).any(|part| part == segments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_and_whole_cgroup_segments_match() {
        let origin = ProcessOrigin {
            sessions: vec![7, 1],
            cgroups: vec!["/slurm_n1/uid_5/job_42/step_0".into(), "/../kubepods/pod1a/x".into()],
        };
        let cgroup = |path: &str| origin.is_of(&JobProcesses::Cgroup(path.to_owned()));
        assert!(origin.is_of(&JobProcesses::Session(1)));
        assert!(!origin.is_of(&JobProcesses::Session(42)));
        assert!(cgroup("job_42") && cgroup("uid_5/job_42") && cgroup("/kubepods/pod1a"));
        assert!(!cgroup("job_4") && !cgroup("uid_5/step_0") && !cgroup("") && !cgroup("/"));
    }
}
