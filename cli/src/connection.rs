//! Where the bus is, and which cluster on it.
//!
//! `--nats`, then `WATTLE_NATS_URL`, then the system that `wattle up` runs on this machine, then
//! NATS's own default port. `wattle up` leaves a small file for that, which also says where the
//! system's clock is.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use serde::{Deserialize, Serialize};
use wattle_common::{ClusterId, env};
use wattle_runtime::bus::{Bus, BusConfig};

use crate::output::usage;

/// NATS's own default address.
const DEFAULT_URL: &str = "nats://127.0.0.1:4222";
/// The cluster `wattle up` makes.
pub(crate) const DEFAULT_CLUSTER: &str = "local";
/// How long a command waits for the bus before it gives up.
const PATIENCE: Duration = Duration::from_secs(5);

/// The options of every command that speaks to the services.
#[derive(Args, Clone)]
pub(crate) struct Connection {
    /// Address of the NATS server [default: the system `wattle up` runs here, else nats://127.0.0.1:4222]
    #[arg(long, value_name = "URL", env = env::NATS_URL)]
    nats: Option<String>,
    /// The cluster [default: that of the `wattle up` found here, else local]
    #[arg(long, value_name = "ID", env = "WATTLE_CLUSTER")]
    cluster: Option<ClusterId>,
}

impl Connection {
    /// What is said here, and where nothing is, what `outer` says: options may stand before a
    /// subcommand or after it.
    pub(crate) fn or(self, outer: Self) -> Self {
        Self { nats: self.nats.or(outer.nats), cluster: self.cluster.or(outer.cluster) }
    }

    /// The address named, if one is.
    #[cfg(test)]
    pub(crate) fn url(&self) -> Option<String> {
        self.nats.clone()
    }
}

/// What a running `wattle up` says of itself to other commands on this machine.
#[derive(Serialize, Deserialize)]
pub(crate) struct Running {
    /// The bus's address.
    pub(crate) url: String,
    /// The cluster on it.
    pub(crate) cluster: ClusterId,
    /// The process that runs it; once it is gone the file means nothing.
    pub(crate) pid: u32,
    /// The file that holds the clock's scale, where the clock is not the wall's.
    pub(crate) clock: Option<PathBuf>,
}

impl Running {
    /// Where the first system's file lies: `$XDG_STATE_HOME/wattle/running.json`.
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

    /// The system that commands find by themselves: the first that runs on this machine.
    pub(crate) fn find() -> Option<Self> {
        Self::read(&Self::path()?)
    }

    /// The system at `url`, where it runs on this machine.
    fn at(url: &str) -> Option<Self> {
        let path = Self::path()?;
        let files = std::fs::read_dir(path.parent()?).ok()?;
        files.flatten().filter_map(|file| Self::read(&file.path())).find(|found| found.url == url)
    }

    /// Leaves word of this system; does not take an earlier one's place.
    pub(crate) fn leave_word(&self) -> Word {
        let path = Self::path().map(|first| match Self::read(&first) {
            None => first,
            Some(_) => first.with_file_name(format!("running-{}.json", self.pid)),
        });
        let left = path.filter(|path| {
            let folder = path.parent().unwrap_or(Path::new("/"));
            std::fs::create_dir_all(folder).is_ok()
                && serde_json::to_vec_pretty(self)
                    .is_ok_and(|bytes| std::fs::write(path, bytes).is_ok())
        });
        Word(left)
    }
}

/// What [`Running::leave_word`] left; dropping it takes it back.
pub(crate) struct Word(Option<PathBuf>);

impl Drop for Word {
    fn drop(&mut self) {
        let Some(path) = &self.0 else { return };
        if Running::read(path).is_some_and(|running| running.pid == std::process::id()) {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Connection {
    /// Connects, or says where it looked and what to do.
    pub(crate) async fn open(&self) -> anyhow::Result<Bus> {
        let running = match &self.nats {
            Some(url) => Running::at(url),
            None => Running::find(),
        };
        if let Some(clock) = running.as_ref().and_then(|running| running.clock.as_ref()) {
            wattle_runtime::clock::use_file(clock)
                .with_context(|| format!("cannot read the clock in {}", clock.display()))?;
        }
        let url = match (&self.nats, &running) {
            (Some(url), _) => url.clone(),
            (None, Some(running)) => running.url.clone(),
            (None, None) => DEFAULT_URL.to_owned(),
        };
        let cluster = match (&self.cluster, running) {
            (Some(cluster), _) => cluster.clone(),
            (None, Some(running)) => running.cluster,
            (None, None) => ClusterId::new(DEFAULT_CLUSTER).expect("the constant is an id"),
        };
        if !url.contains("://") {
            return Err(usage(format!("--nats {url}: write it as nats://HOST:PORT")));
        }
        let config = BusConfig::at(&url);
        Bus::connect_within(&config, cluster, "wattle", PATIENCE)
            .await
            .with_context(|| {
                format!("no NATS server answers at {url}; start one with `wattle up`, or name it with --nats")
            })
    }
}

/// A runtime for a command that speaks to the bus.
pub(crate) fn block_on<T>(future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?
        .block_on(future)
}
