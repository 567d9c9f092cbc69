//! `wattle-profiler`: the service.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use wattle_profiler::shell;
use wattle_runtime::service::{self, Threads};

/// Samples this node's GPUs and jobs: telemetry, windows and the energy ledger.
#[derive(Parser)]
#[command(version, after_help = "Example:\n  wattle-profiler --config /etc/wattle/profiler.toml")]
struct Arguments {
    /// The configuration file; deploy/profiler.toml explains every key
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

fn main() -> ExitCode {
    let file = Arguments::parse().config;
    service::main(
        Threads::One,
        || Ok(shell::load(&file)?),
        async |config, shutdown| Ok(shell::run(config, &shutdown).await?),
    )
}
