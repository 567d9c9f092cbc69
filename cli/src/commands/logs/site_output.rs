//! The output of a job that Slurm runs: the file that Slurm names, with the rights of the person who reads it.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use wattle_common::messages::JobRecord;
use wattle_runtime::bus::Bus;
use wattle_runtime::clock;

use super::{FOLLOW_EVERY, Logs, write};
use crate::job_records;
use crate::output::{note, usage};

/// Most bytes read at once: Slurm does not limit the size of an output.
const PART_MAX: u64 = 1 << 20;
/// Time after which a missing file of a running job is reported.
const MISSING_AFTER: Duration = Duration::from_secs(10);

/// A file of which only what is new is read.
#[derive(Default)]
struct Tail {
    offset: u64,
}

impl Tail {
    /// What was added since the last call, at most [`PART_MAX`]; all of a file that has become shorter.
    fn read(&mut self, path: &Path) -> std::io::Result<Vec<u8>> {
        let metadata = std::fs::metadata(path)?;
        if !metadata.is_file() {
            return Err(std::io::Error::other("not a regular file"));
        }
        if metadata.len() < self.offset {
            self.offset = 0;
        }
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(self.offset))?;
        let mut new = Vec::new();
        file.take((metadata.len() - self.offset).min(PART_MAX)).read_to_end(&mut new)?;
        self.offset += new.len() as u64;
        Ok(new)
    }

    /// Writes all that was added since the last call. The outer error is that of reading.
    fn print(&mut self, path: &Path) -> std::io::Result<anyhow::Result<()>> {
        loop {
            let new = self.read(path)?;
            if new.is_empty() {
                return Ok(Ok(()));
            }
            if let Err(error) = write(&new) {
                return Ok(Err(error));
            }
        }
    }
}

/// Prints the output of `record`'s job, with `--follow` until it ends.
pub(super) async fn print(bus: &Bus, record: &JobRecord, command: &Logs) -> anyhow::Result<()> {
    let id = &record.spec.job;
    if command.attempt.is_some() || command.node.is_some() {
        return Err(usage(format!(
            "{id} is a job of Slurm: its output is not divided by attempt or node"
        )));
    }
    let mut tail = Tail::default();
    let (mut missing_since, mut is_reported) = (None, false);
    let mut record = record.clone();
    loop {
        let has_ended = record.phase.is_final();
        let is_last = !command.follow || has_ended;
        match record.log_paths.iter().find(|path| !path.is_empty()) {
            Some(path) => {
                match tail.print(Path::new(path)) {
                    Ok(written) => {
                        missing_since = None;
                        written?;
                    }
                    // Slurm creates it at the start of the job.
                    Err(error) if !is_last && error.kind() == ErrorKind::NotFound => {
                        let since = *missing_since.get_or_insert_with(clock::now);
                        if !is_reported && clock::now().since(since) >= MISSING_AFTER {
                            is_reported = true;
                            note(&format!("{path} is not on this machine yet; waiting for it"));
                        }
                    }
                    Err(error) => {
                        return Err(error).with_context(|| {
                        format!("Slurm writes the output of {id} to {path}, which cannot be read here")
                    });
                    }
                }
            }
            None if is_last && record.attempt == 0 => {
                note(&format!("{id} has not started; its phase is {}", record.phase));
            }
            None if is_last => note(&format!("Slurm names no file with the output of {id}")),
            None => {}
        }
        if is_last {
            return Ok(());
        }
        tokio::time::sleep(FOLLOW_EVERY).await;
        match job_records::one(bus, id).await {
            Ok(Some(now)) => record = now,
            Ok(None) => return Ok(()),
            // The bus is away for a moment; the file is not.
            Err(_) if !bus.is_connected() => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_new_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let mut tail = Tail::default();
        assert!(tail.read(&path).is_err());
        std::fs::write(&path, "one\n").unwrap();
        assert_eq!(tail.read(&path).unwrap(), b"one\n");
        assert_eq!(tail.read(&path).unwrap(), b"");
        std::fs::write(&path, "one\ntwo\n").unwrap();
        assert_eq!(tail.read(&path).unwrap(), b"two\n");
        // A restarted job truncates its output.
        std::fs::write(&path, "new\n").unwrap();
        assert_eq!(tail.read(&path).unwrap(), b"new\n");
        let error = tail.read(folder.path()).unwrap_err().to_string();
        assert_eq!(error, "not a regular file");
    }
}
