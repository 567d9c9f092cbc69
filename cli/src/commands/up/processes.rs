//! The processes `wattle up` starts, and keeps running until it ends.
//!
//! A process that ends before it was asked to is started again: the services are built for that,
//! and whoever tries the system may kill any of them to see it. What they print goes to a log file
//! each.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{child, simulated_sleep};
use crate::output::note;

/// How long a process may take to end after it was asked to.
const GRACE: Duration = Duration::from_secs(5);
/// The same for a launcher, which lets its jobs write their checkpoints first: the two minutes it
/// gives them, and what follows.
const GRACE_LAUNCHER: Duration = Duration::from_secs(135);
/// After so long a person is told what is waited for.
const SILENCE: Duration = Duration::from_secs(3);
/// How long before a process that ended is started again.
const PAUSE: Duration = Duration::from_millis(300);

/// One process: what to start.
#[derive(Clone)]
pub(crate) struct Program {
    /// What it is called in notes and in its log's name: `profiler-n0`.
    pub(crate) name: String,
    /// The program.
    pub(crate) path: PathBuf,
    /// Its arguments.
    pub(crate) args: Vec<OsString>,
    /// Its environment, beside what it inherits.
    pub(crate) env: Vec<(String, OsString)>,
    /// How long it may take to end after it was asked to.
    pub(crate) grace: Duration,
}

impl Program {
    /// The bus.
    pub(crate) fn server(path: PathBuf, args: Vec<OsString>) -> Self {
        Self { name: "nats-server".to_owned(), path, args, env: Vec::new(), grace: GRACE }
    }

    /// A program of ours, with its configuration.
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
        let me = std::env::current_exe().context("cannot tell where wattle lies")?;
        let child = Command::new(me)
            .args(child::arguments(std::process::id(), self.path.clone().into_os_string()))
            .args(&self.args)
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
    refused: CancellationToken,
    keepers: JoinSet<()>,
}

impl Processes {
    /// None yet; their logs go to `logs`.
    pub(crate) fn new(logs: PathBuf) -> Self {
        Self {
            logs,
            stop: CancellationToken::new(),
            refused: CancellationToken::new(),
            keepers: JoinSet::new(),
        }
    }

    /// Starts `program` and keeps it running.
    pub(crate) fn start(&mut self, program: Program) -> anyhow::Result<()> {
        let child = program.spawn(&self.logs)?;
        let keeper = Keeper {
            program,
            logs: self.logs.clone(),
            stop: self.stop.clone(),
            refused: self.refused.clone(),
        };
        self.keepers.spawn(keeper.keep(child));
        Ok(())
    }

    /// Comes when a process would not start with what it was given: trying again is no use.
    pub(crate) fn refused(&self) -> CancellationToken {
        self.refused.clone()
    }

    /// Asks all to end, and sees to it; a second Ctrl-C ends them at once.
    pub(crate) async fn stop(mut self) {
        self.stop.cancel();
        let all = async {
            let each = async { while self.keepers.join_next().await.is_some() {} };
            tokio::pin!(each);
            if tokio::time::timeout(SILENCE, &mut each).await.is_err() {
                note("waiting for jobs to write their checkpoints; Ctrl-C ends them at once");
                each.await;
            }
        };
        tokio::select! {
            () = all => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    }
}

/// Exit code of a program that refuses its configuration.
const REFUSED: i32 = 2;

struct Keeper {
    program: Program,
    logs: PathBuf,
    stop: CancellationToken,
    refused: CancellationToken,
}

impl Keeper {
    async fn keep(self, mut child: Child) {
        let name = &self.program.name;
        loop {
            let ended = tokio::select! {
                ended = child.wait() => ended,
                () = self.stop.cancelled() => {
                    end(&mut child, self.program.grace).await;
                    return;
                }
            };
            if let Ok(status) = &ended
                && status.code() == Some(REFUSED)
            {
                let log = self.logs.join(format!("{name}.log"));
                let said = std::fs::read_to_string(log).unwrap_or_default();
                note(&format!("{name} does not start: {}", said.lines().last().unwrap_or("?")));
                self.refused.cancel();
                return;
            }
            let how = ended.map_or_else(|error| error.to_string(), |status| status.to_string());
            note(&format!("{name} ended ({how}); starting it again"));
            loop {
                if tokio::time::timeout(PAUSE, self.stop.cancelled()).await.is_ok() {
                    return;
                }
                match self.program.spawn(&self.logs) {
                    Ok(started) => {
                        child = started;
                        break;
                    }
                    Err(error) => note(&format!("{error:#}; trying again")),
                }
            }
        }
    }
}

async fn end(child: &mut Child, grace: Duration) {
    let id = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    if let Some(id) = id {
        // It may have ended this very moment.
        let _ = kill_process(id, Signal::TERM);
        // On a node that sleeps it would not hear of it.
        let _ = kill_process(id, Signal::CONT);
    }
    if tokio::time::timeout(grace, child.wait()).await.is_err() {
        let _ = child.kill().await;
    }
}

/// Finds one of our own programs: beside `wattle` itself.
pub(crate) fn find_own(name: &str) -> anyhow::Result<PathBuf> {
    let me = std::env::current_exe().context("cannot tell where wattle lies")?;
    let folder = me.parent().context("cannot tell where wattle lies")?;
    let path = folder.join(name);
    anyhow::ensure!(
        path.is_file(),
        "{name} is not beside wattle in {}; `cargo build --workspace` makes them all",
        folder.display()
    );
    Ok(path)
}
