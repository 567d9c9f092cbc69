//! A cluster of the real services on simulated GPUs without `wattle up`: nothing restarts a service, and each
//! host has a wall clock that the test can set.
//!
//! Placer and launchers have the clock of their host. Profiler, power agent and jobs keep the machine's,
//! because the simulated driver reads it in the process that loads it.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use wattle_common::messages::{JobRecord, NodeDesired};
use wattle_common::subject::Bucket;
use wattle_common::{ClusterId, JobId, NodeId, Timestamp};
use wattle_launcher::engine::local::kill_all;
use wattle_runtime::bus::{Bus, BusConfig};
use wattle_runtime::clock;
use wattle_runtime::testing::NatsServer;

use crate::examples::{example, shifted_clock, simulate_gpus};
use crate::simulated_clock::{Held, SimulatedClock, environment};
use crate::{PATIENCE, answered, program, records, until};

/// System time per wall time.
pub const RATE: u32 = 60;
/// The lease of a node's order, wall time; also the age of a heartbeat after which a node gets no new jobs.
pub const LEASE: Duration = Duration::from_secs(3);
/// Silence after which a node is lost, wall time.
pub const LOST_AFTER: Duration = Duration::from_secs(5);

/// Age of the instant from which simulated time is faster than wall time. Before it both are the same, so a
/// clock must not be set to an earlier instant.
const EPOCH_AGO: Duration = Duration::from_secs(600);

/// The host of the placer; nodes are `n0`, `n1`.
pub const CONTROL: &str = "control";

/// The server, the placer and nodes of two simulated V100.
pub struct Services {
    /// The server.
    pub server: NatsServer,
    /// The bus, as any client sees it.
    pub bus: Bus,
    /// The names of the nodes.
    pub nodes: Vec<String>,
    folder: TempDir,
    clock: SimulatedClock,
    /// Settings of the placer besides those of [`Services::start`].
    placer: toml::Table,
    children: BTreeMap<(&'static str, String), Child>,
}

fn state_in(folder: &Path, node: &str) -> PathBuf {
    folder.join(format!("{node}.state"))
}

fn ms(wall: Duration) -> toml::Value {
    toml::Value::from((wall * RATE).as_millis() as i64)
}

impl Services {
    /// Starts everything, and waits until every node has an order.
    pub async fn start(nodes: usize) -> Self {
        Self::start_with(nodes, toml::Table::new()).await
    }

    /// The same with further settings of the placer.
    pub async fn start_with(nodes: usize, placer: toml::Table) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let nodes: Vec<String> = (0..nodes).map(|number| format!("n{number}")).collect();
        let states: Vec<PathBuf> = nodes.iter().map(|node| state_in(folder.path(), node)).collect();
        let epoch = (clock::wall_now() - EPOCH_AGO).as_us().to_string();
        for (node, state) in nodes.iter().zip(&states) {
            let made = Command::new(program("wattle-simnode"))
                .args(["create", "--node", node, "--gpus", "2", "--gpu-type", "v100"])
                .args(["--rate", &RATE.to_string(), "--epoch-us", &epoch, "--state"])
                .arg(state)
                .status();
            assert!(made.expect("wattle-simnode runs").success());
        }
        let server = NatsServer::start_with_environment(environment(&states[0])).await;
        let cluster = ClusterId::new("main").expect("the cluster of the examples in deploy");
        let bus = Bus::connect(&BusConfig::at(&server.url()), cluster, "test").await;
        let mut services = Self {
            server,
            bus: bus.expect("the server runs"),
            nodes,
            folder,
            clock: SimulatedClock::start(&states),
            placer,
            children: BTreeMap::new(),
        };
        services.run("placer", CONTROL);
        for node in services.nodes.clone() {
            for service in ["profiler", "power-agent", "launcher"] {
                services.run(service, &node);
            }
        }
        services.until_ordered().await;
        services
    }

    /// Waits until every node has a newer order, or a renewed lease, than at the time of the call.
    pub async fn until_ordered(&self) {
        let revisions = async || -> Option<Vec<u64>> {
            let bucket = self.bus.bucket(Bucket::Desired).await.ok()?;
            let mut revisions = Vec::new();
            for node in &self.nodes {
                let order = bucket.get::<NodeDesired>(node).await.ok()?;
                revisions.push(order.map_or(0, |(_, revision)| revision));
            }
            Some(revisions)
        };
        let before = until("orders can be read", revisions).await;
        until("every node has a newer order", async || {
            let now = revisions().await?;
            now.iter().zip(&before).all(|(now, before)| now > before).then_some(())
        })
        .await;
    }

    fn configuration(&self, service: &str, host: &str) -> anyhow::Result<String> {
        let folder = self.folder.path().join(host);
        let mut table = example(service, &self.server.url(), &folder)?;
        if host != CONTROL {
            simulate_gpus(&mut table, service, host, &self.state_of(host))?;
        }
        let settings = match service {
            "placer" => vec![
                ("policy", "fifo".into()),
                ("nodes_expected", (self.nodes.len() as i64).into()),
                ("lease_ms", ms(LEASE)),
                ("node_stale_after_ms", ms(LEASE)),
                ("node_lost_after_ms", ms(LOST_AFTER)),
            ],
            "power-agent" | "launcher" => vec![
                ("heartbeat_ms", ms(Duration::from_millis(500))),
                ("lease_max_ms", ms(LEASE * 4)),
            ],
            _ => Vec::new(),
        };
        for (name, value) in settings {
            table.insert(name.to_owned(), value);
        }
        if service == "placer" {
            table.extend(self.placer.clone());
        }
        Ok(table.to_string())
    }

    /// Starts a service on a host.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn run(&mut self, service: &'static str, host: &str) {
        let folder = self.folder.path().join(host);
        std::fs::create_dir_all(&folder).expect("the folder takes a folder");
        let config = folder.join(format!("{service}.toml"));
        let text = self.configuration(service, host).expect("the example is valid");
        std::fs::write(&config, text).expect("the folder takes a file");
        let log = OpenOptions::new().create(true).append(true).open(self.log_of(service, host));
        let log = log.expect("the folder takes a file");
        let mut command = Command::new(program(&format!("wattle-{service}")));
        command.arg("--config").arg(&config);
        // All hosts have the clock of the first node's hardware.
        command.envs([environment(&self.state_of(&self.nodes[0]))]);
        if host != CONTROL {
            command.env("WATTLE_SIM_NODE", self.state_of(host));
        }
        if matches!(service, "placer" | "launcher") {
            let shifted = shifted_clock(&folder.join("clock-offset"));
            command.envs(shifted.expect("the folder takes a file"));
        }
        command.stdin(Stdio::null());
        command.stdout(log.try_clone().expect("a file")).stderr(log);
        let child = command.spawn().expect("the service starts");
        self.children.insert((service, host.to_owned()), child);
    }

    /// Ends a service with SIGKILL.
    ///
    /// # Panics
    /// If it was not started.
    pub fn kill_9(&mut self, service: &'static str, host: &str) {
        let child = self.children.remove(&(service, host.to_owned()));
        let mut child = child.expect("a started service");
        child.kill().expect("it is our child");
        child.wait().expect("it is our child");
    }

    /// Sends a service a signal.
    ///
    /// # Panics
    /// If it does not run.
    pub fn signal(&self, service: &'static str, host: &str, signal: &str) {
        crate::kill(self.children[&(service, host.to_owned())].id(), signal);
    }

    /// Sets the wall clock of a host by this many seconds from the machine's.
    ///
    /// # Panics
    /// If it cannot be set.
    pub fn set_clock(&self, host: &str, seconds: i64) {
        let file = self.folder.path().join(host).join("clock-offset");
        std::fs::write(file, format!("{seconds:+}")).expect("the folder takes a file");
    }

    /// The state file of a node's hardware.
    #[must_use]
    pub fn state_of(&self, node: &str) -> PathBuf {
        state_in(self.folder.path(), node)
    }

    fn log_of(&self, service: &str, host: &str) -> PathBuf {
        self.folder.path().join(host).join(format!("{service}.log"))
    }

    /// The log of a service.
    #[must_use]
    pub fn log(&self, service: &str, host: &str) -> String {
        std::fs::read_to_string(self.log_of(service, host)).unwrap_or_default()
    }

    /// Waits until a log of the placer has this text.
    pub async fn until_alarm(&self, text: &str) {
        until(&format!("the placer's alarm `{text}`"), async || {
            self.log("placer", CONTROL).contains(text).then_some(())
        })
        .await;
    }

    /// The system time of the hardware.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Holds the simulated time.
    pub fn hold(&self) -> Held {
        self.clock.hold()
    }

    /// Runs a command of `wattle`.
    pub fn wattle(&self, args: &[&str]) -> Output {
        let mut command = Command::new(program("wattle"));
        command
            .args(args)
            .env("WATTLE_NATS_URL", self.server.url())
            .env("WATTLE_CLUSTER", "main")
            .envs([environment(&self.state_of(&self.nodes[0]))])
            .env("XDG_STATE_HOME", self.folder.path());
        answered(|| command.output().expect("wattle runs"))
    }

    /// Submits a simulated job of one GPU.
    ///
    /// # Panics
    /// If it is refused.
    pub fn submit(&self, job: &str, workload: &str, steps: u32) -> JobId {
        let (simjob, steps) = (program("wattle-simjob"), steps.to_string());
        let simjob = simjob.to_str().expect("a path of text");
        let head = ["submit", "--job", job, "--checkpoint-signal", "SIGUSR1", "--", simjob];
        let training = ["--workload", workload, "--steps", &steps];
        let output = self.wattle(&[&head[..], &training].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}\n{}", self.logs());
        JobId::new(job).expect("an id")
    }

    /// A job's record.
    pub async fn record(&self, job: &JobId) -> Option<JobRecord> {
        records::record(&self.bus, job).await
    }

    /// Waits until a job's record satisfies `wanted`.
    ///
    /// # Panics
    /// If it does not.
    pub async fn until_job(
        &self,
        job: &JobId,
        what: &str,
        wanted: impl Fn(&JobRecord) -> bool,
    ) -> JobRecord {
        let what = format!("{job}: {what}");
        let read = async || self.record(job).await.into_iter().collect();
        records::until(PATIENCE, &what, read, wanted, || self.logs()).await
    }

    /// The order of a node.
    pub async fn order(&self, node: &str) -> Option<NodeDesired> {
        let bucket = self.bus.bucket(Bucket::Desired).await.ok()?;
        bucket.get(NodeId::new(node).ok()?.as_str()).await.ok().flatten().map(|(order, _)| order)
    }

    /// The last lines of every log.
    #[must_use]
    pub fn logs(&self) -> String {
        let mut text = String::new();
        for (service, host) in self.children.keys() {
            let log = self.log(service, host);
            let lines: Vec<&str> = log.lines().collect();
            let tail = lines[lines.len().saturating_sub(25)..].join("\n");
            text.push_str(&format!("--- {service} {host}\n{tail}\n"));
        }
        text
    }

    fn launcher_state(&self, node: &str) -> PathBuf {
        self.folder.path().join(node).join("lib-launcher/state")
    }
}

impl Drop for Services {
    #[expect(clippy::print_stdout, reason = "logs of a failed test")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}", self.logs());
        }
        for child in self.children.values_mut() {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
        for node in &self.nodes {
            let state = self.launcher_state(node);
            if Path::exists(&state) {
                let _ = kill_all(&state);
            }
        }
    }
}
