//! The state folder of `wattle up`.
//!
//! A temporary folder is removed at the end, except the output and checkpoints of jobs, which the
//! owners of the jobs may need. If `wattle up` fails after its services have started, the folder is
//! kept with the logs.
//!
//! Write access to the folder is the right to command the system, and read access gives its key: its parts
//! are this user's only, and a folder that another user owns or may write to is refused.

use std::fs::{self, DirBuilder, File, Permissions, TryLockError};
use std::io::{BufRead as _, BufReader, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use wattle_common::JobId;
use wattle_launcher::log;

use crate::output::{note, usage};
use crate::private_folder::check_owner;

/// Subfolders that only this user can read: the configuration of services, their state, the key, and the store
/// of the NATS server.
const PRIVATE: [&str; 4] = ["config", "state", KEYS, NATS];
/// Subfolders that only this user can read unless it has permitted others: logs of services, and output and
/// checkpoints of jobs.
const OUTPUT: [&str; 3] = ["logs", JOBS, CHECKPOINTS];
/// The key and what only its user may read.
pub(crate) const KEYS: &str = "keys";
/// The store of the NATS server.
pub(crate) const NATS: &str = "nats";
/// Addresses of the metrics: a file for each service, for Prometheus's `file_sd_configs`.
pub(crate) const METRICS: &str = "metrics";
/// Output of jobs: files `JOB.ADMISSION.NODE.log`.
const JOBS: &str = "jobs";
/// Checkpoints of jobs: one folder for each submission.
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
        fs::create_dir_all(path.join(METRICS)).with_context(|| cannot(&path))?;
        check_owner(&path, "--dir")?;
        for part in PRIVATE.into_iter().chain(OUTPUT) {
            let folder = path.join(part);
            let made = DirBuilder::new().recursive(true).mode(0o700).create(&folder);
            made.with_context(|| cannot(&folder))?;
        }
        for part in PRIVATE {
            // An earlier version has made it readable.
            let folder = path.join(part);
            fs::set_permissions(&folder, Permissions::from_mode(0o700))
                .with_context(|| format!("cannot protect {}", folder.display()))?;
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
        match DirBuilder::new().mode(0o700).create(&path) {
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
    fn only_its_user_reads_and_changes_a_folder() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("site");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        // As an earlier version has left it.
        for part in ["config", JOBS] {
            fs::create_dir_all(path.join(part)).unwrap();
            fs::set_permissions(path.join(part), Permissions::from_mode(0o755)).unwrap();
        }
        let folder = Folder::open(Some(&path)).unwrap();
        for part in PRIVATE.into_iter().chain(["logs", CHECKPOINTS]) {
            assert_eq!(mode(&path.join(part)), 0o700, "{part}");
        }
        assert_eq!(mode(&path.join(JOBS)), 0o755, "its user may have permitted it");
        drop(folder);
        fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
        let error = Folder::open(Some(&path)).err().unwrap().to_string();
        assert!(error.contains("every user may write"), "{error}");
        if rustix::process::geteuid().is_root() {
            fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
            std::os::unix::fs::chown(&path, Some(65_534), None).unwrap();
            let error = Folder::open(Some(&path)).err().unwrap().to_string();
            assert!(error.contains("belongs to the user 65534"), "{error}");
        }
        let temporary = Folder::open(None).unwrap();
        assert_eq!(mode(&temporary.path), 0o700);
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
