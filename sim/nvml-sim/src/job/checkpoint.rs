//! The job's checkpoint: its completed steps, in an atomically replaced file.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use wattle_common::{JobId, WorkloadId};

use super::JobError;

/// Contents of a checkpoint.
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
    /// Reads the checkpoint of a directory, if any, and verifies its workload.
    pub(super) fn read(dir: &Path, workload: &WorkloadId) -> Result<Option<Self>, JobError> {
        let path = file(dir);
        let wrong = |reason: String| JobError::Checkpoint { path: path.clone(), reason };
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(wrong(error.to_string())),
        };
        let read: Self = serde_json::from_slice(&bytes).map_err(|error| {
            wrong(format!("invalid checkpoint ({error}); remove it to restart from step 0"))
        })?;
        if read.workload != *workload {
            return Err(wrong(format!(
                "checkpoint of workload {}, expected {workload}; remove it to restart from step 0",
                read.workload
            )));
        }
        Ok(Some(read))
    }

    /// Replaces the checkpoint of a directory atomically.
    pub(super) fn write(&self, dir: &Path) -> Result<(), JobError> {
        let path = file(dir);
        let write = || -> io::Result<()> {
            std::fs::create_dir_all(dir)?;
            let draft = dir.join("simjob.json.new");
            let mut out = File::create(&draft)?;
            out.write_all(&serde_json::to_vec(self)?)?;
            out.sync_all()?;
            std::fs::rename(&draft, &path)?;
            // Flushes the rename.
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
    fn checkpoint_round_trips_and_verifies_its_workload() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (WorkloadId::new("a").unwrap(), WorkloadId::new("b").unwrap());
        assert_eq!(Checkpoint::read(dir.path(), &a).unwrap(), None);
        let written = Checkpoint { job: JobId::new("j").unwrap(), workload: a.clone(), steps: 7 };
        written.write(dir.path()).unwrap();
        assert_eq!(Checkpoint::read(dir.path(), &a).unwrap(), Some(written));
        let error = Checkpoint::read(dir.path(), &b).unwrap_err().to_string();
        assert!(error.contains("remove it"), "{error}");
        std::fs::write(file(dir.path()), b"{").unwrap();
        let error = Checkpoint::read(dir.path(), &a).unwrap_err().to_string();
        assert!(error.contains("remove it"), "{error}");
    }
}
