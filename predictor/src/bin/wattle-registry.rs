//! `wattle-registry`: the service that keeps the contest of predictors.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use wattle_predictor::registry::service as registry;
use wattle_runtime::service::{self, Threads};

/// Passes the champion's surfaces on to the placer, scores every predictor against what then
/// happened, and stands in for a champion that is silent.
#[derive(Parser)]
#[command(version, after_help = "Example:\n  wattle-registry --config /etc/wattle/registry.toml")]
struct Arguments {
    /// The configuration; deploy/registry.toml explains every key
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

fn main() -> ExitCode {
    let file = Arguments::parse().config;
    service::main(
        Threads::One,
        || Ok(wattle_runtime::config::load(&file)?),
        async |config, shutdown| Ok(registry::run(config, &shutdown).await?),
    )
}
