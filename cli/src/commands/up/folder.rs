//! The state folder of `wattle up`.
//!
//! A temporary folder is removed at the end, except the output and checkpoints of jobs, which the
//! owners of the jobs may need. If `wattle up` fails after its services have started, the folder is
//! kept with the logs.

use std::fs::{self, File, TryLockError};
use std::io::{BufRead as _, BufReader, ErrorKind};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use wattle_common::JobId;
use wattle_launcher::log;

use crate::output::{note, usage};

/// Subfolders: logs of services, their configuration, output and checkpoints of jobs, the state of services,
/// and the addresses of their metrics.
const PARTS: [&str; 6] = ["logs", "config", JOBS, CHECKPOINTS, "state", METRICS];
/// Addresses of the metrics: a file for each service, for Prometheus's `file_sd_configs`.
pub(crate) const METRICS: &str = "metrics";
/// Output of jobs: files `JOB.NODE.log`.
const JOBS: &str = "jobs";
/// Checkpoints of jobs: one folder for each job.
const CHECKPOINTS: &str = "checkpoints";

/// The state folder. Dropping it removes a temporary one.
pub(crate) struct Folder {
    /// Its path.
    pub(crate) path: PathBuf,
    /// Whether it is removed at the end.
    pub(crate) is_temporary: bool,
    /// Locked while this process runs.
    _lock: File,
}

impl Folder {
    /// Opens `dir`, or makes a new temporary folder.
    ///
    /// # Errors
    /// A folder that cannot be written, or in which another `wattle up` runs.
    pub(crate) fn open(dir: Option<&Path>) -> anyhow::Result<Self> {
        let path = match dir {
            Some(dir) => std::path::absolute(dir).context("--dir")?,
            None => make_temporary(&std::env::temp_dir())?,
        };
        let cannot = |path: &Path| format!("cannot make {}", path.display());
        for part in PARTS {
            let folder = path.join(part);
            fs::create_dir_all(&folder).with_context(|| cannot(&folder))?;
        }
        let file = path.join("lock");
        let lock = File::create(&file).with_context(|| cannot(&file))?;
        match lock.try_lock() {
            Ok(()) => {
                // Addresses of an earlier run.
                for file in entries(&path.join(METRICS)) {
                    let _ = fs::remove_file(file);
                }
                Ok(Self { path, is_temporary: dir.is_none(), _lock: lock })
            }
            Err(TryLockError::WouldBlock) => Err(usage(format!(
                "another `wattle up` runs in {}; stop it, or choose another --dir",
                path.display()
            ))),
            Err(TryLockError::Error(error)) => {
                Err(error).with_context(|| format!("cannot lock {}", path.display()))
            }
        }
    }

    /// Keeps everything after a failure, and prints the path.
    pub(crate) fn keep(mut self) {
        self.is_temporary = false;
        note(&format!("logs and state are kept in {}", self.path.display()));
    }

    /// Ends after success. Of a temporary folder the output and checkpoints of all jobs but `replayed`
    /// are kept; the trainer of a replayed trace prints only its progress.
    pub(crate) fn end(mut self, replayed: &[JobId]) {
        if !self.is_temporary {
            note(&format!("logs and state: {}", self.path.display()));
            return;
        }
        let kept = remove_state(&self.path, replayed);
        self.is_temporary = kept.is_empty();
        for path in kept {
            let what = if path.ends_with(JOBS) { "output" } else { "checkpoints" };
            note(&format!("{what} of the jobs: {}", path.display()));
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.is_temporary {
            // A folder that cannot be removed is in the system's folder for temporary files.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Makes a folder with a name that no earlier `wattle up` has left.
fn make_temporary(parent: &Path) -> anyhow::Result<PathBuf> {
    let process = std::process::id();
    for number in 0_u32.. {
        let suffix = if number == 0 { String::new() } else { format!("-{number}") };
        let path = parent.join(format!("wattle-up-{process}{suffix}"));
        match fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => {
                return Err(error).with_context(|| format!("cannot make {}", path.display()));
            }
        }
    }
    anyhow::bail!("no free name in {}", parent.display())
}

/// Removes everything but output and checkpoints of other jobs than `replayed`. Returns the folders
/// that are left.
fn remove_state(folder: &Path, replayed: &[JobId]) -> Vec<PathBuf> {
    let is_replayed = |name: &str| replayed.iter().any(|job| job.as_str() == name);
    for file in entries(&folder.join(JOBS)) {
        if !log_has_output(&file, &is_replayed) {
            let _ = fs::remove_file(&file);
        }
    }
    for job in entries(&folder.join(CHECKPOINTS)) {
        let name = job.file_name().unwrap_or_default().to_string_lossy();
        if is_replayed(&name) {
            let _ = fs::remove_dir_all(&job);
        }
        // Removes only an empty folder.
        let _ = fs::remove_dir(&job);
    }
    let parts = [JOBS, CHECKPOINTS].map(|part| folder.join(part));
    for entry in entries(folder).into_iter().filter(|entry| !parts.contains(entry)) {
        let _ = if entry.is_dir() { fs::remove_dir_all(&entry) } else { fs::remove_file(&entry) };
    }
    parts.into_iter().filter(|part| fs::remove_dir(part).is_err() && part.exists()).collect()
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let read = fs::read_dir(folder).into_iter().flatten();
    read.flatten().map(|entry| entry.path()).collect()
}

/// Whether a log has a line that its job has printed.
fn log_has_output(path: &Path, is_replayed: &impl Fn(&str) -> bool) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let Some((job, _, node)) = log::parse_file_name(&name) else { return true };
    let Ok(file) = File::open(path) else { return true };
    let mut lines = BufReader::new(file).split(b'\n').map_while(Result::ok);
    !is_replayed(job.as_str())
        && lines.any(|line| {
            let line = String::from_utf8_lossy(&line);
            !line.is_empty() && log::attempt_of(&line, &job, &node).is_none()
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_and_checkpoints_outlive_a_temporary_folder() {
        let parent = tempfile::tempdir().unwrap();
        let root = parent.path().join("up");
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let header = "--- a attempt 1 on n0 GPU 0 at 2026-05-03T09:15:00Z ---\n";
        write("jobs/a.n0.log", &format!("{header}loss 0.5\n"));
        write("jobs/quiet.n0.log", &header.replace("- a ", "- quiet "));
        write("jobs/t-1.n0.log", "step 1\n");
        write("checkpoints/a/model.pt", "weights");
        write("checkpoints/t-1/step", "1");
        write("state/n0.state", "x");
        write("lock", "");
        fs::create_dir(root.join("checkpoints/quiet")).unwrap();
        let replayed = [JobId::new("t-1").unwrap()];
        let kept = remove_state(&root, &replayed);
        assert_eq!(kept, [root.join("jobs"), root.join("checkpoints")]);
        assert_eq!(entries(&root.join("jobs")), [root.join("jobs/a.n0.log")]);
        assert_eq!(entries(&root.join("checkpoints")), [root.join("checkpoints/a")]);
        assert_eq!(entries(&root).len(), 2);
        let all = ["a", "t-1"].map(|job| JobId::new(job).unwrap());
        assert!(remove_state(&root, &all).is_empty(), "nothing is left to keep");
    }

    #[test]
    fn temporary_folders_are_new_and_removed_when_dropped() {
        let parent = tempfile::tempdir().unwrap();
        let first = make_temporary(parent.path()).unwrap();
        assert_ne!(make_temporary(parent.path()).unwrap(), first);
        let folder = Folder::open(None).unwrap();
        let path = folder.path.clone();
        assert!(path.join("logs").is_dir());
        drop(folder);
        assert!(!path.exists());
    }
}
