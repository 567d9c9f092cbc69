//! What is known on disk of one start, so that it outlives the launcher.
//!
//! `<state_dir>/jobs/<job>/<attempt>/` holds small JSON files, each written once and whole (under
//! another name, synced, then linked or renamed into place), in this order:
//!
//! | file | written by | means |
//! |---|---|---|
//! | `order.json` | launcher, before anything is started | this is to be started |
//! | `claim.json` | the one supervisor that starts it; a second one finds it and goes away | nobody else may start it |
//! | `started.json` | supervisor, once the program runs | these processes are the job's |
//! | `stop.json` | launcher, before each signal | it was asked to stop, this hard |
//! | `end.json` | supervisor, once nothing of the job is left | this is how it ended |
//!
//! A kill between any two of them leaves a state that [`Folder::found`] can read.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use wattle_common::{JobId, Timestamp};

use crate::process::{self, Identity};
use crate::{Found, Order, Outcome, PersistedState, Run, Stage};

/// A file of the state folder cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{}: cannot {doing} it; check that the state folder is writable and its disk not full", path.display())]
pub struct StateError {
    /// Which file.
    pub path: PathBuf,
    /// What was being done.
    pub doing: &'static str,
    /// What the system says.
    #[source]
    pub source: io::Error,
}

/// Who has taken it on to start the job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The supervisor; its pid is the session of the job's processes.
    pub supervisor: Identity,
    /// When.
    pub at_us: Timestamp,
}

/// The job's first process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    /// The process.
    pub process: Identity,
    /// When.
    pub at_us: Timestamp,
}

/// How hard it was asked to stop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    /// How hard.
    pub stage: Stage,
    /// Since when.
    pub at_us: Timestamp,
}

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// In which way.
    #[serde(flatten)]
    pub how: How,
    /// When.
    pub at_us: Timestamp,
}

/// In which way a start ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum How {
    /// With this code; 128 + the signal's number where a signal ended it.
    Code(i32),
    /// It could not be started.
    Refused(String),
    /// Its supervisor is gone without a word.
    Lost(String),
}

impl From<How> for Outcome {
    fn from(how: How) -> Self {
        match how {
            How::Code(code) => Self::Code(code),
            How::Refused(error) => Self::Refused(error),
            How::Lost(error) => Self::Lost(error),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Obeyed {
    generation: u64,
    issued_at_us: Timestamp,
}

/// One start's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folder(PathBuf);

impl Folder {
    /// The folder of `run`, which need not exist.
    #[must_use]
    pub fn of(state_dir: &Path, run: &Run) -> Self {
        Self(jobs_dir(state_dir).join(run.job.as_str()).join(run.attempt.to_string()))
    }
    /// The folder at `path`.
    #[must_use]
    pub const fn at(path: PathBuf) -> Self {
        Self(path)
    }
    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Stores the order, unless one is stored already.
    ///
    /// # Errors
    /// Where the disk does not take it.
    pub fn write_order(&self, order: &Order) -> Result<(), StateError> {
        // Its owner's environment is in it: for nobody else's eyes.
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.0);
        made.map_err(|source| fault(&self.0, "make", source))?;
        place(&self.0, "order.json", order, true).map(|_| ())
    }
    /// The order.
    ///
    /// # Errors
    /// Where it is not there or not readable.
    pub fn order(&self) -> Result<Order, StateError> {
        let missing = || io::Error::new(io::ErrorKind::NotFound, "no order is stored");
        let path = self.0.join("order.json");
        read(&path)?.ok_or_else(|| fault(&path, "read", missing()))
    }
    /// Takes it on to start the job; `false` where another has.
    ///
    /// # Errors
    /// Where the disk does not take it, or the folder is gone.
    pub fn claim(&self, claim: &Claim) -> Result<bool, StateError> {
        place(&self.0, "claim.json", claim, true)
    }
    /// Who has taken it on.
    ///
    /// # Errors
    /// Where it is not readable.
    pub fn claimed(&self) -> Result<Option<Claim>, StateError> {
        read(&self.0.join("claim.json"))
    }
    /// Stores which process is the job's.
    ///
    /// # Errors
    /// Where the disk does not take it.
    pub fn write_started(&self, started: &Started) -> Result<(), StateError> {
        place(&self.0, "started.json", started, false).map(|_| ())
    }
    /// Which process is the job's.
    ///
    /// # Errors
    /// Where it is not readable.
    pub fn started(&self) -> Result<Option<Started>, StateError> {
        read(&self.0.join("started.json"))
    }
    /// Stores that it is asked to stop.
    ///
    /// # Errors
    /// Where the disk does not take it.
    pub fn write_stop(&self, stop: &Stop) -> Result<(), StateError> {
        place(&self.0, "stop.json", stop, false).map(|_| ())
    }
    /// How hard it was asked to stop.
    ///
    /// # Errors
    /// Where it is not readable.
    pub fn stop(&self) -> Result<Option<Stop>, StateError> {
        read(&self.0.join("stop.json"))
    }
    /// Stores how it ended; the first word stands.
    ///
    /// # Errors
    /// Where the disk does not take it.
    pub fn write_end(&self, end: &End) -> Result<bool, StateError> {
        place(&self.0, "end.json", end, true)
    }
    /// How it ended.
    ///
    /// # Errors
    /// Where it is not readable.
    pub fn end(&self) -> Result<Option<End>, StateError> {
        read(&self.0.join("end.json"))
    }
    /// Removes it, and the job's folder if this was the last start in it.
    ///
    /// # Errors
    /// Where the disk does not let it.
    pub fn remove(&self) -> Result<(), StateError> {
        match fs::remove_dir_all(&self.0) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(fault(&self.0, "remove", source));
            }
            _ => {}
        }
        if let Some(job) = self.0.parent() {
            // Fails where another start is in it, which is as it should be.
            let _ = fs::remove_dir(job);
        }
        Ok(())
    }

    /// What has become of this start, and since when.
    ///
    /// A supervisor that is gone without a word is the end of its job: what is left of it is
    /// killed, and the end stored.
    ///
    /// # Errors
    /// Where the folder is not readable.
    pub fn found(&self, now: Timestamp) -> Result<(Found, Timestamp), StateError> {
        if let Some(end) = self.end()? {
            return Ok((Found::Ended(end.how.into(), self.stop()?.is_some()), end.at_us));
        }
        let Some(claim) = self.claimed()? else { return Ok((Found::Ordered, now)) };
        if process::is_alive(&claim.supervisor) {
            let stop = self.stop()?.map(|stop| (stop.stage, stop.at_us));
            let since = match (&stop, self.started()?) {
                (Some((_, at)), _) => *at,
                (None, Some(started)) => started.at_us,
                (None, None) => claim.at_us,
            };
            return Ok((Found::Live(claim.supervisor.pid, stop), since));
        }
        let end = self.bury(&claim, now)?;
        Ok((Found::Ended(end.how.into(), self.stop()?.is_some()), end.at_us))
    }

    /// Ends a start whose supervisor is gone: by its last word if it left one, else as lost.
    ///
    /// # Errors
    /// Where the folder is not readable or the disk takes nothing.
    pub fn bury(&self, claim: &Claim, now: Timestamp) -> Result<End, StateError> {
        if let Some(end) = self.end()? {
            return Ok(end);
        }
        process::kill_session(&claim.supervisor);
        if let Some(started) = self.started()? {
            process::signal(&started.process, process::Signal::KILL);
        }
        let error = if process::same_boot(&claim.supervisor) {
            format!("its supervisor (process {}) was killed", claim.supervisor.pid)
        } else {
            "the node was restarted while it ran".to_owned()
        };
        let end = End { how: How::Lost(error), at_us: now };
        self.write_end(&end)?;
        Ok(end)
    }
}

fn jobs_dir(state_dir: &Path) -> PathBuf {
    state_dir.join("jobs")
}

/// Takes the state folder for one launcher, for as long as the result lives; `None` while another
/// has it. A launcher that is killed lets go of it.
///
/// # Errors
/// Where the folder cannot be made, or its lock not be opened.
pub fn take(state_dir: &Path) -> Result<Option<fs::File>, StateError> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(state_dir);
    made.map_err(|source| fault(state_dir, "make", source))?;
    let path = state_dir.join("lock");
    let mut options = fs::OpenOptions::new();
    let file = options.write(true).create(true).truncate(false).mode(0o600).open(&path);
    let file = file.map_err(|source| fault(&path, "open", source))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(fs::TryLockError::WouldBlock) => Ok(None),
        Err(fs::TryLockError::Error(source)) => Err(fault(&path, "lock", source)),
    }
}

/// Everything a launcher that comes back finds, and what in it could not be read.
///
/// # Errors
/// Where the state folder itself cannot be made or listed.
pub fn restore(
    state_dir: &Path,
    now: Timestamp,
) -> Result<(PersistedState, Vec<StateError>), StateError> {
    let jobs = jobs_dir(state_dir);
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&jobs);
    made.map_err(|source| fault(&jobs, "make", source))?;
    let mut faults = Vec::new();
    let obeyed = match read::<Obeyed>(&state_dir.join("obeyed.json")) {
        Ok(obeyed) => obeyed.map(|obeyed| (obeyed.generation, obeyed.issued_at_us)),
        Err(error) => {
            faults.push(error);
            None
        }
    };
    let mut runs = Vec::new();
    for job in names(&jobs)? {
        if JobId::new(&job).is_err() {
            continue;
        }
        for attempt in names(&jobs.join(&job))? {
            let folder = Folder(jobs.join(&job).join(&attempt));
            // A kill while the folder was being made: nothing has been ordered yet.
            if !folder.0.join("order.json").exists() {
                if let Err(error) = folder.remove() {
                    faults.push(error);
                }
                continue;
            }
            match folder.order().and_then(|order| Ok((order, folder.found(now)?))) {
                Ok((order, (found, since))) => runs.push((order, found, since)),
                Err(error) => faults.push(error),
            }
        }
    }
    Ok((PersistedState { obeyed, runs }, faults))
}

/// Stores the last (generation, issued at) obeyed.
///
/// # Errors
/// Where the disk does not take it.
pub fn remember(
    state_dir: &Path,
    generation: u64,
    issued_at_us: Timestamp,
) -> Result<(), StateError> {
    place(state_dir, "obeyed.json", &Obeyed { generation, issued_at_us }, false).map(|_| ())
}

fn names(dir: &Path) -> Result<Vec<String>, StateError> {
    let entries = fs::read_dir(dir).map_err(|source| fault(dir, "list", source))?;
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    Ok(names)
}

fn fault(path: &Path, doing: &'static str, source: io::Error) -> StateError {
    StateError { path: path.to_owned(), doing, source }
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, StateError> {
    match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|source| fault(path, "understand", source.into())),
        Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(fault(path, "read", source)),
    }
}

/// Puts a file in place whole; with `once`, only where none is, and says whether it was placed.
fn place<T: Serialize>(dir: &Path, name: &str, value: &T, once: bool) -> Result<bool, StateError> {
    let path = dir.join(name);
    // Two writers must not share the unfinished file either.
    let unfinished = dir.join(format!(".{name}.{}", std::process::id()));
    let written = (|| {
        let mut options = fs::OpenOptions::new();
        let mut file =
            options.write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
        file.write_all(&wattle_common::codec::encode_json(value))?;
        file.sync_all()?;
        let placed = if once {
            let linked = match fs::hard_link(&unfinished, &path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
                other => other.map(|()| true)?,
            };
            fs::remove_file(&unfinished)?;
            linked
        } else {
            fs::rename(&unfinished, &path)?;
            true
        };
        fs::File::open(dir)?.sync_all()?;
        Ok(placed)
    })();
    written.map_err(|source| fault(&path, "write", source))
}
