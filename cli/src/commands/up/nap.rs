//! How a simulated node of `wattle up` sleeps: its services are stopped, as a suspended machine's
//! are, and go on where they stood when it wakes.
//!
//! These are the sleep and wake commands that the services are configured with; they decide nothing.
//! Its cards go on drawing what idle cards draw: the simulated driver knows no sleep.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use rustix::process::{Pid, Signal, kill_process};
use wattle_common::NodeId;

/// The hidden command's name.
pub(crate) const NAP: &str = "nap-of-up";

/// The services of a node. The power agent comes last: it is the one that runs this.
const SERVICES: [&str; 3] = ["profiler", "launcher", "power-agent"];

/// What a node is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Nap {
    /// Fall asleep.
    Sleep,
    /// Wake up.
    Wake,
}

/// Stop a simulated node's services, or let them go on.
#[derive(Args)]
pub(crate) struct NapOfUp {
    /// What it is to do
    what: Nap,
    /// The folder with the services' process ids
    #[arg(long)]
    logs: PathBuf,
    /// The node
    #[arg(long)]
    node: NodeId,
}

/// The command for a configuration.
pub(super) fn command(what: Nap, logs: &Path) -> anyhow::Result<toml::Value> {
    let me = std::env::current_exe().context("cannot tell where wattle lies")?;
    let what = if what == Nap::Sleep { "sleep" } else { "wake" };
    let (me, logs) = (me.to_string_lossy(), logs.to_string_lossy());
    let words = [&*me, NAP, what, "--logs", &*logs, "--node", "{node}"];
    Ok(words.map(toml::Value::from).to_vec().into())
}

/// Where the process id of a program is written.
pub(super) fn pid_file(logs: &Path, name: &str) -> PathBuf {
    logs.join(format!("{name}.pid"))
}

/// Runs the command.
pub(crate) fn nap(nap: &NapOfUp) -> anyhow::Result<()> {
    let signal = if nap.what == Nap::Sleep { Signal::STOP } else { Signal::CONT };
    for service in SERVICES {
        let file = pid_file(&nap.logs, &format!("{service}-{}", nap.node));
        let text = std::fs::read_to_string(&file)
            .with_context(|| format!("cannot read {}", file.display()))?;
        let pid = text.trim().parse().ok().and_then(Pid::from_raw);
        let pid = pid.with_context(|| format!("{} holds no process id", file.display()))?;
        kill_process(pid, signal).with_context(|| format!("{service} of {}", nap.node))?;
    }
    Ok(())
}
