//! The process that starts one job, waits for it and records its end.
//!
//! It is the launcher's binary (`wattle-launcher supervise DIR`) in a session of its own, so
//! that it outlives the launcher. It adopts the job's orphaned processes, writes their output to the log
//! and records the end when no process of the job is left: once `end.json` exists, the GPUs are free.
//! It must not decide anything and must not use the bus.

use std::io::{self, Read as _};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::WaitOptions;
use wattle_common::messages::NodeFaultKind;
use wattle_common::{Timestamp, codec};
use wattle_runtime::clock;
use wattle_runtime::shell::chain;

use super::account::{Account, AccountError};
use super::cgroup::{Cgroup, CgroupError, Cgroups};
use super::ending::kill_descendants;
use super::job_output::{self, Copying, JobOutput};
use super::ownership::{self, OwnershipError};
use super::process::{self, Identity, Signal};
use super::program;
use super::run_folder::{Claim, End, RunFolder, Started};
use super::shared_memory;
use crate::fault::{StartFault, kind_of, kind_of_jobs_file};
use crate::state::StateError;
use crate::{Fault, Outcome, RunSpec, StopStage, log};

/// How long to wait for one killed process to end: wall seconds. A process that takes longer hangs
/// in the kernel (a driver, a network disk).
const KILL_WAIT_S: i64 = 2;
/// Number of kill rounds after which a cgroup with a process is left to the launcher.
const KILL_ROUNDS: u32 = 30;

/// Interval at which the memory limit is checked under cgroups v1: wall seconds.
const WATCH_EVERY_S: i64 = 1;

/// First argument of the launcher's binary as a supervisor; the run's folder follows.
pub(super) const COMMAND: &str = "supervise";

/// The run's folder, if the command line of this process requests a supervisor.
#[must_use]
pub fn requested_folder() -> Option<PathBuf> {
    super::requested_folder(COMMAND)
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
        let error = "cannot read /proc: mount it".to_owned();
        let outcome = Outcome::Prevented(Fault { kind: NodeFaultKind::Missing, error });
        return folder.write_end(&End { outcome, at_us: clock::now() }).map(|_| ());
    };
    if !folder.claim(&Claim { supervisor: supervisor.clone(), at_us: clock::now() })? {
        return Ok(());
    }
    // Otherwise orphaned processes of the job become children of init and cannot be found.
    let _ = rustix::process::set_child_subreaper(Some(me));
    let cgroup = spec.cgroup.as_ref().map(|spec| Ok(Cgroups::system()?.of(spec))).transpose();
    let (cgroup, started) = match cgroup {
        Ok(cgroup) => (cgroup.clone(), start(&folder, &spec, cgroup.as_ref())),
        Err(error) => (None, Err(StartError::Cgroup(error))),
    };
    let (outcome, copying) = match started {
        Err(error) => (error.outcome(), None),
        Ok((child, copying)) => (follow(&folder, &spec, &child, cgroup.as_ref()), Some(copying)),
    };
    let are_ended = end_processes(cgroup.as_ref());
    // A log that was not opened may belong to another account.
    let has_log = copying.is_some();
    if let Some(copying) = copying {
        copying.finish();
    }
    if let Ok(Some(account)) = Account::of(&spec) {
        shared_memory::remove_unused(account.uid());
    }
    if let Outcome::Limited { limit, .. } = &outcome {
        let _ = job_output::append(Path::new(&spec.log_path), &log::note(limit));
    }
    if !are_ended && has_log {
        let note =
            "some of its processes do not end: they hang in the kernel, or are another user's";
        let _ = job_output::append(Path::new(&spec.log_path), &log::note(&note));
    }
    folder.write_end(&End { outcome, at_us: clock::now() }).map(|_| ())
}

/// Stores the job's first process and waits for its end.
fn follow(folder: &RunFolder, spec: &RunSpec, child: &Child, cgroup: Option<&Cgroup>) -> Outcome {
    let process = process::identity(child.id());
    if let Some(process) = process.clone() {
        let started = Started { process: process.clone(), at_us: clock::now() };
        if let Err(error) = folder.write_started(&started) {
            // No launcher would find it.
            return error.outcome();
        }
        checkpoint_if_requested(folder, spec, &process);
    }
    wait(child, process, cgroup)
}

/// Sends the checkpoint signal if it was requested before the process was stored: the launcher did not know
/// the process then. If both find it, it is sent twice.
fn checkpoint_if_requested(folder: &RunFolder, spec: &RunSpec, process: &Identity) {
    let stop = folder.stop().ok().flatten();
    let is_requested = stop.is_some_and(|stop| stop.stage == StopStage::Checkpoint);
    let signal = spec.checkpoint_signal.as_deref().and_then(process::signal_named);
    if let Some(signal) = signal.filter(|_| is_requested) {
        process::signal(process, signal);
    }
}

/// Waits for the job's first process, and reaps those that it leaves behind: they count as processes
/// of the job until then.
fn wait(child: &Child, process: Option<Identity>, cgroup: Option<&Cgroup>) -> Outcome {
    // In this thread: a node without a free thread must not end a job that runs.
    let mut watched = cgroup.filter(|each| each.needs_watch()).zip(process);
    let status = loop {
        let options = if watched.is_some() { WaitOptions::NOHANG } else { WaitOptions::empty() };
        match rustix::process::wait(options) {
            Ok(Some((pid, status))) if pid.as_raw_nonzero().get().unsigned_abs() == child.id() => {
                break ExitStatus::from_raw(status.as_raw());
            }
            // No child has ended.
            Ok(None) => {
                watched = watched.filter(|(cgroup, process)| {
                    has_ended_within(process, WATCH_EVERY_S) || !cgroup.kill_if_memory_exceeded()
                });
            }
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Err(error) => return Outcome::Lost(format!("cannot wait for it: {error}")),
        }
    };
    match (code(status), cgroup.and_then(Cgroup::reached)) {
        (code, Some(limit)) if code != 0 => Outcome::Limited { code, limit },
        (code, _) => status.signal().map_or(Outcome::Code(code), Outcome::Killed),
    }
}

/// Kills the job's processes that are left, and removes its cgroup. A cgroup with a process that hangs in
/// the kernel is left to the launcher. Returns `false` if some processes do not end.
fn end_processes(cgroup: Option<&Cgroup>) -> bool {
    if let Some(cgroup) = cgroup {
        // First, because none of its processes can start another one then.
        cgroup.kill();
    }
    let are_ended = kill_descendants();
    let Some(cgroup) = cgroup else { return are_ended };
    for _ in 0..KILL_ROUNDS {
        if cgroup.remove().is_ok() {
            return are_ended;
        }
        cgroup.kill();
        for process in cgroup.members() {
            process::signal(&process, Signal::KILL);
            has_ended_within(&process, KILL_WAIT_S);
        }
    }
    false
}

/// Waits for the end of a process, at most `seconds` of wall time.
fn has_ended_within(process: &Identity, seconds: i64) -> bool {
    let Some(handle) = process::handle(process) else { return true };
    let wait = Timespec { tv_sec: seconds, tv_nsec: 0 };
    let _ = poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&wait));
    !process::is_alive(process)
}

fn code(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1)
}

/// Why the program was not started, for the job's owner.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error(transparent)]
    Account(#[from] AccountError),
    #[error("it cannot be limited")]
    Cgroup(#[from] CgroupError),
    #[error("its checkpoint folder or log cannot be used")]
    Ownership(#[from] OwnershipError),
    #[error("cannot open the log {path}")]
    Log { path: String, source: io::Error },
    #[error("cannot start a process for it")]
    Spawn(#[source] io::Error),
    /// The end that the program's own process reports.
    #[error("{0:?}")]
    Program(Outcome),
}

impl StartFault for StartError {
    fn node_fault(&self) -> Option<NodeFaultKind> {
        match self {
            Self::Account(error) => error.node_fault(),
            Self::Cgroup(error) => error.node_fault(),
            Self::Ownership(error) => error.node_fault(),
            Self::Log { source, .. } => kind_of_jobs_file(source),
            Self::Spawn(source) => Some(kind_of(source)),
            Self::Program(Outcome::Prevented(fault)) => Some(fault.kind),
            Self::Program(_) => None,
        }
    }

    fn outcome(&self) -> Outcome {
        match (self, self.node_fault()) {
            (Self::Program(outcome), _) => outcome.clone(),
            (Self::Ownership(OwnershipError::Foreign { .. }), _) => Outcome::Foreign(chain(self)),
            (error, Some(kind)) => Outcome::Prevented(Fault { kind, error: chain(error) }),
            (error, None) => Outcome::Refused(chain(error)),
        }
    }
}

/// Starts the job's program and the copy of its output to the log.
fn start(
    folder: &RunFolder,
    spec: &RunSpec,
    cgroup: Option<&Cgroup>,
) -> Result<(Child, Copying), StartError> {
    let account = Account::of(spec)?;
    cgroup.map_or(Ok(()), Cgroup::create)?;
    ownership::folder(Path::new(&spec.checkpoint_dir), account.as_ref())?;
    ownership::file(Path::new(&spec.log_path), account.as_ref())?;
    let log_error = |source| StartError::Log { path: spec.log_path.clone(), source };
    let output = open_log(spec).map_err(log_error)?;

    let (written, stdout) = io::pipe().map_err(StartError::Spawn)?;
    // Before the program: without a copy it would block at its first output.
    let copying = output.copy_from(written).map_err(StartError::Spawn)?;
    let (mut reported, report) = io::pipe().map_err(StartError::Spawn)?;
    let mut command = Command::new("/proc/self/exe");
    command
        .arg(program::COMMAND)
        .arg(folder.path())
        .stdin(report)
        .stderr(stdout.try_clone().map_err(StartError::Spawn)?)
        .stdout(stdout)
        // A process group of its own, so that terminating the job does not terminate its supervisor.
        .process_group(0);
    let mut child = command.spawn().map_err(StartError::Spawn)?;
    // Closes this process's ends of the pipes.
    drop(command);
    let mut ended = Vec::new();
    // The end of the pipe means that the program runs.
    let _ = reported.read_to_end(&mut ended);
    if !ended.is_empty() {
        let _ = child.wait();
        let ended = codec::decode_json(&ended);
        return Err(ended.map_or_else(
            |error| StartError::Spawn(io::Error::other(error.to_string())),
            StartError::Program,
        ));
    }
    Ok((child, copying))
}

/// The time in UTC to the second.
fn utc(at: Timestamp) -> String {
    jiff::Timestamp::from_second(i64::try_from(at.as_us() / 1_000_000).unwrap_or(i64::MAX))
        .map_or_else(|_| at.to_string(), |at| at.to_string())
}

/// Opens the job's log and writes the line that begins an attempt.
fn open_log(spec: &RunSpec) -> io::Result<JobOutput> {
    let time = utc(clock::now());
    let header = log::header(&spec.job, spec.attempt, &spec.node, &spec.gpus, &time);
    JobOutput::open(Path::new(&spec.log_path), &header, spec.log_bytes_max)
}
