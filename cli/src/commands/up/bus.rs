//! The NATS server of `wattle up`, on a free port of this machine.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use wattle_common::ClusterId;
use wattle_runtime::bus::{Bus, BusConfig, BusError};

use super::keys::Keys;
use super::ports;
use super::processes::{Processes, Program, READY_WITHIN};
use crate::output::{note, usage, usage_chain};

/// Starts a server with its streams in `store` that accepts the key only, and this additional environment;
/// returns how to reach it.
pub(super) fn start(
    processes: &mut Processes,
    store: &Path,
    keys: &Keys,
    env: Vec<(String, OsString)>,
) -> anyhow::Result<BusConfig> {
    let path = wattle_runtime::server::find().map_err(|error| usage(error.to_string()))?;
    let port = ports::free()?;
    processes.start(program(path, port, store, &keys.configure_server()?, env))?;
    Ok(keys.connection(&format!("nats://127.0.0.1:{port}")))
}

/// How to reach a server that runs already, with the key and the authority that the environment names.
pub(super) fn named(url: &str) -> BusConfig {
    BusConfig { url: url.to_owned(), exact: true, ..BusConfig::at(url).in_force() }
}

/// Connects to the server, waiting for it to answer.
pub(super) async fn connect(config: &BusConfig, cluster: &ClusterId) -> anyhow::Result<Bus> {
    match Bus::connect_within(config, cluster.clone(), "wattle-up", READY_WITHIN).await {
        // These errors have their own remedy.
        Err(error @ (BusError::Address { .. } | BusError::PasswordInAddress { .. })) => {
            Err(usage_chain(error))
        }
        connected => connected.with_context(|| format!("no NATS server answers at {}", config.url)),
    }
}

/// Refuses a server on which every user who reaches it would run jobs with the rights of root.
pub(super) fn check_authority(bus: &Bus) -> anyhow::Result<()> {
    let (url, is_root) = (bus.url(), rustix::process::geteuid().is_root());
    match (bus.has_key(), is_root) {
        (true, true) => note("jobs run as root, and only root can submit them"),
        (true, false) => {}
        (false, true) => {
            return Err(usage(format!(
                "the NATS server at {url} has no keys, and this process is root: every user who reaches \
                 the server could run jobs as root. Leave out --nats, or name a key of that server in \
                 WATTLE_CREDENTIALS"
            )));
        }
        (false, false) => note(&format!(
            "warning: the NATS server at {url} has no keys: every user who reaches it can run jobs as you"
        )),
    }
    Ok(())
}

/// An error if another program listens on the port of the web page.
pub(super) fn require_free(port: u16) -> anyhow::Result<()> {
    match std::net::TcpListener::bind(("127.0.0.1", port)) {
        Ok(_) => Ok(()),
        Err(error) => Err(usage(format!(
            "--port {port} cannot be used: {error}; give another port, or omit --port for a free one"
        ))),
    }
}

fn program(
    path: PathBuf,
    port: u16,
    store: &Path,
    config: &Path,
    env: Vec<(String, OsString)>,
) -> Program {
    let port = port.to_string();
    let args = [
        "-c".as_ref(),
        config.as_os_str(),
        "-a".as_ref(),
        "127.0.0.1".as_ref(),
        "-p".as_ref(),
        port.as_ref(),
        "-js".as_ref(),
        "-sd".as_ref(),
        store.as_os_str(),
    ];
    Program::server(path, args.map(OsString::from).to_vec(), env)
}
