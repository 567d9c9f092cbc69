//! The processes of `wattle up`.
//!
//! A process that ends unexpectedly is restarted. Each process has a log file.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use wattle_common::env;
use wattle_runtime::clock::wall_now;

use super::{child, simulated_sleep};
use crate::output::note;

/// Time limit for a process to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(5);
/// Time limit for a launcher to end after SIGTERM: it first waits up to two minutes for checkpoints.
const GRACE_LAUNCHER: Duration = Duration::from_secs(135);
/// Delay before a note about the wait.
const SILENCE: Duration = Duration::from_secs(3);
/// Delay before a restart; doubled after each failed start, up to [`PAUSE_MAX`].
const PAUSE: Duration = Duration::from_millis(300);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// A process that exits within this time of its start has failed to start.
const START: Duration = Duration::from_secs(2);
/// Time limit for processes to answer after their start, wall time: a busy machine starts them slowly. One that
/// ends is reported at once.
pub(super) const READY_WITHIN: Duration = Duration::from_secs(300);
/// Number of consecutive failed starts after which the failure is reported.
const FAILED_STARTS_MAX: u32 = 3;

/// A program to run.
#[derive(Clone)]
pub(crate) struct Program {
    /// Name in notes and of its log file: `profiler-n0`.
    pub(crate) name: String,
    /// The program.
    pub(crate) path: PathBuf,
    /// Its arguments.
    pub(crate) args: Vec<OsString>,
    /// Additional environment.
    pub(crate) env: Vec<(String, OsString)>,
    /// Time limit to end after SIGTERM.
    pub(crate) grace: Duration,
}

impl Program {
    /// The NATS server.
    pub(crate) fn server(path: PathBuf, args: Vec<OsString>, env: Vec<(String, OsString)>) -> Self {
        Self { name: "nats-server".to_owned(), path, args, env, grace: GRACE }
    }

    /// The clock of simulated hardware.
    pub(crate) fn clock(path: PathBuf, args: Vec<OsString>) -> Self {
        Self { name: "clock".to_owned(), path, args, env: Vec::new(), grace: GRACE }
    }

    /// A Wattle service with its configuration file.
    pub(crate) fn service(
        name: String,
        path: PathBuf,
        config: &Path,
        env: &[(String, OsString)],
    ) -> Self {
        let args = vec!["--config".into(), config.as_os_str().to_owned()];
        let grace = if name.starts_with("launcher") { GRACE_LAUNCHER } else { GRACE };
        Self { name, path, args, env: env.to_vec(), grace }
    }

    fn spawn(&self, logs: &Path) -> anyhow::Result<Child> {
        let log_path = logs.join(format!("{}.log", self.name));
        let log = File::options()
            .create(true)
            .append(true)
            .open(&log_path)
            .with_context(|| format!("cannot write {}", log_path.display()))?;
        let me = std::env::current_exe().context("cannot find the path of this program")?;
        let child = Command::new(me)
            .args(child::arguments(std::process::id(), self.path.clone().into_os_string()))
            .args(&self.args)
            // Their configuration has the address and the key.
            .env_remove(env::NATS_URL)
            .env_remove(env::CREDENTIALS)
            .env_remove(env::CA)
            .envs(self.env.iter().map(|(key, value)| (key, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("cannot share a log file")?)
            .stderr(log)
            // Ctrl-C at the terminal is for `wattle up`, which then ends them in order.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {}", self.path.display()))?;
        if let Some(pid) = child.id() {
            let file = simulated_sleep::pid_file(logs, &self.name);
            std::fs::write(&file, pid.to_string())
                .with_context(|| format!("cannot write {}", file.display()))?;
        }
        Ok(child)
    }
}

/// Processes that run until they are stopped.
pub(crate) struct Processes {
    logs: PathBuf,
    stop: CancellationToken,
    failure: watch::Sender<Option<String>>,
    supervisors: JoinSet<()>,
}

impl Processes {
    /// No process yet; log files are written to `logs`.
    pub(crate) fn new(logs: PathBuf) -> Self {
        Self {
            logs,
            stop: CancellationToken::new(),
            failure: watch::Sender::new(None),
            supervisors: JoinSet::new(),
        }
    }

    /// Starts `program` and keeps it running.
    pub(crate) fn start(&mut self, program: Program) -> anyhow::Result<()> {
        let child = program.spawn(&self.logs)?;
        let supervisor = Supervisor {
            program,
            logs: self.logs.clone(),
            stop: self.stop.clone(),
            failure: self.failure.clone(),
        };
        self.supervisors.spawn(supervisor.run(child));
        Ok(())
    }

    /// Waits until a process does not start: it rejects its configuration, or it has failed
    /// [`FAILED_STARTS_MAX`] times. The error names the process and its last line of output.
    pub(crate) fn failure(&self) -> impl Future<Output = anyhow::Error> + use<> {
        let mut failure = self.failure.subscribe();
        async move {
            match failure.wait_for(Option::is_some).await {
                Ok(found) => anyhow::anyhow!("{}", found.as_deref().unwrap_or_default()),
                Err(_) => std::future::pending().await,
            }
        }
    }

    /// Terminates all processes and waits; a second Ctrl-C kills them at once.
    pub(crate) async fn stop(mut self) {
        self.stop.cancel();
        let all = async {
            let each = async { while self.supervisors.join_next().await.is_some() {} };
            tokio::pin!(each);
            if tokio::time::timeout(SILENCE, &mut each).await.is_err() {
                note(
                    "waiting for the services, and for jobs to write their checkpoints; Ctrl-C ends all at once",
                );
                each.await;
            }
        };
        tokio::select! {
            () = all => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    }
}

/// Exit code of a service that rejects its configuration.
///
/// A crashed nats-server has the same exit code, so it counts only at the first start, within [`START`].
const REFUSED: i32 = 2;

struct Supervisor {
    program: Program,
    logs: PathBuf,
    stop: CancellationToken,
    failure: watch::Sender<Option<String>>,
}

impl Supervisor {
    async fn run(self, mut child: Child) {
        let name = &self.program.name;
        let mut failed_starts = 0;
        let mut is_first = true;
        loop {
            let started = wall_now();
            let ended = tokio::select! {
                ended = child.wait() => ended,
                () = self.stop.cancelled() => {
                    end(&mut child, self.program.grace).await;
                    return;
                }
            };
            let code = ended.as_ref().ok().and_then(ExitStatus::code);
            let ran = wall_now().since(started) >= START;
            if code == Some(REFUSED) && is_first && !ran {
                let program = self.program.path.display();
                self.report(&format!("{name} does not start: {program}: {}", self.last_line()));
                return;
            }
            let how = ended.map_or_else(|error| error.to_string(), |status| status.to_string());
            is_first = false;
            // A process that a signal ended has no exit code, and has not failed by itself.
            let failed = code.is_some() && !ran;
            failed_starts = if failed { failed_starts + 1 } else { 0 };
            if failed_starts == FAILED_STARTS_MAX {
                self.report(&format!(
                    "{name} does not start: {} ended {FAILED_STARTS_MAX} times within {START:?} \
                     ({how}): {}",
                    self.program.path.display(),
                    self.last_line()
                ));
            }
            note(&format!("{name} ended ({how}); starting it again"));
            let mut pause = (PAUSE * 2_u32.saturating_pow(failed_starts)).min(PAUSE_MAX);
            loop {
                if tokio::time::timeout(pause, self.stop.cancelled()).await.is_ok() {
                    return;
                }
                match self.program.spawn(&self.logs) {
                    Ok(started) => {
                        child = started;
                        break;
                    }
                    Err(error) => note(&format!("{error:#}; trying again")),
                }
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }

    /// Reports a failed start. Once the cluster is up only the note is read.
    fn report(&self, failure: &str) {
        if self.failure.receiver_count() == 0 {
            note(failure);
        }
        self.failure.send_replace(Some(failure.to_owned()));
    }

    /// The last line of the program's log.
    fn last_line(&self) -> String {
        let log = self.logs.join(format!("{}.log", self.program.name));
        let log = std::fs::read_to_string(log).unwrap_or_default();
        log.lines().last().unwrap_or("it printed nothing").to_owned()
    }
}

async fn end(child: &mut Child, grace: Duration) {
    let id = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    if let Some(id) = id {
        // The process may have ended already.
        let _ = kill_process(id, Signal::TERM);
        // A stopped process does not handle SIGTERM before SIGCONT.
        let _ = kill_process(id, Signal::CONT);
    }
    if tokio::time::timeout(grace, child.wait()).await.is_err() {
        let _ = child.kill().await;
    }
}

/// The folder of the packages for files that are no programs, seen from that of `wattle`.
const LIBRARY_FOLDER: &str = "../lib/wattle";

/// Finds a program or library of the project in the folder of `wattle`, or in that of the packages.
pub(crate) fn find_own(name: &str) -> anyhow::Result<PathBuf> {
    let me = std::env::current_exe().context("cannot find the path of this program")?;
    let folder = me.parent().context("cannot find the path of this program")?;
    let places = [folder.join(name), folder.join(LIBRARY_FOLDER).join(name)];
    places.into_iter().find(|path| path.is_file()).with_context(|| {
        format!(
            "{name} is not in {}: install the packages of Wattle, or run `cargo build`",
            folder.display()
        )
    })
}
