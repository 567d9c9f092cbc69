//! The small process beside each job: it starts the job, waits for it, and writes down its end.
//!
//! It is the launcher's own binary (`wattle-launcher supervise --dir DIR`) in a session of its
//! own, so that it outlives the launcher. It adopts whatever the job leaves behind, and records
//! the end only when nothing of the job is left: once `end.json` stands, the GPUs are free.
//! It must not decide anything and must not speak to the bus.

use std::fs;
use std::io::{self, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use wattle_runtime::clock;

use crate::Order;
use crate::folder::{Claim, End, Folder, How, Started, StateError};
use crate::process::{self, Signal};

/// How long to wait for killed processes to be gone, each time: wall seconds. Longer than this one
/// hangs in the kernel (a driver, a network disk), and is killed again.
const KILL_WAIT_S: i64 = 2;
/// How often they are killed before the job counts as ended all the same.
const KILL_ROUNDS: u32 = 30;

/// Starts the order in `dir`, waits for its end, and stores it there.
///
/// # Errors
/// Where the folder cannot be read or written: the launcher then finds no word, and says so.
pub fn run(dir: PathBuf) -> Result<(), StateError> {
    let folder = Folder::at(dir);
    // Fails only where it leads a session already, which is as good.
    let _ = rustix::process::setsid();
    let me = rustix::process::getpid();
    let order = folder.order()?;
    let Some(supervisor) = process::identity(me.as_raw_nonzero().get().unsigned_abs()) else {
        let how = How::Refused("/proc is not readable: mount it".to_owned());
        return folder.write_end(&End { how, at_us: clock::now() }).map(|_| ());
    };
    if !folder.claim(&Claim { supervisor: supervisor.clone(), at_us: clock::now() })? {
        return Ok(());
    }
    // Without it, what a job leaves behind would become init's child and could not be found.
    let _ = rustix::process::set_child_subreaper(Some(me));
    let how = match start(&order) {
        Err(error) => How::Refused(error),
        Ok(mut child) => {
            if let Some(process) = process::identity(child.id()) {
                folder.write_started(&Started { process, at_us: clock::now() })?;
            }
            match child.wait() {
                Ok(status) => How::Code(code(status)),
                Err(error) => How::Lost(format!("waiting for it failed: {error}")),
            }
        }
    };
    clear(supervisor.pid);
    folder.write_end(&End { how, at_us: clock::now() }).map(|_| ())
}

/// Kills whatever the job has left.
fn clear(supervisor: u32) {
    for _ in 0..KILL_ROUNDS {
        let left = process::descendants(supervisor);
        if left.is_empty() {
            return;
        }
        for who in left {
            let Some(handle) = process::handle(&who) else { continue };
            process::signal(&who, Signal::KILL);
            let wait = Timespec { tv_sec: KILL_WAIT_S, tv_nsec: 0 };
            let _ = poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&wait));
        }
    }
}

fn code(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1)
}

/// Starts the program; the error is for the job's owner to read.
fn start(order: &Order) -> Result<std::process::Child, String> {
    let cannot = |what: &Path, error: io::Error| format!("{}: {error}", what.display());
    let checkpoints = Path::new(&order.checkpoint_dir);
    fs::create_dir_all(checkpoints).map_err(|error| {
        format!("the checkpoint folder cannot be made: {}", cannot(checkpoints, error))
    })?;
    let log = open_log(order).map_err(|error| {
        format!("its log cannot be opened: {}", cannot(Path::new(&order.log_path), error))
    })?;
    let log_too =
        log.try_clone().map_err(|error| format!("its log cannot be opened twice: {error}"))?;
    let working_dir = order.working_dir.as_deref().map_or(checkpoints, Path::new);
    if !working_dir.is_dir() {
        return Err(format!(
            "the folder `{}` it shall start in is not on this node: use a shared one",
            working_dir.display()
        ));
    }
    let (program, arguments) =
        order.command.split_first().ok_or_else(|| "the command is empty".to_owned())?;
    let mut command = Command::new(program);
    command.args(arguments).current_dir(working_dir);
    for (key, _) in std::env::vars_os() {
        let ours = key.to_str().is_some_and(|key| {
            // The launcher's own, and what systemd meant for the launcher alone.
            key.starts_with("WATTLE_")
                || matches!(
                    key,
                    "NOTIFY_SOCKET" | "WATCHDOG_USEC" | "WATCHDOG_PID" | "INVOCATION_ID"
                )
        });
        if ours {
            command.env_remove(key);
        }
    }
    command
        .envs(order.environment.iter().map(|(key, value)| (key, value)))
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(log_too)
        // A group of its own, so that terminating the job does not terminate its supervisor.
        .process_group(0);
    command.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => format!(
            "the program `{program}` is not on this node: give its whole path, or install it there"
        ),
        io::ErrorKind::PermissionDenied => {
            format!("the program `{program}` may not be executed: check its mode with ls -l")
        }
        _ => format!("the program `{program}` cannot be started: {error}"),
    })
}

fn open_log(order: &Order) -> io::Result<fs::File> {
    let path = Path::new(&order.log_path);
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    let mut log = fs::OpenOptions::new().create(true).append(true).open(path)?;
    let gpus: Vec<String> = order.gpus.iter().map(ToString::to_string).collect();
    writeln!(log, "--- {} attempt {} on GPU {} ---", order.job, order.attempt, gpus.join(","))?;
    Ok(log)
}
