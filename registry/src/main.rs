//! `wattle-registry`: the service that compares predictors.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use wattle_runtime::service::{self, Threads};

/// Serves the champion predictor's surfaces to the placer and scores every predictor against later
/// measurements
#[derive(Parser)]
#[command(version, after_help = "Example:\n  wattle-registry --config /etc/wattle/registry.toml")]
struct Arguments {
    /// Configuration file; deploy/registry.toml documents every key
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

fn main() -> ExitCode {
    let file = Arguments::parse().config;
    service::main(
        Threads::One,
        || Ok(wattle_runtime::config::load(&file)?),
        async |config, shutdown| Ok(wattle_registry::service::run(config, &shutdown).await?),
    )
}
