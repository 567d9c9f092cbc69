//! `wattle slurm release-all`: gives all held jobs back to Slurm.

use std::time::Duration;

use clap::Args;
use wattle_runtime::clock;
use wattle_slurm::Client as _;
use wattle_slurm::give_back::{GiveBack, give_back};
use wattle_slurm::shell::client::CommandLine;
use wattle_slurm::shell::facts::facts;

use super::Commands;
use crate::connection::block_on;
use crate::output::{note, print, usage};

/// Age of a heartbeat from which the service does not run; it writes one in each round.
const STOPPED: Duration = Duration::from_secs(5);

/// Give all held jobs back to Slurm.
///
/// Each pending job that the intake has held gets its submitted request again and is released. Running jobs
/// continue. wattle-slurm must be stopped.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  wattle slurm release-all --dry-run\n  systemctl stop wattle-slurm && sleep 5 && wattle slurm release-all"
)]
pub(super) struct ReleaseAll {
    #[command(flatten)]
    commands: Commands,
    /// Only list the jobs
    #[arg(long)]
    dry_run: bool,
}

/// Runs the command.
pub(super) fn run(command: &ReleaseAll) -> anyhow::Result<()> {
    block_on(give_all_back(command))
}

async fn give_all_back(command: &ReleaseAll) -> anyhow::Result<()> {
    let programs = command.commands.programs();
    let found = facts(&programs, &command.commands.user).await?;
    if let Some(age) = found.heartbeat_age.filter(|age| *age < STOPPED && !command.dry_run) {
        return Err(usage(format!(
            "wattle-slurm wrote its heartbeat {} s ago and would hold the jobs again: stop it, wait {} s, \
             and repeat",
            age.as_secs(),
            STOPPED.as_secs()
        )));
    }
    let mut client = CommandLine::new(programs);
    let view = client.view(clock::wall_now()).await?;
    let jobs: Vec<GiveBack> = view.jobs.values().filter_map(give_back).collect();
    let mut failed = 0;
    for job in &jobs {
        let what = if job.release { "released" } else { "restored; its owner holds it" };
        let result = if command.dry_run { Ok(()) } else { client.give_back(job).await };
        match result {
            Ok(()) => print(&format!("{} {what}", job.id))?,
            Err(error) => {
                failed += 1;
                note(&format!("{error}"));
            }
        }
    }
    let given = jobs.len() - failed;
    let would = if command.dry_run { "would be " } else { "" };
    note(&format!("{given} of {} jobs {would}given back to Slurm", jobs.len()));
    anyhow::ensure!(failed == 0, "{failed} jobs are still held: repeat the command");
    Ok(())
}
