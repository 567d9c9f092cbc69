//! The placer's binary.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use wattle_placer::{Config, shell};
use wattle_runtime::shell::Shutdown;

/// Takes jobs and places them on the cluster's GPUs.
#[derive(Parser)]
#[command(version, after_help = "Example: wattle-placer --config /etc/wattle/placer.toml")]
struct Arguments {
    /// The configuration; deploy/placer.toml is a commented example.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

/// Wrong usage or a wrong configuration, as clap has it.
const EXIT_USAGE: u8 = 2;

fn main() -> ExitCode {
    let file = Arguments::parse().config;
    wattle_runtime::shell::start_logging();
    let loaded = wattle_runtime::config::load::<Config>(&file).map_err(anyhow::Error::from);
    let checked = loaded.and_then(|config| match config.check() {
        Ok(()) => Ok(config),
        Err(error) => Err(anyhow::anyhow!("{}: {error}", file.display())),
    });
    let config = match checked {
        Ok(config) => config,
        Err(error) => {
            tracing::error!("{error:#}");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    match serve(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn serve(config: Config) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("no threads can be started")?;
    runtime.block_on(async {
        let shutdown = Shutdown::listen().context("signals cannot be listened for")?;
        shell::run(config, shutdown).await.context("the placer stops")
    })
}
