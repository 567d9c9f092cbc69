//! `wattle-profiler`: the service.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use wattle_profiler::shell;
use wattle_runtime::shell::{Shutdown, start_logging};

/// Watches this node's GPUs and the jobs on them: telemetry, windows, and the energy ledger.
#[derive(Parser)]
#[command(version, after_help = "Example:\n  wattle-profiler --config /etc/wattle/profiler.toml")]
struct Arguments {
    /// The configuration; deploy/profiler.toml explains every key
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
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
    match serve(config).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = %format!("{error:#}"), "the service cannot run");
            ExitCode::FAILURE
        }
    }
}

async fn serve(config: shell::ServiceConfig) -> anyhow::Result<()> {
    let shutdown = Shutdown::listen()?;
    shell::run(config, &shutdown).await?;
    Ok(())
}
