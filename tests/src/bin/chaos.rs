//! `wattle-chaos`: a site of several hosts on one machine under faults; prints promised against measured.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "command-line output")]

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Parser;
use wattle_tests::chaos::{Outcome, Plan, network, run, site};
use wattle_tests::examples::faketime;

/// Runs three NATS servers, two hosts with placer, registry and predictor, and simulated GPU nodes in
/// network namespaces of this machine, with keys, permissions and TLS. Submits jobs, and kills, pauses,
/// partitions, slows and restarts hosts and processes, sets clocks and fills disks. Then prints what is
/// promised against what was measured. Needs iproute2, util-linux, nats-server and, for clocks, faketime.
#[derive(Parser)]
#[command(
    name = "wattle-chaos",
    after_help = "Example:\n  wattle-chaos --seed 1 --minutes 5\n\nExit codes: 0 all promises held, 1 not, 2 invalid arguments"
)]
struct Cli {
    /// Seed of faults and jobs.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Minutes with faults.
    #[arg(long, default_value_t = 5.0, value_parser = minutes)]
    minutes: f64,
    /// Number of GPU nodes, with two GPUs each.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=200))]
    nodes: u8,
    /// Send forged and replayed messages, with the keys of a user and of the node g0.
    #[arg(long)]
    forge: bool,
    /// Folder of configurations, logs and state, which is kept; default: a temporary one, kept if a promise
    /// did not hold.
    #[arg(long)]
    dir: Option<PathBuf>,
}

fn minutes(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| format!("invalid number `{text}`"))?;
    if (0.1..=1_440.0).contains(&value) {
        Ok(value)
    } else {
        Err("expected 0.1 to 1440".to_owned())
    }
}

fn print(outcome: &Outcome) {
    let verdict = if outcome.holds() { "all promises held" } else { "a promise did not hold" };
    println!("{verdict}");
    println!("\n{:<40} {:>10} {:>14}", "", "promised", "measured");
    for (what, promised, measured, holds) in &outcome.rows {
        let mark = if *holds { "" } else { "  <-- does not hold" };
        println!("{what:<40} {promised:>10} {measured:>14}{mark}");
    }
    println!("\n{:<40} {:>10}", "fault", "times");
    for (kind, times) in &outcome.faults {
        println!("{kind:<40} {times:>10}");
    }
    if faketime().is_none() {
        println!("no clock was set: faketime is not installed");
    }
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let cli = Cli::parse();
    network::enter()?;
    let plan = Plan {
        seed: cli.seed,
        duration: wattle_common::time::span_s(cli.minutes * 60.0),
        nodes: cli.nodes,
        forge: cli.forge,
    };
    println!(
        "seed {}, {} with faults, {} nodes of 2 GPUs, {} times real time",
        plan.seed,
        format_args!("{:.1} min", cli.minutes),
        plan.nodes,
        site::RATE
    );
    let temporary = match cli.dir {
        Some(_) => None,
        None => Some(tempfile::tempdir().context("no temporary folder")?),
    };
    let folder = cli.dir.as_deref().or_else(|| temporary.as_ref().map(tempfile::TempDir::path));
    let folder = folder.context("no folder")?;
    std::fs::create_dir_all(folder)?;
    let outcome = run(plan, folder).await;
    let holds = outcome.as_ref().is_ok_and(Outcome::holds);
    if let Ok(outcome) = &outcome {
        print(outcome);
    }
    if let (Some(temporary), false) = (temporary, holds) {
        println!("logs: {}", temporary.keep().display());
    }
    outcome?;
    Ok(ExitCode::from(u8::from(!holds)))
}
