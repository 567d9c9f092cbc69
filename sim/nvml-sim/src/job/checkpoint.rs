//! The job's checkpoint: how many steps it has done, in a file that is whole or absent.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use wattle_common::{JobId, WorkloadId};

use super::JobError;

/// What is kept of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Checkpoint {
    pub(super) job: JobId,
    pub(super) workload: WorkloadId,
    pub(super) steps: u64,
}

fn file(dir: &Path) -> PathBuf {
    dir.join("simjob.json")
}

impl Checkpoint {
    /// Reads the folder's checkpoint, where there is one, and sees that it is this workload's.
    pub(super) fn read(dir: &Path, workload: &WorkloadId) -> Result<Option<Self>, JobError> {
        let path = file(dir);
        let wrong = |reason: String| JobError::Checkpoint { path: path.clone(), reason };
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(wrong(error.to_string())),
        };
        let read: Self = serde_json::from_slice(&bytes).map_err(|error| {
            wrong(format!("is no checkpoint ({error}); remove it to start from the beginning"))
        })?;
        if read.workload != *workload {
            return Err(wrong(format!(
                "is a checkpoint of {}, not of {workload}; remove it to start from the beginning",
                read.workload
            )));
        }
        Ok(Some(read))
    }

    /// Writes the folder's checkpoint; whoever reads it sees the old one or this one.
    pub(super) fn write(&self, dir: &Path) -> Result<(), JobError> {
        let path = file(dir);
        let write = || -> io::Result<()> {
            std::fs::create_dir_all(dir)?;
            let draft = dir.join("simjob.json.new");
            let mut out = File::create(&draft)?;
            out.write_all(&serde_json::to_vec(self)?)?;
            out.sync_all()?;
            std::fs::rename(&draft, &path)?;
            // The rename itself must reach the disk.
            File::open(dir)?.sync_all()
        };
        write()
            .map_err(|error| JobError::Checkpoint { path: path.clone(), reason: error.to_string() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_comes_back_and_knows_its_workload() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (WorkloadId::new("a").unwrap(), WorkloadId::new("b").unwrap());
        assert_eq!(Checkpoint::read(dir.path(), &a).unwrap(), None);
        let kept = Checkpoint { job: JobId::new("j").unwrap(), workload: a.clone(), steps: 7 };
        kept.write(dir.path()).unwrap();
        assert_eq!(Checkpoint::read(dir.path(), &a).unwrap(), Some(kept));
        let error = Checkpoint::read(dir.path(), &b).unwrap_err().to_string();
        assert!(error.contains("remove it"), "{error}");
        std::fs::write(file(dir.path()), b"{").unwrap();
        let error = Checkpoint::read(dir.path(), &a).unwrap_err().to_string();
        assert!(error.contains("remove it"), "{error}");
    }
}
