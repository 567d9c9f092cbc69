//! Files of POSIX shared memory that the jobs of an account have left.
//!
//! They hold memory until they are removed. A file belongs to an account and not to a job, so the files of an
//! account go when none of its processes is left on the node.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Where Linux has the files of shared memory.
const FOLDER: &str = "/dev/shm";

/// Removes the files of shared memory of the user `uid`, unless a process of it runs.
pub(super) fn remove_unused(uid: u32) {
    remove_from(Path::new(FOLDER), uid, has_processes);
}

fn remove_from(folder: &Path, uid: u32, has_processes: impl Fn(u32) -> io::Result<bool>) {
    // Listed before the processes are: a process that starts meanwhile keeps its files.
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let owned = entries
        .map(|entry| entry.path())
        .filter(|path| fs::symlink_metadata(path).is_ok_and(|known| known.uid() == uid));
    let owned: Vec<PathBuf> = owned.collect();
    if owned.is_empty() || has_processes(uid).unwrap_or(true) {
        return;
    }
    for path in owned {
        let is_folder = fs::symlink_metadata(&path).is_ok_and(|known| known.is_dir());
        // What cannot be removed stays, as without this.
        let _ = if is_folder { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    }
}

/// Whether a process of the user runs.
fn has_processes(uid: u32) -> io::Result<bool> {
    // Fails where the processes of other users are hidden.
    fs::read_to_string("/proc/1/status")?;
    let processes = fs::read_dir("/proc")?.flatten();
    let status = processes.filter_map(|entry| fs::read_to_string(entry.path().join("status")).ok());
    Ok(status.into_iter().any(|status| uids(&status).contains(&uid)))
}

/// The real, effective, saved and file-system user of a process, by its file `status`.
fn uids(status: &str) -> Vec<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let uids = line.into_iter().flat_map(str::split_ascii_whitespace);
    uids.filter_map(|uid| uid.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_an_account_go_with_its_last_process() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("segment"), "x").unwrap();
        fs::create_dir(path("torch_1")).unwrap();
        fs::write(path("torch_1/part"), "x").unwrap();
        let me = fs::metadata(folder.path()).unwrap().uid();
        let count = || fs::read_dir(folder.path()).unwrap().count();
        remove_from(folder.path(), me + 1, |_| Ok(false));
        assert_eq!(count(), 2, "another user's");
        remove_from(folder.path(), me, has_processes);
        assert_eq!(count(), 2, "a process of it runs: this one");
        remove_from(folder.path(), me, |_| Err(io::ErrorKind::PermissionDenied.into()));
        assert_eq!(count(), 2, "not known");
        remove_from(folder.path(), me, |_| Ok(false));
        assert_eq!(count(), 0);
        assert_eq!(has_processes(4_000_000_000).ok(), Some(false));
    }

    #[test]
    fn the_users_of_a_process_are_parsed() {
        assert_eq!(uids("Name:\tsh\nUid:\t1000\t1000\t0\t1000\nGid:\t5\n"), [1000, 1000, 0, 1000]);
        assert!(uids("").is_empty());
    }
}
