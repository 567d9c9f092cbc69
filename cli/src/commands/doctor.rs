//! `wattle doctor`: what is wrong with this host and the cluster, and what to do.
//!
//! [`facts`] reads, [`rules`] is a function of the facts, [`report`] prints. Nothing is changed: in particular
//! no cap is set, so a missing right of the power agent is known from the agent's own report.

mod facts;
mod grid;
mod report;
mod rules;
#[cfg(test)]
mod states;

use std::path::PathBuf;

use clap::Args;

use crate::connection::{Connection, block_on};
use crate::output::{print, print_json};
use facts::facts;

/// Check this host and the cluster: server, clocks, services, nodes, driver, disks, Slurm.
///
/// The verdict comes first, then each finding with its remedy. The exit code is 0 without a problem and 1
/// with one; advice alone is no problem.
#[derive(Args)]
#[command(
    after_help = "Run it on the host in question: driver, disks and Slurm are those of this host.\n\
        Nothing is changed.\n\n\
        Examples:\n  wattle doctor\n  wattle doctor --json\n  wattle doctor --config-dir ./config"
)]
pub(crate) struct Doctor {
    #[command(flatten)]
    connection: Connection,
    /// Folder with the services' configuration on this host
    #[arg(long, value_name = "DIR", default_value = "/etc/wattle")]
    config_dir: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(command: &Doctor) -> anyhow::Result<()> {
    let found = block_on(async { facts(&command.connection, &command.config_dir).await })?;
    let report = rules::check(&found);
    if command.json {
        print_json(&report)?;
    } else {
        print(report.to_string().trim_end())?;
    }
    match report.problems() {
        0 => Ok(()),
        1 => anyhow::bail!("1 problem was found"),
        problems => anyhow::bail!("{problems} problems were found"),
    }
}
