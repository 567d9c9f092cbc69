//! `wattle-predictor`: the service.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use wattle_predictor::shell;
use wattle_runtime::service::{self, Threads};

/// Learns from the windows of running jobs, and publishes what each would do in other
/// configurations.
#[derive(Parser)]
#[command(version, after_help = "Example:\n  wattle-predictor --config /etc/wattle/predictor.toml")]
struct Arguments {
    /// The configuration; deploy/predictor.toml explains every key
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

fn main() -> ExitCode {
    let file = Arguments::parse().config;
    service::main(
        Threads::One,
        || Ok(wattle_runtime::config::load(&file)?),
        async |config, shutdown| Ok(shell::run(config, &shutdown).await?),
    )
}
