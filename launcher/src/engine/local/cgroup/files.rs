//! The files of cgroups.

use std::fs;
use std::io;
use std::path::Path;

use super::CgroupError;

/// Creates a cgroup, unless it exists.
pub(super) fn create(folder: &Path) -> Result<(), CgroupError> {
    match fs::create_dir(folder) {
        Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
            Err(CgroupError::Access { operation: "create", path: folder.to_owned(), source })
        }
        _ => Ok(()),
    }
}

/// Writes a file in one call.
pub(super) fn write(file: &Path, text: &str) -> Result<(), CgroupError> {
    fs::write(file, text).map_err(|source| CgroupError::Access {
        operation: "write",
        path: file.to_owned(),
        source,
    })
}

/// Writes a file that some kernels do not have.
pub(super) fn write_if_present(file: &Path, text: &str) -> Result<(), CgroupError> {
    if file.exists() { write(file, text) } else { Ok(()) }
}

/// The words of a file.
pub(super) fn words(file: &Path) -> Result<Vec<String>, CgroupError> {
    let text = fs::read_to_string(file).map_err(|source| CgroupError::Access {
        operation: "read",
        path: file.to_owned(),
        source,
    })?;
    Ok(text.split_ascii_whitespace().map(str::to_owned).collect())
}

/// The number in a file.
pub(super) fn value(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// The number after `name` in a file of names and numbers.
pub(super) fn count(file: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .find_map(|(known, count)| (known == name).then(|| count.trim().parse().ok()).flatten())
}

/// The processes in a cgroup and below it.
pub(super) fn members(folder: &Path) -> Vec<u32> {
    let own = words(&folder.join("cgroup.procs")).unwrap_or_default();
    let own = own.iter().filter_map(|pid| pid.parse().ok());
    children(folder).iter().flat_map(|child| members(child)).chain(own).collect()
}

/// Removes a cgroup and those below it.
pub(super) fn remove_tree(folder: &Path) -> io::Result<()> {
    for child in children(folder) {
        remove_tree(&child)?;
    }
    match fs::remove_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn children(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}
