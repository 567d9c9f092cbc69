//! Address of the bus and name of the cluster.
//!
//! The address is taken from `--nats`, `WATTLE_NATS_URL`, a running `wattle up` on this machine or
//! NATS's default port, in this order. `wattle up` writes a small file with its address, the path of its key
//! and the file of the system's clock.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use serde::{Deserialize, Serialize};
use wattle_common::subject::Rank;
use wattle_common::{ClusterId, env};
use wattle_runtime::bus::{Bus, BusConfig, BusError};
use wattle_runtime::files::{self, Access};

use crate::output::{usage, usage_chain};

/// NATS's own default address.
const DEFAULT_URL: &str = "nats://127.0.0.1:4222";
/// The cluster name of `wattle up`.
pub(crate) const DEFAULT_CLUSTER: &str = "local";
/// Time limit for a TCP connection that only shows whether a process listens.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);
/// Time limit for connecting to the bus.
const PATIENCE: Duration = Duration::from_secs(5);

/// The options of every command that connects to the bus.
#[derive(Args, Clone)]
pub(crate) struct Connection {
    /// Address of the NATS server [default: that of a running `wattle up`, else nats://127.0.0.1:4222]
    #[arg(long, value_name = "URL", env = env::NATS_URL, hide_env_values = true)]
    nats: Option<String>,
    /// Name of the cluster [default: that of a running `wattle up`, else local]
    #[arg(long, value_name = "ID", env = "WATTLE_CLUSTER")]
    cluster: Option<ClusterId>,
    /// Your key file, as `wattle keys` writes it
    #[arg(long, value_name = "FILE", env = env::CREDENTIALS)]
    credentials: Option<PathBuf>,
    /// File with the certificates trusted for the NATS server
    #[arg(long, value_name = "FILE", env = env::CA)]
    ca: Option<PathBuf>,
}

impl Connection {
    /// These options, completed by those of `outer`: options may precede or follow a subcommand.
    pub(crate) fn or(self, outer: Self) -> Self {
        Self {
            nats: self.nats.or(outer.nats),
            cluster: self.cluster.or(outer.cluster),
            credentials: self.credentials.or(outer.credentials),
            ca: self.ca.or(outer.ca),
        }
    }

    /// The address given by `--nats`.
    #[cfg(test)]
    pub(crate) fn url(&self) -> Option<String> {
        self.nats.clone()
    }
}

/// Contact data of a running `wattle up` for other commands on this machine.
#[derive(Serialize, Deserialize)]
pub(crate) struct Running {
    /// The bus's address.
    pub(crate) url: String,
    /// The cluster on it.
    pub(crate) cluster: ClusterId,
    /// Its process id; the file is void once the process has ended.
    pub(crate) pid: u32,
    /// The file with the clock's scale, if the clock is not the wall clock.
    pub(crate) clock: Option<PathBuf>,
    /// The file with its key; `None`: it uses another server.
    #[serde(default)]
    pub(crate) credentials: Option<PathBuf>,
    /// The file with the address that signs in at its web page.
    #[serde(default)]
    pub(crate) page: Option<PathBuf>,
}

impl Running {
    /// Path of the first system's file: `$XDG_STATE_HOME/wattle/running.json`.
    fn path() -> Option<PathBuf> {
        let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).or_else(|| {
            std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/state"))
        })?;
        Some(state.join("wattle/running.json"))
    }

    fn read(path: &Path) -> Option<Self> {
        let running: Self = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
        Path::new(&format!("/proc/{}", running.pid)).exists().then_some(running)
    }

    /// The default system of the commands: the first one on this machine.
    pub(crate) fn find() -> Option<Self> {
        Self::read(&Self::path()?)
    }

    /// The system at `url`, if it runs on this machine.
    fn at(url: &str) -> Option<Self> {
        let path = Self::path()?;
        let files = std::fs::read_dir(path.parent()?).ok()?;
        files.flatten().filter_map(|file| Self::read(&file.path())).find(|found| found.url == url)
    }

    /// Publishes the contact data of this system; a file of an earlier system is kept.
    /// `context` is that of NATS's command line, which is written beside it: `nats.json`.
    pub(crate) fn publish(&self, context: Option<&str>) -> RunFiles {
        let path = Self::path().map(|first| match Self::read(&first) {
            None => first,
            Some(_) => first.with_file_name(format!("running-{}.json", self.pid)),
        });
        let written = path.filter(|path| {
            let folder = path.parent().unwrap_or(Path::new("/"));
            let write =
                |path: &Path, text: &[u8]| files::replace(path, text, Access::Owner).is_ok();
            let is_written = std::fs::create_dir_all(folder).is_ok()
                && serde_json::to_vec_pretty(self).is_ok_and(|bytes| write(path, &bytes));
            if let Some(context) = context.filter(|_| is_written) {
                let _ = write(&RunFiles::context_of(path), context.as_bytes());
            }
            is_written
        });
        RunFiles(written)
    }
}

/// The files written by [`Running::publish`]; dropping this removes them.
pub(crate) struct RunFiles(Option<PathBuf>);

impl RunFiles {
    /// `nats.json` of `running.json`, `nats-17.json` of `running-17.json`.
    fn context_of(path: &Path) -> PathBuf {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        path.with_file_name(name.replacen("running", "nats", 1))
    }
}

impl Drop for RunFiles {
    fn drop(&mut self) {
        let Some(path) = &self.0 else { return };
        if Running::read(path).is_some_and(|running| running.pid == std::process::id()) {
            let _ = std::fs::remove_file(path);
            let _ = std::fs::remove_file(Self::context_of(path));
        }
    }
}

impl Connection {
    /// The system of `wattle up` that these options name.
    pub(crate) fn running(&self) -> Option<Running> {
        match &self.nats {
            Some(url) => Running::at(url),
            None => Running::find(),
        }
    }

    /// Connects as a person; an error names the address and the remedy.
    pub(crate) async fn open(&self) -> anyhow::Result<Bus> {
        let bus = self.open_with_any_key().await?;
        if bus.has_key() && bus.requester().rank == Rank::Local && !self.is_system_key(&bus).await {
            return Err(usage(
                "the key is not one of a person: its file has no line `# role: user NAME`, as \
                 `wattle keys add user NAME` writes it",
            ));
        }
        require_cluster(&bus).await?;
        Ok(bus)
    }

    /// Whether the key, which is no person's, is that of a whole system of `wattle up`.
    async fn is_system_key(&self, bus: &Bus) -> bool {
        let is_found = || self.running().is_some_and(|running| running.credentials.is_some());
        !bus.has_own_key() && (is_found() || bus.has_proven_requester().await.unwrap_or(true))
    }

    /// As [`Self::open`], also with the key of a service.
    pub(crate) async fn open_with_any_key(&self) -> anyhow::Result<Bus> {
        let running = self.running();
        if let Some(clock) = running.as_ref().and_then(|running| running.clock.as_ref()) {
            wattle_runtime::clock::use_file(clock)
                .with_context(|| format!("cannot read the clock in {}", clock.display()))?;
        }
        let url = match (&self.nats, &running) {
            (Some(url), _) => url.clone(),
            (None, Some(running)) => running.url.clone(),
            (None, None) => DEFAULT_URL.to_owned(),
        };
        let cluster = match (&self.cluster, &running) {
            (Some(cluster), _) => cluster.clone(),
            (None, Some(running)) => running.cluster.clone(),
            (None, None) => ClusterId::new(DEFAULT_CLUSTER).expect("the constant is an id"),
        };
        if !url.contains("://") {
            // Not shown: it may contain a password.
            return Err(usage("invalid --nats: write it as nats://HOST:PORT"));
        }
        // The key of a running system belongs to its address.
        let (credentials_file, ca_file) = match running.and_then(|running| running.credentials) {
            Some(key) => (Some(key), None),
            None => (self.credentials.clone(), self.ca.clone()),
        };
        // The options have the values of the environment.
        let config = BusConfig { credentials_file, ca_file, exact: true, ..BusConfig::at(&url) };
        let has_key = config.credentials_file.is_some();
        let remedy = "start one with `wattle up`, or name it with --nats";
        if url == DEFAULT_URL && self.nats.is_none() && !accepts(&url).await {
            return Err(anyhow::anyhow!("no NATS server answers at {url}; {remedy}"));
        }
        match Bus::connect_within(&config, cluster, "wattle", PATIENCE).await {
            Ok(bus) => Ok(bus),
            Err(BusError::Disconnected { url }) if accepts(&url).await => {
                let remedy = silent_remedy(has_key);
                Err(anyhow::anyhow!("the server at {url} does not answer within 5 s; {remedy}"))
            }
            Err(BusError::Disconnected { url }) => {
                Err(anyhow::anyhow!("no NATS server answers at {url}; {remedy}"))
            }
            // These errors have their own remedy.
            Err(
                error @ (BusError::Address { .. }
                | BusError::PasswordInAddress { .. }
                | BusError::Insecure { .. }
                | BusError::File { .. }),
            ) => Err(usage_chain(error)),
            Err(error @ BusError::Unauthorized { .. }) => Err(error.into()),
            Err(error) => Err(error).context(format!("no connection; {remedy}")),
        }
    }
}

/// What to do about a server that accepts a connection and does not answer.
fn silent_remedy(has_key: bool) -> &'static str {
    if has_key {
        "its machine may be overloaded: repeat the command"
    } else {
        "if it requires TLS and a key, name the files with --ca and --credentials"
    }
}

/// An error if the server has other clusters and not this one, or does not permit the key of a person in it.
pub(crate) async fn require_cluster(bus: &Bus) -> anyhow::Result<()> {
    // Without an answer the command itself has the error. Only an operator's own key lists the clusters.
    let lists = !bus.has_own_key() || bus.requester().rank == Rank::Operator;
    let known = if lists { bus.clusters().await.unwrap_or_default() } else { Vec::new() };
    let (cluster, url) = (bus.cluster(), bus.url());
    if !known.is_empty() && !known.contains(cluster) {
        let known: Vec<&str> = known.iter().map(ClusterId::as_str).collect();
        return Err(usage(format!(
            "no cluster `{cluster}` on the NATS server at {url}; it has {}: name one with --cluster or \
             WATTLE_CLUSTER",
            known.join(", ")
        )));
    }
    let is_person = bus.has_own_key() && bus.requester().rank != Rank::Local;
    if !is_person || is_permitted(bus).await {
        return Ok(());
    }
    Err(usage(format!(
        "the NATS server at {url} does not permit this key in a cluster `{cluster}`: there is none, or the key is \
         of another one. Name the cluster of the key, which the first line of its file has, with --cluster or \
         WATTLE_CLUSTER"
    )))
}

/// Whether the server permits requests with this key in this cluster. It refuses a request before it delivers one,
/// so the first of a refusal and an answer decides; without either the command itself has the error.
async fn is_permitted(bus: &Bus) -> bool {
    bus.has_proven_requester().await.unwrap_or(true)
}

/// Whether a process listens at an address `nats://HOST:PORT`.
async fn accepts(url: &str) -> bool {
    let Some((_, address)) = url.split_once("://") else { return false };
    let connecting = tokio::net::TcpStream::connect(address);
    matches!(tokio::time::timeout(ANSWERS_WITHIN, connecting).await, Ok(Ok(_)))
}

/// Runs a command that uses the bus.
pub(crate) fn block_on<T>(future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?
        .block_on(future)
}
