//! Writing a file so that it is complete or unchanged, also after a power failure.
//!
//! The content is written to a hidden file of the same folder and synced, then it gets the file's name, then
//! the folder is synced. A process that is killed meanwhile leaves the hidden file, which has the process's
//! id in its name; no reader looks for it.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// The permissions of a written file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Its owner reads and writes it.
    Owner,
    /// Its owner writes it, every user reads it.
    AllUsers,
    /// Those of the file that it replaces, else those of a new file.
    Unchanged,
}

/// Replaces a file.
///
/// # Errors
/// If the folder does not exist, or the content cannot be written; the file is then unchanged.
pub fn replace(path: &Path, content: &[u8], access: Access) -> io::Result<()> {
    let hidden = hidden(path)?;
    let written = write(path, &hidden, content, access).and_then(|()| fs::rename(&hidden, path));
    if written.is_err() {
        let _ = fs::remove_file(&hidden);
    }
    written?;
    sync_folder(path)
}

/// Creates a file unless there is one; returns whether it did.
///
/// # Errors
/// If the folder does not exist, or the content cannot be written; there is then no new file.
pub fn create(path: &Path, content: &[u8], access: Access) -> io::Result<bool> {
    let hidden = hidden(path)?;
    let linked =
        write(path, &hidden, content, access).and_then(|()| match fs::hard_link(&hidden, path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            other => other.map(|()| true),
        });
    let _ = fs::remove_file(&hidden);
    let linked = linked?;
    sync_folder(path)?;
    Ok(linked)
}

/// The hidden file to which the content of `path` is written first.
///
/// # Errors
/// If the path does not end with a name.
pub fn hidden(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let mut hidden = OsString::from(".");
    hidden.push(name);
    // The process id keeps two writers from sharing it.
    hidden.push(format!(".{}.new", std::process::id()));
    Ok(path.with_file_name(hidden))
}

fn write(path: &Path, hidden: &Path, content: &[u8], access: Access) -> io::Result<()> {
    // An earlier process with this id may have left one.
    match fs::remove_file(hidden) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = create_hidden(hidden, access)?;
    // The umask applies to the creation only.
    let permissions = match access {
        Access::Owner => Some(Permissions::from_mode(0o600)),
        Access::AllUsers => Some(Permissions::from_mode(0o644)),
        Access::Unchanged => fs::metadata(path).ok().map(|there| there.permissions()),
    };
    if let Some(permissions) = permissions {
        file.set_permissions(permissions)?;
    }
    file.write_all(content)?;
    file.sync_all()
}

fn create_hidden(hidden: &Path, access: Access) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    if access == Access::Owner {
        options.mode(0o600);
    }
    options.open(hidden)
}

/// Makes the new name of a file outlive a power failure.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let synced = File::open(folder.unwrap_or(Path::new("."))).and_then(|folder| folder.sync_all());
    match synced {
        // A folder that may be written and not read, or a file system that syncs no folders.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::PermissionDenied
                    | io::ErrorKind::InvalidInput
                    | io::ErrorKind::Unsupported
            ) =>
        {
            Ok(())
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    fn names(folder: &Path) -> Vec<OsString> {
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    }

    #[test]
    fn a_file_is_replaced_with_its_permissions() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        replace(&path, b"one", Access::Owner).unwrap();
        assert_eq!((fs::read(&path).unwrap(), mode(&path)), (b"one".to_vec(), 0o600));
        replace(&path, b"two", Access::Unchanged).unwrap();
        assert_eq!((fs::read(&path).unwrap(), mode(&path)), (b"two".to_vec(), 0o600));
        replace(&path, b"", Access::AllUsers).unwrap();
        assert_eq!((fs::read(&path).unwrap(), mode(&path)), (Vec::new(), 0o644));
        assert_eq!(names(folder.path()), ["state.json"]);
    }

    #[test]
    fn a_file_is_created_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("claim");
        assert!(create(&path, b"mine", Access::Owner).unwrap());
        assert!(!create(&path, b"yours", Access::Owner).unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"mine");
        assert_eq!(names(folder.path()), ["claim"]);
    }

    #[test]
    fn a_failure_leaves_no_hidden_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("occupied");
        fs::create_dir(&path).unwrap();
        assert!(replace(&path, b"x", Access::Owner).is_err(), "a folder is there");
        assert!(replace(&folder.path().join("absent/file"), b"x", Access::Owner).is_err());
        assert!(replace(Path::new("/"), b"x", Access::Owner).is_err());
        assert_eq!(names(folder.path()), ["occupied"]);
    }

    #[test]
    fn the_hidden_file_of_a_killed_process_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("state"), folder.path().join("other"));
        fs::write(&other, b"kept").unwrap();
        std::os::unix::fs::symlink(&other, hidden(&path).unwrap()).unwrap();
        replace(&path, b"new", Access::Owner).unwrap();
        assert_eq!(
            (fs::read(&path).unwrap(), fs::read(&other).unwrap()),
            (b"new".to_vec(), b"kept".to_vec())
        );
    }
}
