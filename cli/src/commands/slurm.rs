//! `wattle slurm`: checks a site's Slurm, prints the lines that it needs, and gives its jobs back.

mod check;
mod gres_conf;
mod release_all;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use wattle_slurm::shell::programs::Programs;

/// Longest time of one of Slurm's programs.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Check a site's Slurm, print the lines that it needs, give its jobs back.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  wattle slurm check\n  wattle slurm gres-conf\n  wattle slurm release-all --dry-run"
)]
pub(crate) struct SlurmCommand {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// State for each level whether Slurm is ready, and what is missing.
    Check(check::Check),
    /// Print this node's lines of gres.conf and slurm.conf.
    GresConf(gres_conf::GresConf),
    /// Give all held jobs back to Slurm.
    ReleaseAll(release_all::ReleaseAll),
}

/// Where Slurm's programs are.
#[derive(Args)]
struct Commands {
    /// Folder of Slurm's programs [default: PATH]
    #[arg(long, value_name = "DIR")]
    commands: Option<PathBuf>,
    /// User of wattle-slurm
    #[arg(long, value_name = "NAME", default_value = "wattle")]
    user: String,
}

impl Commands {
    fn programs(&self) -> Programs {
        Programs { folder: self.commands.clone(), time_limit: TIME_LIMIT, ..Programs::default() }
    }
}

/// Runs the command.
pub(crate) fn run(command: SlurmCommand) -> anyhow::Result<()> {
    match command.task {
        Task::Check(command) => check::run(&command),
        Task::GresConf(command) => gres_conf::run(&command),
        Task::ReleaseAll(command) => release_all::run(&command),
    }
}
