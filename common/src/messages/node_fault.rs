//! Faults of a node that keep its launcher from starting jobs.

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// A fault of a node that keeps its launcher from starting jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFault {
    /// Its kind.
    pub kind: NodeFaultKind,
    /// The cause: the file, program or system call that failed, and the system's error.
    pub error: String,
    /// When it was first noticed, by the node's clock.
    pub since_us: Timestamp,
}

/// The kind of a node's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeFaultKind {
    /// A disk is full, read-only or failing.
    Disk,
    /// The launcher has no permission.
    Permission,
    /// A program, folder or file of Wattle is missing.
    Missing,
    /// The limits of jobs cannot be set.
    Cgroup,
    /// The node has no memory, processes or open files left.
    Resources,
    /// Another fault, or one of a newer version.
    #[serde(other)]
    Other,
}

impl NodeFaultKind {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Disk, Self::Permission, Self::Missing, Self::Cgroup, Self::Resources, Self::Other];

    /// What an operator does about it, on the node.
    #[must_use]
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::Disk => {
                "free the disk of the launcher's state_dir, log_dir and checkpoint_dir (df -h, df -i), or \
                 mount it writable"
            }
            Self::Permission => {
                "give the launcher's user its state_dir, log_dir and checkpoint_dir, and run it as root if \
                 jobs run under their owners' accounts"
            }
            Self::Missing => {
                "install wattle-launcher again and restart it; create the folders that launcher.toml names"
            }
            Self::Cgroup => {
                "start wattle-jobs.service, or correct [job_limits] in launcher.toml (docs/operating.md)"
            }
            Self::Resources => {
                "end processes that use the node's memory, or raise its limits of processes and open files"
            }
            Self::Other => "read the log of wattle-launcher on the node",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_of_a_newer_version_is_another_fault() {
        for kind in NodeFaultKind::ALL {
            let text = serde_json::to_string(&kind).unwrap();
            assert_eq!(serde_json::from_str::<NodeFaultKind>(&text).unwrap(), kind);
            assert!(kind.remedy().len() > 20, "{text}");
        }
        assert_eq!(
            serde_json::from_str::<NodeFaultKind>("\"meltdown\"").unwrap(),
            NodeFaultKind::Other
        );
    }
}
