//! The files of one run, which outlive the launcher.
//!
//! `<state_dir>/jobs/<job>.<admission>/<attempt>/` holds small JSON files, written in this order. Each is
//! complete or absent. A submission that an earlier version accepted or started has the folder `<job>`.
//!
//! | file | written by | meaning |
//! |---|---|---|
//! | `spec.json` | launcher, before anything is started | the run is to be started |
//! | `end.room` | launcher | room for `end.json`, so that a full disk prevents a start and not an end |
//! | `claim.json` | the first supervisor; a second one finds it and exits | this supervisor starts the run |
//! | `started.json` | supervisor, once the program runs | the job's first process |
//! | `stop.json` | launcher, before and after each signal | the last stop requested, and whether its signal was sent |
//! | `end.json` | supervisor, once no process of the job is left | how the run ended |
//!
//! A kill between any two writes leaves a state that [`RunFolder::find`] can read.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use wattle_common::{AdmissionId, Timestamp, id};
use wattle_runtime::files::{self, Access};

use super::cgroup::Cgroups;
use super::process::{self, Identity};
use crate::json_file::{self, Mode};
use crate::state::StateError;
use crate::{Found, Outcome, Run, RunSpec, Status, StopStage};

const SPEC: &str = "spec.json";
const CLAIM: &str = "claim.json";
const STARTED: &str = "started.json";
const STOP: &str = "stop.json";
const END: &str = "end.json";
const END_ROOM: &str = "end.room";
/// Size of [`END_ROOM`]: ends are below 1 kB.
const END_ROOM_BYTES: usize = 4_096;

/// The supervisor that starts the job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The supervisor; its pid is the session of the job's processes.
    pub supervisor: Identity,
    /// When it claimed the run.
    pub at_us: Timestamp,
}

/// The job's first process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    /// The process.
    pub process: Identity,
    /// When it started.
    pub at_us: Timestamp,
}

/// A stop that was requested.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopRecord {
    /// How far it has escalated.
    pub stage: StopStage,
    /// When this stage began.
    pub at_us: Timestamp,
    /// Whether its signal was sent. A launcher that resumes the run sends it otherwise.
    #[serde(default)]
    pub is_signalled: bool,
}

/// The end of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// How it ended.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// When.
    pub at_us: Timestamp,
}

/// One run's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunFolder(PathBuf);

impl RunFolder {
    /// The folder of `run`, which need not exist.
    #[must_use]
    pub fn of(state_dir: &Path, run: &Run) -> Self {
        let submission = AdmissionId::name_of(&run.job, run.admission.as_ref());
        Self(jobs_dir(state_dir).join(submission).join(run.attempt.to_string()))
    }
    /// The folder at `path`.
    #[must_use]
    pub const fn at(path: PathBuf) -> Self {
        Self(path)
    }
    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    fn read<T: serde::de::DeserializeOwned>(&self, name: &str) -> Result<Option<T>, StateError> {
        json_file::read(&self.0.join(name))
    }

    /// Stores the spec, unless one is stored already.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn write_spec(&self, spec: &RunSpec) -> Result<(), StateError> {
        json_file::create_folder(&self.0)?;
        json_file::write(&self.0, SPEC, spec, Mode::CreateNew).map(|_| ())
    }
    /// The spec.
    ///
    /// # Errors
    /// Where it is absent or cannot be read.
    pub fn spec(&self) -> Result<RunSpec, StateError> {
        let missing = || io::Error::new(io::ErrorKind::NotFound, "no spec is stored");
        self.read(SPEC)?.ok_or_else(|| StateError::new(&self.0.join(SPEC), "read", missing()))
    }
    /// Claims the run for a supervisor; `false` if another has claimed it.
    ///
    /// # Errors
    /// Where it cannot be written, or the folder is gone.
    pub fn claim(&self, claim: &Claim) -> Result<bool, StateError> {
        json_file::write(&self.0, CLAIM, claim, Mode::CreateNew)
    }
    /// The supervisor that claimed the run.
    ///
    /// # Errors
    /// Where it cannot be read.
    pub fn claimed(&self) -> Result<Option<Claim>, StateError> {
        self.read(CLAIM)
    }
    /// Stores the job's first process.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn write_started(&self, started: &Started) -> Result<(), StateError> {
        json_file::write(&self.0, STARTED, started, Mode::Replace).map(|_| ())
    }
    /// The job's first process.
    ///
    /// # Errors
    /// Where it cannot be read.
    pub fn started(&self) -> Result<Option<Started>, StateError> {
        self.read(STARTED)
    }
    /// Stores that a stop is requested.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn write_stop(&self, stop: &StopRecord) -> Result<(), StateError> {
        json_file::write(&self.0, STOP, stop, Mode::Replace).map(|_| ())
    }
    /// The last stop requested.
    ///
    /// # Errors
    /// Where it cannot be read.
    pub fn stop(&self) -> Result<Option<StopRecord>, StateError> {
        self.read(STOP)
    }
    /// Reserves the room for the end on the disk.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn reserve_end(&self) -> Result<(), StateError> {
        let path = self.0.join(END_ROOM);
        let reserved = files::replace(&path, &[b' '; END_ROOM_BYTES], Access::Owner);
        reserved.map_err(|source| StateError::new(&path, "write", source))
    }
    /// Stores the end, unless one is stored already. On a full disk it uses the reserved room.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn write_end(&self, end: &End) -> Result<bool, StateError> {
        let room = self.0.join(END_ROOM);
        let written = match json_file::write(&self.0, END, end, Mode::CreateNew) {
            Err(error) => write_in_place(&room, &self.0.join(END), end).map_err(|_| error),
            written => written,
        };
        if written.is_ok() {
            let _ = fs::remove_file(room);
        }
        written
    }
    /// The end.
    ///
    /// # Errors
    /// Where it cannot be read.
    pub fn end(&self) -> Result<Option<End>, StateError> {
        self.read(END)
    }
    /// Removes the folder, and the submission's folder if this was its last run.
    ///
    /// # Errors
    /// Where it cannot be removed.
    pub fn remove(&self) -> Result<(), StateError> {
        // First, because a kill in between must not leave a run without its end, which would count as lost.
        let _ = fs::remove_file(self.0.join(SPEC));
        match fs::remove_dir_all(&self.0) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(StateError::new(&self.0, "remove", source));
            }
            _ => {}
        }
        if let Some(job) = self.0.parent() {
            // Fails, as it should, while another run is in it.
            let _ = fs::remove_dir(job);
        }
        Ok(())
    }

    /// The run's spec and state. If its supervisor is gone without an end, the processes left are
    /// killed and the end is stored.
    ///
    /// # Errors
    /// Where the folder cannot be read or written.
    pub fn find(&self, now: Timestamp) -> Result<Found, StateError> {
        let spec = self.spec()?;
        let stop = self.stop()?;
        let stage = stop.as_ref().map(|stop| stop.stage);
        let ended = |spec, end: End| {
            let status = Some(Status::Ended(end.outcome));
            Found { spec, status, stop: stage, since: end.at_us }
        };
        if let Some(end) = self.end()? {
            return Ok(ended(spec, end));
        }
        let Some(claim) = self.claimed()? else {
            return Ok(Found { spec, status: None, stop: stage, since: now });
        };
        if !process::is_alive(&claim.supervisor) {
            return Ok(ended(spec, self.conclude(&claim, now)?));
        }
        let since = match (stop, self.started()?) {
            (Some(stop), _) => stop.at_us,
            (None, Some(started)) => started.at_us,
            (None, None) => claim.at_us,
        };
        let status = Some(Status::Running(super::handle(&claim, &spec)));
        Ok(Found { spec, status, stop: stage, since })
    }

    /// The end of a run whose supervisor is gone: the recorded one, else [`Outcome::Lost`], which
    /// is stored after the processes left have been killed.
    ///
    /// # Errors
    /// Where the folder cannot be read or written.
    pub fn conclude(&self, claim: &Claim, now: Timestamp) -> Result<End, StateError> {
        if let Some(end) = self.end()? {
            return Ok(end);
        }
        let spec = self.spec()?;
        // The cgroup also has the processes in other sessions.
        if let Some(cgroup) = spec.cgroup.as_ref().filter(|_| process::same_boot(&claim.supervisor))
            && let Ok(cgroups) = Cgroups::system()
        {
            cgroups.of(cgroup).kill();
        }
        process::kill_session(&claim.supervisor);
        if let Some(started) = self.started()? {
            process::signal(&started.process, process::Signal::KILL);
        }
        process::kill_with_variables(&claim.supervisor, &spec.variables());
        let error = if process::same_boot(&claim.supervisor) {
            format!("its supervisor (process {}) was killed", claim.supervisor.pid)
        } else {
            "the node was restarted while it ran".to_owned()
        };
        let end = End { outcome: Outcome::Lost(error), at_us: now };
        self.write_end(&end)?;
        Ok(end)
    }
}

/// Writes `end` over the blanks of the file `room`, and gives it the name `path` unless there is such a file.
fn write_in_place(room: &Path, path: &Path, end: &End) -> io::Result<bool> {
    let content = wattle_common::codec::encode_json(end);
    if content.len() > END_ROOM_BYTES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut file = fs::OpenOptions::new().write(true).open(room)?;
    file.write_all(&content)?;
    file.sync_all()?;
    match renameat_with(CWD, room, CWD, path, RenameFlags::NOREPLACE) {
        Err(Errno::EXIST) => Ok(false),
        renamed => Ok(renamed.map(|()| true)?),
    }
}

fn jobs_dir(state_dir: &Path) -> PathBuf {
    state_dir.join("jobs")
}

/// Every stored run, and the errors of those that cannot be read.
///
/// # Errors
/// Where the state folder itself cannot be created or listed.
pub fn find_all(
    state_dir: &Path,
    now: Timestamp,
) -> Result<(Vec<Found>, Vec<StateError>), StateError> {
    let jobs = jobs_dir(state_dir);
    json_file::create_folder(&jobs)?;
    let (mut found, mut errors) = (Vec::new(), Vec::new());
    for job in names(&jobs)? {
        if job.split('.').count() > 2 || job.split('.').any(|part| id::check(part).is_err()) {
            continue;
        }
        for attempt in names(&jobs.join(&job))? {
            let folder = RunFolder(jobs.join(&job).join(&attempt));
            // A kill between the folder's creation and the spec: the run was never started.
            if !folder.0.join(SPEC).exists() {
                errors.extend(folder.remove().err());
                continue;
            }
            match folder.find(now) {
                Ok(run) => found.push(run),
                Err(error) => errors.push(error),
            }
        }
    }
    Ok((found, errors))
}

fn names(dir: &Path) -> Result<Vec<String>, StateError> {
    let entries = fs::read_dir(dir).map_err(|source| StateError::new(dir, "list", source))?;
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    Ok(names)
}
