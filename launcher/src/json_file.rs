//! Small JSON files that are complete or absent, whenever the process is killed.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use wattle_common::messages::NodeFaultKind;
use wattle_runtime::files::{self, Access};

use crate::fault::{StartFault, kind_of};

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

impl StartFault for StateError {
    fn node_fault(&self) -> Option<NodeFaultKind> {
        Some(kind_of(&self.source))
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

/// Writes a file; its owner may read it. Returns `false` where [`Mode::CreateNew`] finds a file.
pub(crate) fn write<T: Serialize>(
    folder: &Path,
    name: &str,
    value: &T,
    mode: Mode,
) -> Result<bool, StateError> {
    let path = folder.join(name);
    let content = wattle_common::codec::encode_json(value);
    let written = match mode {
        Mode::Replace => files::replace(&path, &content, Access::Owner).map(|()| true),
        Mode::CreateNew => files::create(&path, &content, Access::Owner),
    };
    written.map_err(|source| StateError::new(&path, "write", source))
}
