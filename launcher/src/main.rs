//! `wattle-launcher`: the service, and the supervisor that it starts for each job.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};
use wattle_launcher::engine::local::supervisor;
use wattle_launcher::{Config, shell};
use wattle_runtime::service::{self, Threads};

/// Starts, checkpoints and stops the processes of jobs on one node.
#[derive(Parser)]
#[command(version, after_help = "Example: wattle-launcher --config /etc/wattle/launcher.toml")]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct Arguments {
    /// The configuration file; deploy/launcher.toml explains every key
    #[arg(long, value_name = "FILE", required = true)]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<Task>,
}

#[derive(Subcommand)]
enum Task {
    /// Starts one stored run and waits for its end; called by the launcher
    #[command(hide = true)]
    Supervise {
        /// The run's folder
        #[arg(long)]
        dir: PathBuf,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let file = match (arguments.command, arguments.config) {
        // Without logging and runtime: each job has a supervisor, which must stay small.
        (Some(Task::Supervise { dir }), _) => {
            return if supervisor::run(dir).is_ok() {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            };
        }
        (None, file) => file.expect("clap requires it without a subcommand"),
    };
    service::main(
        Threads::Two,
        || load(&file),
        async |config, shutdown| shell::run(config, shutdown).await.context("the launcher stops"),
    )
}

fn load(file: &Path) -> anyhow::Result<Config> {
    let config: Config = wattle_runtime::config::load(file)?;
    config.check().map_err(|error| anyhow::anyhow!("{}: {error}", file.display()))?;
    Ok(config)
}
