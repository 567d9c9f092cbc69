//! The sender of a progress line, as the kernel reports it.
//!
//! Any local user may write to the jobs' socket. A line counts for a job only if its sender is one of the
//! job's processes, or a process of the same user as an earlier verified sender: a short-lived process may
//! have ended before it is looked up. Lines of root are trusted, because root can do all that a job can.

use wattle_common::messages::JobProcesses;

use crate::process_tree::ProcessOrigin;

/// The sender of a progress line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sender {
    /// Its user id; `None`: the kernel reported none.
    pub uid: Option<u32>,
    /// The sessions and cgroups of its process and ancestors; empty if it has ended.
    pub origin: ProcessOrigin,
}

impl Sender {
    /// A process of root.
    #[must_use]
    pub fn root() -> Self {
        Self { uid: Some(0), origin: ProcessOrigin::default() }
    }

    /// Whether the sender is one of these processes.
    #[must_use]
    pub(crate) fn is_of(&self, processes: Option<&JobProcesses>) -> bool {
        processes.is_some_and(|own| self.origin.is_of(own))
    }

    /// Whether a line of this sender counts for a job with these processes. `verified` is the user of an
    /// earlier verified sender.
    #[must_use]
    pub(crate) fn speaks_for(
        &self,
        processes: Option<&JobProcesses>,
        verified: Option<u32>,
    ) -> bool {
        self.is_of(processes) || self.uid == Some(0) || (self.uid.is_some() && self.uid == verified)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_processes_of_the_job_and_its_user_speak_for_it() {
        let from = |uid, session| Sender {
            uid: Some(uid),
            origin: ProcessOrigin { sessions: vec![session], cgroups: vec![], slurm_jobs: vec![] },
        };
        let own = JobProcesses::Session(40);
        assert!(from(1_000, 40).speaks_for(Some(&own), None));
        assert!(!from(1_000, 41).speaks_for(Some(&own), None));
        assert!(from(1_000, 41).speaks_for(Some(&own), Some(1_000)), "of the verified user");
        assert!(!from(1_001, 41).speaks_for(Some(&own), Some(1_000)));
        assert!(!from(1_000, 40).speaks_for(None, None), "unknown processes");
        assert!(Sender::root().speaks_for(Some(&own), None));
        assert!(!Sender::default().speaks_for(Some(&own), Some(1_000)));
    }
}
