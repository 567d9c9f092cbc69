//! Processes of the site, each on its host, restarted one second after an unexpected end.

use std::fs::{File, OpenOptions};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use wattle_runtime::clock::monotonic;

use super::network::Host;

/// Pause before a restart, as in the systemd units.
const RESTART_AFTER: Duration = Duration::from_secs(1);

/// A process that is kept running.
pub struct Process {
    /// `placer-ctl0`.
    pub name: String,
    /// Where it runs.
    pub host: Host,
    program: PathBuf,
    args: Vec<String>,
    env: Vec<(String, String)>,
    log: PathBuf,
    child: Option<Child>,
    /// When the child started or ended, or was paused or continued.
    since: Duration,
    paused: bool,
    /// Whether its host is down.
    down: bool,
    /// Number of starts.
    pub starts: u32,
}

impl Process {
    /// A process that is not started yet.
    #[must_use]
    pub fn new(
        name: String,
        host: Host,
        program: PathBuf,
        args: Vec<String>,
        env: Vec<(String, String)>,
        log: PathBuf,
    ) -> Self {
        Self {
            name,
            host,
            program,
            args,
            env,
            log,
            child: None,
            since: Duration::ZERO,
            paused: false,
            down: false,
            starts: 0,
        }
    }

    /// Starts it.
    ///
    /// # Errors
    /// If the program or its log cannot be opened.
    pub fn start(&mut self) -> Result<()> {
        let log: File = OpenOptions::new().create(true).append(true).open(&self.log)?;
        let mut command: Command = self.host.command(&self.program);
        command.args(&self.args).envs(self.env.iter().cloned());
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.child = Some(command.spawn().with_context(|| format!("cannot start {}", self.name))?);
        self.since = monotonic();
        self.paused = false;
        self.starts += 1;
        Ok(())
    }

    /// Restarts it if it has ended.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn supervise(&mut self) -> Result<()> {
        if let Some(child) = &mut self.child
            && child.try_wait()?.is_some()
        {
            self.child = None;
            self.since = monotonic();
        }
        if self.child.is_none() && !self.down && monotonic() >= self.since + RESTART_AFTER {
            self.start()?;
        }
        Ok(())
    }

    /// For how long it has been running without a pause; zero if it does not run.
    #[must_use]
    pub fn running_for(&self) -> Duration {
        if self.child.is_none() || self.paused {
            return Duration::ZERO;
        }
        monotonic().saturating_sub(self.since)
    }

    fn signal(&self, signal: &str) {
        if let Some(child) = &self.child {
            // It may have ended.
            let _ = Command::new("kill")
                .args([&format!("-{signal}"), &child.id().to_string()])
                .stderr(Stdio::null())
                .status();
        }
    }

    /// Kills it.
    pub fn kill(&mut self) {
        self.signal("KILL");
    }

    /// Ends it with SIGTERM, for an orderly stop.
    pub fn stop(&mut self) {
        self.down = true;
        self.signal("CONT");
        self.signal("TERM");
    }

    /// Whether it has ended.
    #[must_use]
    pub const fn has_ended(&self) -> bool {
        self.child.is_none()
    }

    /// Stops or continues it.
    pub fn pause(&mut self, paused: bool) {
        if self.paused != paused {
            self.signal(if paused { "STOP" } else { "CONT" });
            self.paused = paused;
            self.since = monotonic();
        }
    }

    /// Kills it with its host, or starts it with its host.
    pub fn host_down(&mut self, down: bool) {
        if down {
            self.kill();
        }
        self.down = down;
    }
}
