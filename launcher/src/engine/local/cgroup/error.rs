//! Why jobs cannot be limited, with the remedy.

use std::io;
use std::path::PathBuf;

use wattle_common::messages::NodeFaultKind;

use crate::fault::StartFault;

/// Why a cgroup cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// No cgroups are mounted.
    #[error("no cgroups are mounted at {}: mount them, or remove [job_limits]", .0.display())]
    NotMounted(PathBuf),
    /// The cgroup for the jobs does not exist.
    #[error(
        "the cgroup {} does not exist: start wattle-jobs.service (deploy/systemd), or name another \
         delegated cgroup in job_limits.cgroup", .0.display()
    )]
    NoParent(PathBuf),
    /// The kernel has not this controller there.
    #[error(
        "the cgroup controller `{controller}` is not available in {}: delegate it there (Delegate= of \
         wattle-jobs.service), or remove its limit from [job_limits]", path.display()
    )]
    NoController {
        /// The controller.
        controller: &'static str,
        /// The cgroup.
        path: PathBuf,
    },
    /// A file of the cgroup cannot be used.
    #[error(
        "cannot {operation} {}: run the launcher as root, with ProtectControlGroups=no in its systemd \
         unit, or remove [job_limits]", path.display()
    )]
    Access {
        /// The operation that failed.
        operation: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl StartFault for CgroupError {
    fn node_fault(&self) -> Option<NodeFaultKind> {
        Some(NodeFaultKind::Cgroup)
    }
}
