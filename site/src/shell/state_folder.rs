//! The state folder: one file for each released attempt, written completely or not at all.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use wattle_common::bounds::OrderVersion;
use wattle_common::{JobId, NodeId, Timestamp, codec};
use wattle_runtime::files::{self, Access};

use crate::{PersistedState, Released};

/// Folder of the released attempts, one file for each job.
const RELEASED: &str = "released";
/// Folder of the jobs whose energy is in the scheduler's accounting, one empty file for each.
const ENERGY: &str = "energy";
/// File of the versions of the last orders.
const OBEYED: &str = "obeyed.json";
/// Files in the folder `energy`; the placer's records are bounded, too.
const ENERGY_MAX: usize = 20_000;

/// A file of the state folder cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{}: cannot {operation} it; check that the state folder is writable and its disk not full", path.display())]
pub struct StateError {
    path: PathBuf,
    operation: &'static str,
    #[source]
    source: io::Error,
}

fn failed(path: &Path, operation: &'static str) -> impl FnOnce(io::Error) -> StateError {
    let path = path.to_owned();
    move |source| StateError { path, operation, source }
}

#[derive(Serialize, Deserialize)]
struct Obeyed {
    generation: u64,
    issued_at_us: Timestamp,
}

/// The state folder.
#[derive(Debug)]
pub struct StateFolder {
    path: PathBuf,
    _lock: fs::File,
}

impl StateFolder {
    /// Opens the folder, creates it where it is missing, and locks it; `None` if another process uses it.
    ///
    /// # Errors
    /// If it cannot be created or locked.
    pub fn open(path: &Path) -> Result<Option<Self>, StateError> {
        for folder in [path.to_owned(), path.join(RELEASED), path.join(ENERGY)] {
            let created = fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
            created.map_err(failed(&folder, "create"))?;
        }
        let lock = path.join("lock");
        let mut options = fs::OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).mode(0o600).open(&lock);
        let file = file.map_err(failed(&lock, "open"))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self { path: path.to_owned(), _lock: file })),
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(source)) => Err(failed(&lock, "lock")(source)),
        }
    }

    /// Reads the state that the folder contains.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn load(&self) -> Result<PersistedState, StateError> {
        let mut state = PersistedState::default();
        for (name, path) in files(&self.path.join(RELEASED))? {
            let Some(job) = name.strip_suffix(".json").and_then(|name| JobId::new(name).ok())
            else {
                continue;
            };
            if let Some(released) = read::<Released>(&path)? {
                state.released.insert(job, released);
            }
        }
        let energy = files(&self.path.join(ENERGY))?;
        state.energy = energy.iter().filter_map(|(name, _)| JobId::new(name).ok()).collect();
        let obeyed = read::<BTreeMap<NodeId, Obeyed>>(&self.path.join(OBEYED))?.unwrap_or_default();
        let version = |known: Obeyed| OrderVersion {
            generation: known.generation,
            issued_at: known.issued_at_us,
        };
        state.obeyed = obeyed.into_iter().map(|(node, known)| (node, version(known))).collect();
        Ok(state)
    }

    /// Stores the newest released attempt of a job, before its release.
    ///
    /// # Errors
    /// If it cannot be written; the job must then not be released.
    pub fn store_released(&self, job: &JobId, released: Released) -> Result<(), StateError> {
        write(&self.path.join(RELEASED), &format!("{job}.json"), &released)
    }

    /// Removes what is stored of a job.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn forget(&self, job: &JobId) -> Result<(), StateError> {
        let path = self.path.join(RELEASED).join(format!("{job}.json"));
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(failed(&path, "remove")(error))
            }
            _ => Ok(()),
        }
    }

    /// Stores the versions of the last orders.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn store_obeyed(&self, obeyed: &BTreeMap<NodeId, OrderVersion>) -> Result<(), StateError> {
        let stored: BTreeMap<&NodeId, Obeyed> = obeyed
            .iter()
            .map(|(node, version)| {
                let OrderVersion { generation, issued_at } = *version;
                (node, Obeyed { generation, issued_at_us: issued_at })
            })
            .collect();
        write(&self.path, OBEYED, &stored)
    }

    /// Stores that the energy of a job is in the scheduler's accounting; the oldest are forgotten.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn store_energy(&self, job: &JobId) -> Result<(), StateError> {
        let folder = self.path.join(ENERGY);
        let path = folder.join(job.as_str());
        fs::File::create(&path).map_err(failed(&path, "write"))?;
        let mut known = files(&folder)?;
        if known.len() > ENERGY_MAX {
            known.sort_by_key(|(_, path)| path.metadata().and_then(|data| data.modified()).ok());
            for (_, path) in known.iter().take(known.len() - ENERGY_MAX) {
                fs::remove_file(path).map_err(failed(path, "remove"))?;
            }
        }
        Ok(())
    }
}

/// The names and paths of the files in a folder.
fn files(folder: &Path) -> Result<Vec<(String, PathBuf)>, StateError> {
    let entries = fs::read_dir(folder).map_err(failed(folder, "list"))?;
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed(folder, "list"))?;
        if let Ok(name) = entry.file_name().into_string() {
            files.push((name, entry.path()));
        }
    }
    Ok(files)
}

/// A file's value; `None` if it does not exist.
fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, StateError> {
    match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|error| failed(path, "parse")(error.into())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(path, "read")(error)),
    }
}

fn write<T: Serialize>(folder: &Path, name: &str, value: &T) -> Result<(), StateError> {
    let path = folder.join(name);
    let written = files::replace(&path, &codec::encode_json(value), Access::Owner);
    written.map_err(failed(&path, "write"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_is_read_back_and_used_by_one_process() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateFolder::open(&folder.path().join("state")).unwrap().unwrap();
        assert_eq!(state.load().unwrap(), PersistedState::default());
        assert!(StateFolder::open(&folder.path().join("state")).unwrap().is_none());
        let (kept, dropped) = (JobId::new("slurm-1-a").unwrap(), JobId::new("slurm-2-b").unwrap());
        let mut released = Released {
            attempt: 1,
            restarts: 0,
            at_us: Timestamp::from_s(5),
            stop_at_us: None,
            is_signalled: false,
        };
        state.store_released(&kept, released).unwrap();
        state.store_released(&dropped, released).unwrap();
        released.stop_at_us = Some(Timestamp::from_s(7));
        state.store_released(&kept, released).unwrap();
        state.forget(&dropped).unwrap();
        state.forget(&dropped).unwrap();
        state.store_energy(&dropped).unwrap();
        let version = OrderVersion { generation: 3, issued_at: Timestamp::from_s(9) };
        let obeyed = BTreeMap::from([(NodeId::new("n0").unwrap(), version)]);
        state.store_obeyed(&obeyed).unwrap();
        let expected = PersistedState {
            released: [(kept, released)].into(),
            obeyed,
            energy: [dropped].into(),
        };
        assert_eq!(state.load().unwrap(), expected);
    }
}
