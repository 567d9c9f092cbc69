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
    /// Slurm job ids in their environments, each with the user of the process: a user can set the id.
    pub slurm_jobs: Vec<SlurmId>,
}

/// A Slurm job id in the environment of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlurmId {
    /// The job id.
    pub job: u32,
    /// The user id of the process.
    pub uid: u32,
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
            &JobProcesses::Slurm { job, uid } => {
                let mut named = self.cgroups.iter().filter_map(|path| slurm_job(path)).peekable();
                if named.peek().is_some() {
                    // A user cannot change a cgroup of Slurm.
                    return named.any(|(named, owner)| {
                        named == job && owner.is_none_or(|owner| owner == uid)
                    });
                }
                self.slurm_jobs.contains(&SlurmId { job, uid })
            }
        }
    }
}

/// The job of a cgroup of Slurm, and its user where the path has one: `/slurm_n1/uid_5/job_42/step_0` gives 42 and 5.
///
/// Users create cgroups of any name below a session of their own, which is in `user.slice`, and below their own job. So
/// the first job of the first cgroup of Slurm counts.
fn slurm_job(path: &str) -> Option<(u32, Option<u32>)> {
    let is_slurm =
        |segment: &&str| segment.starts_with("slurm") || segment.ends_with("slurmstepd.scope");
    let number = |segment: &str, prefix: &str| segment.strip_prefix(prefix)?.parse().ok();
    let above = path.split('/').take_while(|segment| !is_slurm(segment));
    if above.clone().any(|segment| segment == "user.slice") {
        return None;
    }
    let mut below = path.split('/').skip(above.count() + 1);
    let mut owner = None;
    below.find_map(|segment| {
        owner = owner.or_else(|| number(segment, "uid_"));
        Some((number(segment, "job_")?, owner))
    })
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
    fn slurm_jobs_are_found_by_cgroup_and_else_by_the_environment_of_their_owner() {
        let in_cgroup = |path: &str| ProcessOrigin {
            cgroups: vec!["/".to_owned(), path.to_owned()],
            slurm_jobs: vec![SlurmId { job: 43, uid: 5 }],
            ..ProcessOrigin::default()
        };
        let job = |job, uid| JobProcesses::Slurm { job, uid };
        let v1 = in_cgroup("/slurm_n1/uid_5/job_42/step_0/task_0");
        assert!(v1.is_of(&job(42, 5)) && !v1.is_of(&job(4, 5)));
        assert!(!v1.is_of(&job(43, 5)), "the environment is the user's, the cgroup is not");
        let v2 = in_cgroup("/system.slice/n1_slurmstepd.scope/job_42/step_0/user/task_0");
        assert!(v2.is_of(&job(42, 5)) && !v2.is_of(&job(43, 5)));
        assert!(!v1.is_of(&job(42, 6)), "another user's job");
        // A session of its own, and a step that a job has created, have the names that their user wants.
        let session = "/user.slice/user-5.slice/user@5.service/app.slice/slurm/uid_6/job_42/step_0";
        for claimed in [session, "/user.slice/user-5.slice/job_42", "/app.slice/x.scope/job_42"] {
            assert!(!in_cgroup(claimed).is_of(&job(42, 6)), "{claimed}");
            assert!(in_cgroup(claimed).is_of(&job(43, 5)), "its environment counts: {claimed}");
        }
        let nested = in_cgroup("/slurm/uid_5/job_43/step_0/task_0/slurm/uid_6/job_42");
        assert!(!nested.is_of(&job(42, 6)) && nested.is_of(&job(43, 5)));
        // Slurm 26.05 with cgroup v2: the path has another key.
        let keyed = in_cgroup("/system.slice/slurmstepd.scope/s1ABCDEF/step_0");
        assert!(keyed.is_of(&job(43, 5)));
        assert!(!keyed.is_of(&job(43, 6)), "another user's job");
    }

    #[test]
    fn sessions_and_whole_cgroup_segments_match() {
        let origin = ProcessOrigin {
            sessions: vec![7, 1],
            cgroups: vec!["/slurm_n1/uid_5/job_42/step_0".into(), "/../kubepods/pod1a/x".into()],
            slurm_jobs: Vec::new(),
        };
        let cgroup = |path: &str| origin.is_of(&JobProcesses::Cgroup(path.to_owned()));
        assert!(origin.is_of(&JobProcesses::Session(1)));
        assert!(!origin.is_of(&JobProcesses::Session(42)));
        assert!(cgroup("job_42") && cgroup("uid_5/job_42") && cgroup("/kubepods/pod1a"));
        assert!(!cgroup("job_4") && !cgroup("uid_5/step_0") && !cgroup("") && !cgroup("/"));
    }
}
