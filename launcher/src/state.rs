//! The launcher's own state on disk: the state folder's lock and the last generation obeyed.

use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use wattle_common::Timestamp;
use wattle_common::bounds::OrderVersion;

use crate::json_file::{self, Mode};

pub use crate::json_file::StateError;

const OBEYED: &str = "obeyed.json";

#[derive(Serialize, Deserialize)]
struct Obeyed {
    generation: u64,
    issued_at_us: Timestamp,
}

/// Locks the state folder until the result is dropped or the process ends; `None` while another
/// launcher holds it.
///
/// # Errors
/// Where the folder cannot be created or the lock file cannot be opened.
pub fn lock(state_dir: &Path) -> Result<Option<fs::File>, StateError> {
    json_file::create_folder(state_dir)?;
    let path = state_dir.join("lock");
    let mut options = fs::OpenOptions::new();
    let file = options.write(true).create(true).truncate(false).mode(0o600).open(&path);
    let file = file.map_err(|source| StateError::new(&path, "open", source))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(fs::TryLockError::WouldBlock) => Ok(None),
        Err(fs::TryLockError::Error(source)) => Err(StateError::new(&path, "lock", source)),
    }
}

/// The version of the last desired state that was obeyed; `None` if none was.
///
/// # Errors
/// Where the file cannot be read.
pub fn obeyed(state_dir: &Path) -> Result<Option<OrderVersion>, StateError> {
    let obeyed = json_file::read::<Obeyed>(&state_dir.join(OBEYED))?;
    Ok(obeyed.map(|Obeyed { generation, issued_at_us }| OrderVersion {
        generation,
        issued_at: issued_at_us,
    }))
}

/// Stores the version of the last desired state that was obeyed.
///
/// # Errors
/// Where the file cannot be written.
pub fn store_obeyed(state_dir: &Path, version: OrderVersion) -> Result<(), StateError> {
    let OrderVersion { generation, issued_at } = version;
    let obeyed = Obeyed { generation, issued_at_us: issued_at };
    json_file::write(state_dir, OBEYED, &obeyed, Mode::Replace).map(|_| ())
}
