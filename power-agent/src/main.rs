//! `wattle-power-agent`: the service, and a command that resets the GPUs.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use wattle_power_agent::shell;
use wattle_runtime::service::{self, Threads};

/// Applies power caps and clocks to this node's GPUs under a lease.
#[derive(Parser)]
#[command(
    version,
    after_help = "Example:\n  wattle-power-agent --config /etc/wattle/power-agent.toml\n  wattle-power-agent --config /etc/wattle/power-agent.toml reset"
)]
struct Arguments {
    /// The configuration file; deploy/power-agent.toml explains every key
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Set every GPU to its safe cap, unlock its clock, and exit; for a service manager to run after
    /// the service was killed
    Reset,
}

fn main() -> ExitCode {
    let Arguments { config: file, command } = Arguments::parse();
    service::main(
        Threads::One,
        || Ok(shell::load(&file)?),
        async |config, shutdown| match command {
            None => Ok(shell::run(config, &shutdown).await?),
            Some(Command::Reset) => {
                let left = shell::reset(config.nvml_library.as_deref(), &config.settings())
                    .context("no GPU was reset")?;
                anyhow::ensure!(left == 0, "{left} GPUs are not in their safe state");
                Ok(())
            }
        },
    )
}
