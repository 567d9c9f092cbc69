//! The NATS server of `wattle up`, on a free port of this machine.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use wattle_common::ClusterId;
use wattle_runtime::bus::{Bus, BusConfig, BusError};

use super::processes::{Processes, Program, READY_WITHIN};
use crate::output::{usage, usage_chain};

/// Starts a server with its streams in `store` and this additional environment; returns its address.
pub(crate) fn start(
    processes: &mut Processes,
    store: &Path,
    env: Vec<(String, OsString)>,
) -> anyhow::Result<String> {
    let path = wattle_runtime::server::find().map_err(|error| usage(error.to_string()))?;
    let port = free_port()?;
    processes.start(program(path, port, store, env))?;
    Ok(format!("nats://127.0.0.1:{port}"))
}

/// Connects to the server at `url`, waiting for it to answer.
pub(crate) async fn connect(url: &str, cluster: &ClusterId) -> anyhow::Result<Bus> {
    let connected =
        Bus::connect_within(&BusConfig::at(url), cluster.clone(), "wattle-up", READY_WITHIN).await;
    match connected {
        // These errors have their own remedy.
        Err(error @ (BusError::Address { .. } | BusError::PasswordInAddress { .. })) => {
            Err(usage_chain(error))
        }
        connected => connected.with_context(|| format!("no NATS server answers at {url}")),
    }
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

/// A free port. It is chosen once, so that a restarted server has the same address.
pub(super) fn free_port() -> anyhow::Result<u16> {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).context("no free port")?;
    Ok(listener.local_addr().context("no free port")?.port())
}

fn program(path: PathBuf, port: u16, store: &Path, env: Vec<(String, OsString)>) -> Program {
    let args = ["-a", "127.0.0.1", "-p", &port.to_string(), "-js", "-sd"]
        .map(Into::into)
        .into_iter()
        .chain([store.as_os_str().to_owned()])
        .collect();
    Program::server(path, args, env)
}
