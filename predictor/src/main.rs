//! `wattle-predictor`: the service.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use wattle_predictor::shell;
use wattle_runtime::shell::{Shutdown, start_logging};

/// Learns from the windows of running jobs, and publishes what each would do in other
/// configurations.
#[derive(Parser)]
#[command(version, after_help = "Example:\n  wattle-predictor --config /etc/wattle/predictor.toml")]
struct Arguments {
    /// The configuration; deploy/predictor.toml explains every key
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    start_logging();
    let config = match wattle_runtime::config::load(&arguments.config) {
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
