//! `wattle slurm check`: what Slurm lacks for each level.

use clap::Args;
use wattle_slurm::Level;
use wattle_slurm::check::check;
use wattle_slurm::shell::facts::facts;

use super::Commands;
use crate::connection::block_on;
use crate::output::{print, print_json};

/// State for each level whether Slurm is ready, and what is missing.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  wattle slurm check\n  wattle slurm check --level exact --json"
)]
pub(super) struct Check {
    #[command(flatten)]
    commands: Commands,
    /// Fail unless this level is ready: advise, caps, start, exact, share
    #[arg(long, value_name = "LEVEL")]
    level: Option<Level>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(super) fn run(command: &Check) -> anyhow::Result<()> {
    let programs = command.commands.programs();
    let user = &command.commands.user;
    let found = block_on(async { Ok(facts(&programs, user).await?) })?;
    let report = check(&found);
    if command.json {
        print_json(&report)?;
    } else {
        print(report.to_string().trim_end())?;
    }
    match command.level.filter(|level| !report.is_ready(*level)) {
        Some(level) => anyhow::bail!("Slurm is not ready for the level {level}"),
        None => Ok(()),
    }
}
