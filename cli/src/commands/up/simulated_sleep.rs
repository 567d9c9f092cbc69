//! Sleep and wake commands of a simulated node of `wattle up`.
//!
//! Sleep stops the processes of the node's services, wake resumes them, as suspending a machine would.
//! The simulated GPUs keep drawing idle power, because the simulated driver has no sleep state.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use rustix::process::{Pid, Signal, kill_process};
use wattle_common::NodeId;

/// The hidden command's name.
pub(crate) const SIMULATED_SLEEP: &str = "simulated-sleep";

/// The services of a node. The power agent is last because it runs this command.
const SERVICES: [&str; 3] = ["profiler", "launcher", "power-agent"];

/// The transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Transition {
    /// Suspend the services.
    Sleep,
    /// Resume the services.
    Wake,
}

/// Suspend or resume the services of a simulated node.
#[derive(Args)]
pub(crate) struct SimulatedSleep {
    /// The transition
    transition: Transition,
    /// The folder with the services' process ids
    #[arg(long)]
    logs: PathBuf,
    /// The node
    #[arg(long)]
    node: NodeId,
}

/// The command line for a configuration file.
pub(super) fn command(transition: Transition, logs: &Path) -> anyhow::Result<toml::Value> {
    let me = std::env::current_exe().context("cannot find the path of this program")?;
    let word = if transition == Transition::Sleep { "sleep" } else { "wake" };
    let (me, logs) = (me.to_string_lossy(), logs.to_string_lossy());
    let words = [&*me, SIMULATED_SLEEP, word, "--logs", &*logs, "--node", "{node}"];
    Ok(words.map(toml::Value::from).to_vec().into())
}

/// Path of the file with the process id of a program.
pub(super) fn pid_file(logs: &Path, name: &str) -> PathBuf {
    logs.join(format!("{name}.pid"))
}

/// Runs the command.
pub(crate) fn set_simulated_sleep(command: &SimulatedSleep) -> anyhow::Result<()> {
    let signal = if command.transition == Transition::Sleep { Signal::STOP } else { Signal::CONT };
    for service in SERVICES {
        let file = pid_file(&command.logs, &format!("{service}-{}", command.node));
        let text = std::fs::read_to_string(&file)
            .with_context(|| format!("cannot read {}", file.display()))?;
        let pid = text.trim().parse().ok().and_then(Pid::from_raw);
        let pid = pid.with_context(|| format!("{} holds no process id", file.display()))?;
        kill_process(pid, signal).with_context(|| format!("{service} of {}", command.node))?;
    }
    Ok(())
}
