//! `wattle-power-agent`: the service, and a command that resets the GPUs.

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Subcommand;
use wattle_power_agent::shell;
use wattle_runtime::service::{Program, Threads};
use wattle_runtime::shell::Shutdown;

#[derive(Subcommand)]
enum Task {
    /// Set every GPU to its safe cap, unlock its clock, and exit; for a service manager to run after
    /// the service was killed
    #[command(
        after_help = "Example:\n  wattle-power-agent --config /etc/wattle/power-agent.toml reset"
    )]
    Reset,
}

fn main() -> ExitCode {
    let about = "Applies power caps and clocks to this node's GPUs under a lease";
    Program { name: "wattle-power-agent", about, threads: Threads::One }
        .main_with(shell::load, serve)
}

async fn serve(
    config: shell::ServiceConfig,
    task: Option<Task>,
    shutdown: &Shutdown,
) -> anyhow::Result<()> {
    match task {
        None => Ok(shell::run(config, shutdown).await?),
        Some(Task::Reset) => {
            let left = shell::reset(&config).context("no GPU was reset")?;
            anyhow::ensure!(left == 0, "{left} GPUs are not in their safe state");
            Ok(())
        }
    }
}
