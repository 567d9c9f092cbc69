//! The folder and the log of a run: created for its account, and refused if they belong to another one.
//!
//! They are below folders that the jobs of several accounts use. A name that another submission had before, or
//! a file that a program left there, must not give one account the files of another.

use std::fs::{self, DirBuilder, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use wattle_common::messages::NodeFaultKind;

use super::account::Account;
use crate::fault::{StartFault, kind_of_jobs_file};

/// Why a folder or file cannot be the run's.
#[derive(Debug, thiserror::Error)]
pub(super) enum OwnershipError {
    /// It belongs to another account.
    #[error(
        "{} belongs to the account {owner} and the job runs as the account {account}: nothing is read or \
         changed; move it away, or give it to the job's account with chown -R if its content is the job's",
        path.display()
    )]
    Foreign { path: PathBuf, owner: u32, account: u32 },
    /// It is something else, such as a link.
    #[error("{} is neither a folder nor a file: move it away", path.display())]
    Kind { path: PathBuf },
    /// It cannot be created or given to the account.
    #[error("{} cannot be created", path.display())]
    Create { path: PathBuf, source: io::Error },
}

impl StartFault for OwnershipError {
    fn node_fault(&self) -> Option<NodeFaultKind> {
        match self {
            Self::Foreign { .. } | Self::Kind { .. } => None,
            Self::Create { source, .. } => kind_of_jobs_file(source),
        }
    }
}

/// Creates a folder that only its account can read, below folders that any user can pass through.
pub(super) fn folder(path: &Path, account: Option<&Account>) -> Result<(), OwnershipError> {
    let create = || DirBuilder::new().mode(0o700).create(path);
    let is_unused = || fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
    make(path, account, create, Metadata::is_dir, is_unused)
}

/// Creates a file that only its account can read, below folders that any user can pass through.
pub(super) fn file(path: &Path, account: Option<&Account>) -> Result<(), OwnershipError> {
    let create =
        || OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map(|_| ());
    let is_unused = || fs::symlink_metadata(path).is_ok_and(|file| file.len() == 0);
    make(path, account, create, Metadata::is_file, is_unused)
}

fn make(
    path: &Path,
    account: Option<&Account>,
    create: impl FnOnce() -> io::Result<()>,
    is_kind: impl FnOnce(&Metadata) -> bool,
    is_unused: impl FnOnce() -> bool,
) -> Result<(), OwnershipError> {
    let failed = |source| OwnershipError::Create { path: path.to_owned(), source };
    let parent = path.parent().unwrap_or(Path::new("/"));
    // Owners can open what is theirs and cannot list the folder.
    DirBuilder::new().recursive(true).mode(0o711).create(parent).map_err(failed)?;
    match create() {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        created => created.map_err(failed)?,
    }
    // Links are not followed.
    let found = fs::symlink_metadata(path).map_err(failed)?;
    if !is_kind(&found) {
        return Err(OwnershipError::Kind { path: path.to_owned() });
    }
    let launcher = rustix::process::geteuid().as_raw();
    let foreign =
        |account| OwnershipError::Foreign { path: path.to_owned(), owner: found.uid(), account };
    let Some(account) = account else {
        // A server of files may show what this account creates under another id, as it shows the folder above.
        let above = fs::metadata(parent).map_err(failed)?.uid();
        return if [launcher, above].contains(&found.uid()) {
            Ok(())
        } else {
            Err(foreign(launcher))
        };
    };
    if found.uid() == account.uid() {
        return Ok(());
    }
    // New, or left by a kill between its creation and the next line.
    if found.uid() == launcher && is_unused() {
        return account.own(path).map_err(failed);
    }
    Err(foreign(account.uid()))
}
