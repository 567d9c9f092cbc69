//! A cluster under load: the real server, placer, registry and predictor, and many simulated nodes in
//! one process.
//!
//! A simulated node ([`nodes`]) runs the state machines of power agent and launcher with GPUs and
//! processes in memory, and uses the bus as the services do: a watch of its desired state for each, and
//! a report in the bucket `actual` at every change and heartbeat. [`requests`] measures the latency of
//! submissions. Profilers are absent, as their messages do not reach the placer, except for the ledger.

pub mod flood;
pub mod nodes;
pub mod requests;

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use wattle_common::ClusterId;
use wattle_runtime::bus::{Bus, BusConfig};
use wattle_runtime::testing::NatsServer;

use crate::{PATIENCE, program, repository, until};

/// A server and services of one cluster.
pub struct Site {
    /// The server.
    pub server: NatsServer,
    /// The bus, as any client sees it.
    pub bus: Bus,
    services: Vec<(&'static str, Child)>,
    folder: TempDir,
}

impl Site {
    /// Starts a server and a placer with `deploy/placer.toml`, changed by `edits` of (old, new) text.
    pub async fn start(edits: &[(&str, &str)]) -> Self {
        Self::start_on(NatsServer::start().await, edits).await
    }

    /// As [`Self::start`], on this server.
    pub async fn start_on(server: NatsServer, edits: &[(&str, &str)]) -> Self {
        let cluster = ClusterId::new("main").expect("the cluster of the examples in deploy");
        let bus = Bus::connect(&BusConfig::at(&server.url()), cluster, "load").await;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let bus = bus.expect("the server runs");
        let mut site = Self { server, bus, services: Vec::new(), folder };
        site.run("wattle-placer", "placer.toml", edits).await;
        site
    }

    /// Starts a service with its example configuration, and waits until it answers.
    pub async fn run(&mut self, name: &'static str, file: &str, edits: &[(&str, &str)]) {
        let example = repository("deploy").join(file);
        let mut text = std::fs::read_to_string(&example).expect("an example configuration");
        for (old, new) in edits {
            assert!(text.contains(old), "{file} has no `{old}`");
            text = text.replace(old, new);
        }
        let config = self.folder.path().join(file);
        std::fs::write(&config, text).expect("the folder takes a file");
        let log = std::fs::File::create(self.folder.path().join(format!("{file}.log")));
        let log = log.expect("the folder takes a file");
        let child = Command::new(program(name))
            .arg("--config")
            .arg(&config)
            .env("WATTLE_NATS_URL", self.server.url())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.services.push((name, child.expect("the service starts")));
        until(&format!("{name} answers"), async || {
            let found = self.bus.services(name, Duration::from_millis(200)).await.ok()?;
            let active = |state: &String| state == "active";
            found.iter().any(|s| s.metadata.get("state").is_none_or(active)).then_some(())
        })
        .await;
    }

    /// The process id of a service.
    ///
    /// # Panics
    /// If it was not started.
    #[must_use]
    pub fn pid(&self, name: &str) -> u32 {
        let found = self.services.iter().rev().find(|(service, _)| *service == name);
        found.expect("a started service").1.id()
    }

    /// Resident memory of a service, or of `nats-server`.
    #[must_use]
    pub fn memory(&self, name: &str) -> Memory {
        let pid = match name {
            "nats-server" => self.server.pid().expect("it runs"),
            name => self.pid(name),
        };
        Memory::of(pid)
    }

    /// Runs a command of `wattle` against this site.
    pub fn wattle(&self, args: &[&str]) -> Output {
        Command::new(program("wattle"))
            .args(args)
            .env("WATTLE_NATS_URL", self.server.url())
            .env("WATTLE_CLUSTER", "main")
            .env("XDG_STATE_HOME", self.folder.path())
            .output()
            .expect("wattle runs")
    }

    /// The log of a service.
    #[must_use]
    pub fn log(&self, file: &str) -> String {
        let path = self.folder.path().join(format!("{file}.log"));
        std::fs::read_to_string(path).unwrap_or_default()
    }

    /// Another connection of a cluster's client.
    pub async fn connect(&self) -> Bus {
        let config = BusConfig::at(&self.server.url());
        let bus = Bus::connect_within(&config, self.bus.cluster().clone(), "load", PATIENCE).await;
        bus.expect("the server runs")
    }

    /// The folder of the site's configuration and logs.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Site {
    #[expect(clippy::print_stdout, reason = "logs of a failed test")]
    fn drop(&mut self) {
        for (_, child) in &mut self.services {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            let log = self.log("placer.toml");
            let lines: Vec<&str> = log.lines().collect();
            println!("{}", lines[lines.len().saturating_sub(25)..].join("\n"));
        }
    }
}

/// Resident memory of a process, MB (10^6 bytes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// At present.
    pub now: u64,
    /// At most, since its start.
    pub peak: u64,
}

impl Memory {
    /// The memory of a running process.
    ///
    /// # Panics
    /// If it does not run.
    #[must_use]
    pub fn of(pid: u32) -> Self {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
        let status = status.unwrap_or_else(|error| panic!("process {pid} has ended: {error}"));
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
            kib.expect("the kernel reports it for every running process") * 1_024 / 1_000_000
        };
        Self { now: field("VmRSS:"), peak: field("VmHWM:") }
    }
}

impl std::fmt::Display for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} MB (peak {} MB)", self.now, self.peak)
    }
}
