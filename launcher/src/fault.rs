//! Whose fault it is that a run was not started: the job's or the node's.
//!
//! What Wattle itself needs for a start (its state, its folders, its program, processes, cgroups) is the
//! node's. What the job names (its program, its working folder, its owner's account and disk quota) is the
//! job's, whatever the system's error is: a job must not be able to close a node to others.

use std::error::Error;
use std::io;

use rustix::io::Errno;
use wattle_common::messages::NodeFaultKind;
use wattle_runtime::shell::chain;

use crate::{Fault, Outcome};

/// An error of a start.
pub(crate) trait StartFault: Error + Sized + 'static {
    /// The kind of the node's fault; `None`: the job is the cause.
    fn node_fault(&self) -> Option<NodeFaultKind>;

    /// The end of a run that this error kept from starting.
    fn outcome(&self) -> Outcome {
        let error = chain(self);
        match self.node_fault() {
            Some(kind) => Outcome::Prevented(Fault { kind, error }),
            None => Outcome::Refused(error),
        }
    }
}

/// The kind of a node's fault, by the system's error.
pub(crate) fn kind_of(error: &io::Error) -> NodeFaultKind {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    if matches!(errno, Some(Errno::IO | Errno::STALE | Errno::FBIG)) {
        return NodeFaultKind::Disk;
    }
    if matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::AGAIN)) {
        return NodeFaultKind::Resources;
    }
    match error.kind() {
        io::ErrorKind::StorageFull
        | io::ErrorKind::QuotaExceeded
        | io::ErrorKind::ReadOnlyFilesystem => NodeFaultKind::Disk,
        io::ErrorKind::PermissionDenied => NodeFaultKind::Permission,
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => NodeFaultKind::Missing,
        io::ErrorKind::OutOfMemory => NodeFaultKind::Resources,
        _ => NodeFaultKind::Other,
    }
}

/// The kind of a node's fault for a file or folder of one job; `None`: its owner's disk quota is used up, or
/// something else has its name.
pub(crate) fn kind_of_jobs_file(error: &io::Error) -> Option<NodeFaultKind> {
    let is_jobs = matches!(
        error.kind(),
        io::ErrorKind::QuotaExceeded | io::ErrorKind::AlreadyExists | io::ErrorKind::IsADirectory
    );
    (!is_jobs).then(|| kind_of(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_system_error_has_its_kind() {
        let kind = |errno: Errno| kind_of(&io::Error::from(errno));
        for (errno, expected) in [
            (Errno::NOSPC, NodeFaultKind::Disk),
            (Errno::ROFS, NodeFaultKind::Disk),
            (Errno::DQUOT, NodeFaultKind::Disk),
            (Errno::IO, NodeFaultKind::Disk),
            (Errno::STALE, NodeFaultKind::Disk),
            (Errno::ACCESS, NodeFaultKind::Permission),
            (Errno::PERM, NodeFaultKind::Permission),
            (Errno::NOENT, NodeFaultKind::Missing),
            (Errno::NOMEM, NodeFaultKind::Resources),
            (Errno::AGAIN, NodeFaultKind::Resources),
            (Errno::MFILE, NodeFaultKind::Resources),
            (Errno::NFILE, NodeFaultKind::Resources),
            (Errno::XDEV, NodeFaultKind::Other),
        ] {
            assert_eq!(kind(errno), expected, "{errno}");
        }
        let of_job = |errno: Errno| kind_of_jobs_file(&io::Error::from(errno));
        assert_eq!((of_job(Errno::DQUOT), of_job(Errno::ISDIR)), (None, None));
        assert_eq!(of_job(Errno::NOSPC), Some(NodeFaultKind::Disk));
    }
}
