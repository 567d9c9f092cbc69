//! The example configurations of `deploy/` with a test's folders, server and simulated GPUs.

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::{program, repository};

/// The example configuration of a service, with the server at `url` and with folders below `folder` in place
/// of the system's, and without a metrics endpoint.
///
/// # Errors
/// If the example cannot be read, or a folder cannot be created.
pub fn example(service: &str, url: &str, folder: &Path) -> Result<toml::Table> {
    let text = std::fs::read_to_string(repository(&format!("deploy/{service}.toml")))?;
    let mut text = text.replace("nats://127.0.0.1:4222", url);
    for part in ["/var/lib/wattle", "/var/log/wattle", "/run/wattle"] {
        let own = folder.join(part.rsplit('/').nth(1).unwrap_or_default());
        std::fs::create_dir_all(&own)?;
        text = text.replace(part, own.to_str().context("a path of text")?);
    }
    let mut table: toml::Table = text.parse()?;
    // Services of several tests would compete for the ports.
    table.remove("metrics");
    Ok(table)
}

/// Changes the configuration of a service of node `node` for the simulated GPUs of the file `state`.
///
/// # Errors
/// If the path is no text.
pub fn simulate_gpus(
    table: &mut toml::Table,
    service: &str,
    node: &str,
    state: &Path,
) -> Result<()> {
    table.insert("node".into(), node.into());
    match service {
        "profiler" | "power-agent" => {
            let library = program("libnvml_sim.so").display().to_string();
            table.insert("nvml_library".into(), library.into());
        }
        "launcher" => {
            // The test's users have no accounts.
            table.insert("job_user".into(), "service".into());
            let state = state.to_str().context("a path of text")?;
            // A job of the service's user has its environment; the simulated hardware of the job must not
            // have a shifted clock.
            let environment =
                [("LD_PRELOAD", ""), ("WATTLE_SIM_NODE", state), ("WATTLE_CLOCK", state)]
                    .map(|(variable, value)| (variable.to_owned(), value.into()));
            table.insert("job_environment".into(), toml::Table::from_iter(environment).into());
        }
        _ => {}
    }
    Ok(())
}

/// The library that shifts a process's wall clock, if it is installed.
#[must_use]
pub fn faketime() -> Option<&'static str> {
    ["/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1", "/usr/lib64/faketime/libfaketime.so.1"]
        .into_iter()
        .find(|path| Path::new(path).exists())
}

/// The environment of a process whose wall clock is shifted by the seconds in the file `offset`, if faketime
/// is installed.
///
/// # Errors
/// If the file cannot be written.
pub fn shifted_clock(offset: &Path) -> Result<Vec<(String, String)>> {
    let Some(library) = faketime() else { return Ok(Vec::new()) };
    if !offset.exists() {
        std::fs::write(offset, "+0")?;
    }
    let environment = [
        ("LD_PRELOAD", library),
        ("FAKETIME_TIMESTAMP_FILE", offset.to_str().context("a path of text")?),
        ("FAKETIME_NO_CACHE", "1"),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ("DONT_FAKE_MONOTONIC", "1"),
    ];
    Ok(environment.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec())
}
