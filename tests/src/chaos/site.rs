//! The site: three NATS servers, two hosts with placer, registry and predictor, and GPU nodes, with the
//! keys, permissions and certificates of `wattle keys` and the example configurations of `deploy/`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, Result, ensure};
use wattle_common::ClusterId;
use wattle_runtime::bus::{Bus, BusConfig};

use super::network::{self, Host};
use super::process::Process;
use crate::examples::{example, shifted_clock, simulate_gpus};
use crate::program;

/// Number of NATS servers, hosts of the central services, GPUs of a node.
pub const SERVERS: u8 = 3;
const CONTROLS: u8 = 2;
const GPUS: u32 = 2;
/// System time per wall time.
pub const RATE: u32 = 10;
/// Size of a NATS server's disk, MiB.
const DISK_MIB: u32 = 512;

/// The hosts and processes.
pub struct Site {
    /// Everything that the site writes.
    pub folder: PathBuf,
    /// Every host by name.
    pub hosts: BTreeMap<String, Host>,
    /// Every process.
    pub processes: Vec<Process>,
    /// Names of the GPU nodes.
    pub nodes: Vec<String>,
    /// Addresses of the NATS servers.
    pub url: String,
}

impl Site {
    /// Creates the site in `folder`; nothing runs yet.
    ///
    /// # Errors
    /// If the network, a key or a file cannot be created.
    pub fn create(folder: &Path, nodes: u8) -> Result<Self> {
        network::create()?;
        let mut hosts = BTreeMap::new();
        let mut add = |name: String, number: u8| -> Result<Host> {
            let host = network::add(&name, number)?;
            std::fs::create_dir_all(folder.join(&name))?;
            hosts.insert(name, host.clone());
            Ok(host)
        };
        let servers: Vec<Host> =
            (0..SERVERS).map(|i| add(format!("nats{i}"), 11 + i)).collect::<Result<_>>()?;
        let controls: Vec<Host> =
            (0..CONTROLS).map(|i| add(format!("ctl{i}"), 21 + i)).collect::<Result<_>>()?;
        let gpus: Vec<Host> =
            (0..nodes).map(|i| add(format!("g{i}"), 31 + i)).collect::<Result<_>>()?;
        let url: Vec<String> =
            servers.iter().map(|host| format!("nats://{}:4222", host.address)).collect();
        let mut site = Self {
            folder: folder.to_owned(),
            hosts,
            processes: Vec::new(),
            nodes: gpus.iter().map(|host| host.name.clone()).collect(),
            url: url.join(","),
        };
        site.create_keys(&servers)?;
        site.add_servers(&servers)?;
        std::fs::create_dir_all(folder.join("state"))?;
        // All nodes have one clock.
        let epoch = wattle_runtime::clock::wall_now().as_us().to_string();
        for host in &gpus {
            let output = Command::new(program("wattle-simnode"))
                .args(["create", "--node", &host.name, "--gpus", &GPUS.to_string()])
                .args(["--gpu-type", "v100", "--rate", &RATE.to_string(), "--epoch-us", &epoch])
                .arg("--state")
                .arg(site.state_of(&host.name))
                .output()?;
            ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        for host in &controls {
            for (service, key) in [
                ("placer", "placer"),
                ("registry", "registry"),
                ("predictor", "predictor-physical"),
            ] {
                site.add_service(host, service, key)?;
            }
        }
        for host in &gpus {
            for service in ["profiler", "power-agent", "launcher"] {
                site.add_service(host, service, &format!("node-{}", host.name))?;
            }
        }
        Ok(site)
    }

    /// The state file of a simulated node.
    #[must_use]
    pub fn state_of(&self, node: &str) -> PathBuf {
        // The processes of a simulated job find each other through the files of one folder.
        self.folder.join("state").join(format!("{node}.state"))
    }

    /// The file with the offset of a host's wall clock.
    #[must_use]
    pub fn clock_of(&self, host: &str) -> PathBuf {
        self.folder.join(host).join("clock-offset")
    }

    /// The folder on the disk of a NATS server.
    #[must_use]
    pub fn disk_of(&self, host: &str) -> PathBuf {
        self.folder.join(host).join("disk")
    }

    fn keys(&self) -> PathBuf {
        self.folder.join("keys")
    }

    fn create_keys(&self, servers: &[Host]) -> Result<()> {
        let folder = self.keys().display().to_string();
        let run = |args: &[&str]| -> Result<()> {
            let output = Command::new(program("wattle"))
                .arg("keys")
                .args(args)
                .args(["--folder", &folder])
                .output()?;
            ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            Ok(())
        };
        let hosts: Vec<&str> =
            servers.iter().flat_map(|host| ["--host", host.address.as_str()]).collect();
        run(&[&["init", "--cluster", "main"][..], &hosts].concat())?;
        let nodes: Vec<&str> = self.nodes.iter().map(String::as_str).collect();
        run(&[&["add", "node"][..], &nodes].concat())?;
        run(&["add", "predictor", "physical"])?;
        run(&["add", "user", "ada", super::forgery::USER])?;
        run(&["add", "operator", "olga"])
    }

    fn add_servers(&mut self, servers: &[Host]) -> Result<()> {
        let keys = self.keys().join("server");
        let identities = std::fs::read_to_string(keys.join("auth.conf"))?;
        let routes: Vec<String> =
            servers.iter().map(|host| format!("\"nats://{}:6222\"", host.address)).collect();
        let binary = wattle_runtime::server::find().context("nats-server is missing")?;
        for host in servers {
            let disk = self.disk_of(&host.name);
            network::mount_disk(&disk, DISK_MIB)?;
            let file = self.folder.join(&host.name).join("nats.conf");
            let text = format!(
                "server_name: {name}\nlisten: {address}:4222\n{identities}\n\
                 jetstream {{ store_dir: \"{disk}\", max_memory_store: 64MB, max_file_store: 10GB }}\n\
                 max_payload: 1MB\nwrite_deadline: \"5s\"\nping_interval: \"5s\"\nping_max: 2\n\
                 cluster {{\n  name: main\n  listen: {address}:6222\n  routes: [{routes}]\n  \
                 tls {{ cert_file: \"{keys}/server.pem\", key_file: \"{keys}/server.key\", \
                 ca_file: \"{keys}/ca.pem\", verify: true, timeout: 5 }}\n}}\n",
                name = host.name,
                address = host.address,
                disk = disk.display(),
                routes = routes.join(", "),
                keys = keys.display(),
            );
            std::fs::write(&file, text)?;
            self.processes.push(Process::new(
                format!("nats-server-{}", host.name),
                host.clone(),
                binary.clone(),
                vec!["-c".to_owned(), file.display().to_string()],
                Vec::new(),
                self.folder.join(&host.name).join("nats-server.log"),
            ));
        }
        Ok(())
    }

    fn add_service(&mut self, host: &Host, service: &str, key: &str) -> Result<()> {
        let folder = self.folder.join(&host.name);
        let file = folder.join(format!("{service}.toml"));
        std::fs::write(&file, self.configuration(host, service, key)?)?;
        let mut env = Vec::new();
        let is_node = self.nodes.contains(&host.name);
        let node = if is_node { &host.name } else { &self.nodes[0] };
        let state = self.state_of(node).display().to_string();
        env.push(("WATTLE_CLOCK".to_owned(), state.clone()));
        if is_node {
            env.push(("WATTLE_SIM_NODE".to_owned(), state));
        }
        // The simulated driver reads the wall clock in the process that loads it, so a step of it would
        // step the hardware.
        if !matches!(service, "profiler" | "power-agent") {
            env.extend(shifted_clock(&self.clock_of(&host.name))?);
        }
        self.processes.push(Process::new(
            format!("{service}-{}", host.name),
            host.clone(),
            program(&format!("wattle-{service}")),
            vec!["--config".to_owned(), file.display().to_string()],
            env,
            folder.join(format!("{service}.log")),
        ));
        Ok(())
    }

    /// The example configuration of a service, for this host.
    fn configuration(&self, host: &Host, service: &str, key: &str) -> Result<String> {
        let mut table = example(service, &self.url, &self.folder.join(&host.name))?;
        if self.nodes.contains(&host.name) {
            simulate_gpus(&mut table, service, &host.name, &self.state_of(&host.name))?;
        }
        let settings: &[(&str, i64)] = match service {
            // In system time. Nodes are lost after a minute of wall time, longer than any fault.
            "placer" => &[
                ("lease_ms", 60_000),
                ("node_stale_after_ms", 60_000),
                ("node_lost_after_ms", 600_000),
                ("service_lease_wall_ms", 3_000),
            ],
            "registry" | "predictor" => &[("service_lease_wall_ms", 3_000)],
            _ => &[],
        };
        for (name, value) in settings {
            table.insert((*name).to_owned(), (*value).into());
        }
        match service {
            "placer" => {
                table.insert("share".into(), "any".into());
            }
            "launcher" => {
                // A job continues from its checkpoint on any node.
                let shared = self.folder.join("checkpoints");
                std::fs::create_dir_all(&shared)?;
                let shared = shared.to_str().context("a path of text")?;
                table.insert("checkpoint_dir".into(), shared.into());
            }
            _ => {}
        }
        let nats = table.get_mut("nats").and_then(toml::Value::as_table_mut);
        let nats = nats.with_context(|| format!("deploy/{service}.toml has no [nats] table"))?;
        let seed = self.keys().join(format!("seeds/{key}.nk"));
        nats.insert("credentials_file".into(), seed.display().to_string().into());
        nats.insert("ca_file".into(), self.authority().display().to_string().into());
        if service == "placer" {
            nats.insert("replicas".into(), i64::from(SERVERS).into());
        }
        Ok(table.to_string())
    }

    fn authority(&self) -> PathBuf {
        self.keys().join("server/ca.pem")
    }

    /// A command of a person.
    #[must_use]
    pub fn wattle(&self, person: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program("wattle"));
        command
            .args(args)
            .env("WATTLE_CREDENTIALS", self.keys().join(format!("seeds/{person}.nk")))
            .env("WATTLE_CA", self.authority())
            .env("WATTLE_NATS_URL", &self.url)
            .env("WATTLE_CLUSTER", "main")
            .env("WATTLE_CLOCK", self.state_of(&self.nodes[0]))
            .env("XDG_STATE_HOME", &self.folder)
            .stdin(Stdio::null());
        command
    }

    /// Runs a command of a person.
    ///
    /// # Errors
    /// If it fails.
    pub fn run(&self, person: &str, args: &[&str]) -> Result<Output> {
        let output = self.wattle(person, args).output()?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "wattle {}: {error}", args.join(" "));
        Ok(output)
    }

    /// The configuration of a process without a key.
    #[must_use]
    pub fn keyless(&self) -> BusConfig {
        let ca_file = Some(self.authority());
        BusConfig { ca_file, permit_insecure: true, ..BusConfig::at(&self.url) }
    }

    /// A connection to the bus with a key of the site.
    ///
    /// # Errors
    /// If the key cannot be read.
    pub async fn bus(&self, key: &str) -> Result<Bus> {
        let config = BusConfig {
            credentials_file: Some(self.keys().join(format!("seeds/{key}.nk"))),
            ca_file: Some(self.authority()),
            ..BusConfig::at(&self.url)
        };
        Ok(Bus::connect(&config, ClusterId::new("main")?, "chaos").await?)
    }
}
