//! The last step before a job's program: a process that takes on the job's account, folder and
//! environment and then executes the program.
//!
//! It is the launcher's binary (`wattle-launcher execute DIR`), started by the supervisor. Its stdin is a
//! pipe to the supervisor, on which it reports the end of a run whose program cannot be executed, as JSON;
//! the pipe closes without a report once the program runs.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use wattle_common::codec;
use wattle_common::messages::NodeFaultKind;

use super::account::{Account, AccountError};
use super::cgroup::{CgroupError, Cgroups};
use super::run_folder::RunFolder;
use crate::RunSpec;
use crate::fault::StartFault;
use crate::state::StateError;

/// First argument of the launcher's binary for this step; the run's folder follows.
pub(super) const COMMAND: &str = "execute";

/// `PATH` of a job under another account than the launcher's.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// Variables of the launcher that such a job inherits: language and time zone.
const INHERITED: [&str; 3] = ["LANG", "LC_ALL", "TZ"];

/// Why the program was not executed, for the job's owner.
#[derive(Debug, thiserror::Error)]
enum ProgramError {
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Account(#[from] AccountError),
    #[error("it cannot be limited")]
    Cgroup(#[from] CgroupError),
    #[error("the working folder `{}` cannot be entered on this node: use a shared one", path.display())]
    WorkingDir { path: PathBuf, source: io::Error },
    #[error("the command is empty")]
    EmptyCommand,
    #[error("the program `{0}` is not on this node: give its full path, or install it there")]
    NotFound(String),
    #[error("the program `{0}` is not executable: check its mode with ls -l")]
    NotExecutable(String),
    #[error("cannot start the program `{program}`")]
    Execute { program: String, source: io::Error },
}

impl StartFault for ProgramError {
    fn node_fault(&self) -> Option<NodeFaultKind> {
        match self {
            Self::State(error) => error.node_fault(),
            Self::Account(error) => error.node_fault(),
            Self::Cgroup(error) => error.node_fault(),
            Self::WorkingDir { .. }
            | Self::EmptyCommand
            | Self::NotFound(_)
            | Self::NotExecutable(_)
            | Self::Execute { .. } => None,
        }
    }
}

/// The run's folder, if the command line of this process requests this step.
#[must_use]
pub fn requested_folder() -> Option<PathBuf> {
    super::requested_folder(COMMAND)
}

/// Executes the program of the run stored in `dir`. Returns only if that fails.
#[must_use]
pub fn run(dir: PathBuf) -> ExitCode {
    // A copy that closes when the program is executed, unlike stdin itself.
    let report = io::stdin().as_fd().try_clone_to_owned();
    let spec = RunFolder::at(dir).spec().map_err(ProgramError::from);
    let error = match spec.and_then(|spec| execute(&spec)) {
        Err(error) => error,
        Ok(never) => match never {},
    };
    if let Ok(report) = report {
        let _ = File::from(report).write_all(&codec::encode_json(&error.outcome()));
    }
    ExitCode::FAILURE
}

fn execute(spec: &RunSpec) -> Result<std::convert::Infallible, ProgramError> {
    let (program, arguments) = spec.command.split_first().ok_or(ProgramError::EmptyCommand)?;
    let account = Account::of(spec)?;
    let mut command = Command::new(program);
    command.args(arguments).env_clear().envs(inherited(account.as_ref()));
    command.envs(spec.environment.iter().map(|(key, value)| (key, value)));
    if let Some(cgroup) = &spec.cgroup {
        Cgroups::system()?.of(cgroup).join()?;
    }
    if let Some(account) = &account {
        account.enter()?;
    }
    let working_dir = Path::new(spec.working_dir.as_ref().unwrap_or(&spec.checkpoint_dir));
    std::env::set_current_dir(working_dir)
        .map_err(|source| ProgramError::WorkingDir { path: working_dir.to_owned(), source })?;
    let source = command.stdin(Stdio::null()).exec();
    Err(match source.kind() {
        io::ErrorKind::NotFound => ProgramError::NotFound(program.clone()),
        io::ErrorKind::PermissionDenied => ProgramError::NotExecutable(program.clone()),
        _ => ProgramError::Execute { program: program.clone(), source },
    })
}

/// The environment that a job has from its node: that of the launcher, or that of its account.
fn inherited(account: Option<&Account>) -> Vec<(OsString, OsString)> {
    let own = std::env::vars_os();
    let Some(account) = account else {
        return own.filter(|(key, _)| !key.to_str().is_some_and(is_launchers_own)).collect();
    };
    own.filter(|(key, _)| key.to_str().is_some_and(|key| INHERITED.contains(&key)))
        .chain([("PATH".into(), PATH.into())])
        .chain(account.environment().map(|(key, value)| (key.into(), value.into())))
        .collect()
}

/// Whether a variable is the launcher's own, set by Wattle or by systemd, and not the job's.
fn is_launchers_own(key: &str) -> bool {
    key.starts_with("WATTLE_")
        || matches!(key, "NOTIFY_SOCKET" | "WATCHDOG_USEC" | "WATCHDOG_PID" | "INVOCATION_ID")
}
