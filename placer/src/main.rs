//! The placer's binary.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use wattle_placer::{Config, service as shell};
use wattle_runtime::service::{self, Threads};

/// Plans are made of many small pieces.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Takes jobs and places them on the cluster's GPUs.
#[derive(Parser)]
#[command(version, after_help = "Example: wattle-placer --config /etc/wattle/placer.toml")]
struct Arguments {
    /// The configuration; deploy/placer.toml is a commented example.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

fn main() -> ExitCode {
    let file = Arguments::parse().config;
    service::main(
        Threads::Two,
        || load(&file),
        async |config, shutdown| shell::run(config, shutdown).await.context("the placer stops"),
    )
}

fn load(file: &Path) -> anyhow::Result<Config> {
    let config: Config = wattle_runtime::config::load(file)?;
    config.check().map_err(|error| anyhow::anyhow!("{}: {error}", file.display()))?;
    Ok(config)
}
