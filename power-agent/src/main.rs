//! `wattle-power-agent`: the service, and the one-shot that makes the cards safe.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use wattle_power_agent::shell;
use wattle_runtime::shell::{Shutdown, start_logging};

/// Applies power caps and clocks to this node's GPUs, under a lease, and gives the cards back safe.
#[derive(Parser)]
#[command(
    version,
    after_help = "Example:\n  wattle-power-agent --config /etc/wattle/power-agent.toml\n  wattle-power-agent --config /etc/wattle/power-agent.toml reset"
)]
struct Arguments {
    /// The configuration; deploy/power-agent.toml explains every key
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Set every card to its safe cap, free its clocks, and exit; for a supervisor to run after the
    /// service was killed
    Reset,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    start_logging();
    let config = match shell::load(&arguments.config) {
        Ok(config) => config,
        Err(error) => {
            tracing::error!(%error, "wrong configuration");
            return ExitCode::from(2);
        }
    };
    match arguments.command {
        Some(Command::Reset) => {
            match shell::reset(config.nvml_library.as_deref(), &config.settings()) {
                Ok(0) => ExitCode::SUCCESS,
                Ok(_) => ExitCode::FAILURE,
                Err(error) => {
                    tracing::error!(%error, "no card was reset");
                    ExitCode::FAILURE
                }
            }
        }
        None => match serve(config).await {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                tracing::error!(error = %format!("{error:#}"), "the service cannot run");
                ExitCode::FAILURE
            }
        },
    }
}

async fn serve(config: shell::ServiceConfig) -> anyhow::Result<()> {
    let shutdown = Shutdown::listen()?;
    shell::run(config, &shutdown).await?;
    Ok(())
}
