//! The process that starts one job, waits for it and records its end.
//!
//! It is the launcher's binary (`wattle-launcher supervise DIR`) in a session of its own, so
//! that it outlives the launcher. It adopts the job's orphaned processes and records the end when
//! no process of the job is left: once `end.json` exists, the GPUs are free.
//! It must not decide anything and must not use the bus.

use std::fs;
use std::io::{self, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use wattle_common::Timestamp;
use wattle_runtime::clock;
use wattle_runtime::shell::chain;

use super::process::{self, Signal};
use super::run_folder::{Claim, End, RunFolder, Started};
use crate::state::StateError;
use crate::{Outcome, RunSpec, log};

/// How long to wait for one killed process to end: wall seconds. A process that takes longer hangs
/// in the kernel (a driver, a network disk).
const KILL_WAIT_S: i64 = 2;
/// Number of kill rounds after which the job counts as ended.
const KILL_ROUNDS: u32 = 30;

/// First argument of the launcher's binary as a supervisor; the run's folder follows.
pub(super) const COMMAND: &str = "supervise";

/// The run's folder, if the command line of this process requests a supervisor.
#[must_use]
pub fn requested_folder() -> Option<PathBuf> {
    let mut arguments = std::env::args_os().skip(1);
    arguments.next().filter(|command| command == COMMAND)?;
    arguments.next().map(PathBuf::from)
}

/// Starts the run stored in `dir`, waits for its end, and stores the end there.
///
/// # Errors
/// Where the folder cannot be read or written: the launcher then reports the run as lost.
pub fn run(dir: PathBuf) -> Result<(), StateError> {
    let folder = RunFolder::at(dir);
    // Fails only if this process leads a session already.
    let _ = rustix::process::setsid();
    let me = rustix::process::getpid();
    let spec = folder.spec()?;
    let Some(supervisor) = process::identity(me.as_raw_nonzero().get().unsigned_abs()) else {
        let outcome = Outcome::Refused("cannot read /proc: mount it".to_owned());
        return folder.write_end(&End { outcome, at_us: clock::now() }).map(|_| ());
    };
    if !folder.claim(&Claim { supervisor: supervisor.clone(), at_us: clock::now() })? {
        return Ok(());
    }
    // Otherwise orphaned processes of the job become children of init and cannot be found.
    let _ = rustix::process::set_child_subreaper(Some(me));
    let outcome = match start(&spec) {
        Err(error) => Outcome::Refused(chain(&error)),
        Ok(mut child) => {
            if let Some(process) = process::identity(child.id()) {
                folder.write_started(&Started { process, at_us: clock::now() })?;
            }
            match child.wait() {
                Ok(status) => Outcome::Code(code(status)),
                Err(error) => Outcome::Lost(format!("cannot wait for it: {error}")),
            }
        }
    };
    kill_descendants(supervisor.pid);
    folder.write_end(&End { outcome, at_us: clock::now() }).map(|_| ())
}

/// Kills the job's processes that are left.
fn kill_descendants(supervisor: u32) {
    for _ in 0..KILL_ROUNDS {
        let left = process::descendants(supervisor);
        if left.is_empty() {
            return;
        }
        for process in left {
            let Some(handle) = process::handle(&process) else { continue };
            process::signal(&process, Signal::KILL);
            let wait = Timespec { tv_sec: KILL_WAIT_S, tv_nsec: 0 };
            let _ = poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&wait));
        }
    }
}

fn code(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1)
}

/// Why the program was not started, for the job's owner.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("cannot create the checkpoint folder {}", path.display())]
    CheckpointDir { path: PathBuf, source: io::Error },
    #[error("cannot open the log {path}")]
    Log { path: String, source: io::Error },
    #[error("the working folder `{}` is not on this node: use a shared one", path.display())]
    WorkingDir { path: PathBuf },
    #[error("the command is empty")]
    EmptyCommand,
    #[error("the program `{0}` is not on this node: give its full path, or install it there")]
    NotFound(String),
    #[error("the program `{0}` is not executable: check its mode with ls -l")]
    NotExecutable(String),
    #[error("cannot start the program `{program}`")]
    Spawn { program: String, source: io::Error },
}

fn start(spec: &RunSpec) -> Result<Child, StartError> {
    let checkpoints = Path::new(&spec.checkpoint_dir);
    fs::create_dir_all(checkpoints)
        .map_err(|source| StartError::CheckpointDir { path: checkpoints.to_owned(), source })?;
    let log_error = |source| StartError::Log { path: spec.log_path.clone(), source };
    let stdout = open_log(spec).map_err(log_error)?;
    let stderr = stdout.try_clone().map_err(log_error)?;
    let working_dir = spec.working_dir.as_deref().map_or(checkpoints, Path::new);
    if !working_dir.is_dir() {
        return Err(StartError::WorkingDir { path: working_dir.to_owned() });
    }
    let (program, arguments) = spec.command.split_first().ok_or(StartError::EmptyCommand)?;
    let mut command = Command::new(program);
    command.args(arguments).current_dir(working_dir);
    for (key, _) in std::env::vars_os() {
        if key.to_str().is_some_and(is_launchers_own) {
            command.env_remove(key);
        }
    }
    command
        .envs(spec.environment.iter().map(|(key, value)| (key, value)))
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(stderr)
        // A process group of its own, so that terminating the job does not terminate its supervisor.
        .process_group(0);
    command.spawn().map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => StartError::NotFound(program.clone()),
        io::ErrorKind::PermissionDenied => StartError::NotExecutable(program.clone()),
        _ => StartError::Spawn { program: program.clone(), source },
    })
}

/// Whether a variable is the launcher's own, set by Wattle or by systemd, and not the job's.
fn is_launchers_own(key: &str) -> bool {
    key.starts_with("WATTLE_")
        || matches!(key, "NOTIFY_SOCKET" | "WATCHDOG_USEC" | "WATCHDOG_PID" | "INVOCATION_ID")
}

/// The time in UTC to the second.
fn utc(at: Timestamp) -> String {
    jiff::Timestamp::from_second(i64::try_from(at.as_us() / 1_000_000).unwrap_or(i64::MAX))
        .map_or_else(|_| at.to_string(), |at| at.to_string())
}

/// Opens the job's log and writes the line that begins an attempt.
fn open_log(spec: &RunSpec) -> io::Result<fs::File> {
    let path = Path::new(&spec.log_path);
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    let mut log_file = fs::OpenOptions::new().create(true).append(true).open(path)?;
    let time = utc(clock::now());
    let header = log::header(&spec.job, spec.attempt, &spec.node, &spec.gpus, &time);
    // One write: a process of an earlier attempt may still append to the file.
    log_file.write_all(format!("{header}\n").as_bytes())?;
    Ok(log_file)
}
