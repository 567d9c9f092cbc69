//! Small JSON files that are complete or absent, whenever the process is killed.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A file of the state folder cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{}: cannot {operation} it; check that the state folder is writable and its disk not full", path.display())]
pub struct StateError {
    /// The file.
    pub path: PathBuf,
    /// The operation that failed.
    pub operation: &'static str,
    /// The system's error.
    #[source]
    pub source: io::Error,
}

impl StateError {
    pub(crate) fn new(path: &Path, operation: &'static str, source: io::Error) -> Self {
        Self { path: path.to_owned(), operation, source }
    }
}

/// Whether an existing file is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Replace,
    CreateNew,
}

/// Creates a folder and its parents, readable by their owner only: jobs' environments are in them.
pub(crate) fn create_folder(path: &Path) -> Result<(), StateError> {
    let created = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    created.map_err(|source| StateError::new(path, "create", source))
}

/// Reads a file; `None` if it does not exist.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, StateError> {
    match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|source| StateError::new(path, "parse", source.into())),
        Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(StateError::new(path, "read", source)),
    }
}

/// Writes a file under another name, syncs it, then renames or links it into place. Returns
/// `false` where [`Mode::CreateNew`] finds a file.
pub(crate) fn write<T: Serialize>(
    folder: &Path,
    name: &str,
    value: &T,
    mode: Mode,
) -> Result<bool, StateError> {
    let path = folder.join(name);
    // The process id keeps two writers from sharing the unfinished file.
    let unfinished = folder.join(format!(".{name}.{}", std::process::id()));
    let written = (|| {
        let mut options = fs::OpenOptions::new();
        let mut file =
            options.write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
        file.write_all(&wattle_common::codec::encode_json(value))?;
        file.sync_all()?;
        let written = match mode {
            Mode::Replace => {
                fs::rename(&unfinished, &path)?;
                true
            }
            Mode::CreateNew => {
                let linked = match fs::hard_link(&unfinished, &path) {
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
                    other => other.map(|()| true)?,
                };
                fs::remove_file(&unfinished)?;
                linked
            }
        };
        fs::File::open(folder)?.sync_all()?;
        Ok(written)
    })();
    written.map_err(|source| StateError::new(&path, "write", source))
}
