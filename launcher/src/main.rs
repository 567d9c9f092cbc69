//! The launcher's binary: the service, and the supervisor that it starts beside each job.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};
use wattle_launcher::{Config, shell, supervise};
use wattle_runtime::shell::Shutdown;

/// Starts, checkpoints and stops the processes of jobs on one node.
#[derive(Parser)]
#[command(version, after_help = "Example: wattle-launcher --config /etc/wattle/launcher.toml")]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct Arguments {
    /// The configuration; deploy/launcher.toml is a commented example.
    #[arg(long, value_name = "FILE", required = true)]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<Task>,
}

#[derive(Subcommand)]
enum Task {
    /// Starts one stored order and waits for its end; the launcher itself calls this.
    #[command(hide = true)]
    Supervise {
        /// The start's folder.
        #[arg(long)]
        dir: PathBuf,
    },
}

/// Wrong usage or a wrong configuration, as clap has it.
const EXIT_USAGE: u8 = 2;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let config = match (arguments.command, arguments.config) {
        // Before any log or runtime: it must stay small, for there is one beside each job.
        (Some(Task::Supervise { dir }), _) => {
            return if supervise::run(dir).is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        }
        (None, Some(config)) => config,
        (None, None) => return ExitCode::from(EXIT_USAGE),
    };
    wattle_runtime::shell::start_logging();
    let config = match wattle_runtime::config::load::<Config>(&config)
        .map_err(anyhow::Error::from)
        .and_then(|loaded| {
            loaded.check().map_err(|error| anyhow::anyhow!("{}: {error}", config.display()))?;
            Ok(loaded)
        }) {
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
        shell::run(config, shutdown).await.context("the launcher stops")
    })
}
