//! `wattle capacity`: how many nodes fit below a power limit, and how small the limit may be.

use std::path::PathBuf;

use clap::Args;
use wattle_common::Power;
use wattle_common::job::Sharing;
use wattle_saving::estimate::{SavingOptions, Sizes, capacity};
use wattle_saving::report::capacity_figure;

use crate::atomic_file::AtomicFile;
use crate::output::{print, usage_chain};
use crate::progress::Progress;
use crate::trace_options::TraceOptions;

/// Estimate how many nodes fit below a power limit with Wattle, and how small the limit may be.
///
/// Jobs complete as soon as in the trace's own schedule where it records starts and ends, otherwise as under
/// FIFO without a limit. Wattle is simulated below several limits.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  wattle capacity --trace deploy/demo/sacct.txt --limit 12kW\n  wattle capacity --trace sacct.txt --cluster 16x8:a100 --limit 56kW --restartable all\n  wattle capacity --sacct 7d --limit 56kW --figure capacity.svg"
)]
pub(crate) struct Capacity {
    #[command(flatten)]
    trace: TraceOptions,
    /// Power limit of all nodes: 56kW, 850W or 1.2MW
    #[arg(long, value_name = "POWER", value_parser = parse_power)]
    limit: Power,
    /// Sizes of the jobs that may be resized: as the trace states them, smaller too, or any power of two of GPUs up to 64
    #[arg(long, value_name = "trace|smaller|any", default_value = "smaller")]
    sizes: Sizes,
    /// Which jobs may share a GPU: never, consented, any; no job of a trace declares consent
    #[arg(long, value_name = "RULE", default_value_t = Sharing::Never)]
    share: Sharing,
    /// Keep unused nodes awake
    #[arg(long)]
    no_sleep: bool,
    /// Random seed of drawn workloads and measurement noise
    #[arg(long, default_value_t = 7)]
    seed: u64,
    /// Write the completion time over the limit to this file, as SVG
    #[arg(long, value_name = "FILE.svg")]
    figure: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Parses a power with its unit.
fn parse_power(text: &str) -> Result<Power, String> {
    let units = [("MW", 1e6), ("kW", 1e3), ("W", 1.0)];
    let wrong = || "give a power above 0 with its unit, as in 56kW, 850W or 1.2MW".to_owned();
    let known = units.iter().find_map(|(unit, size)| Some((text.strip_suffix(unit)?, size)));
    let (number, size) = known.ok_or_else(wrong)?;
    let watts = number.trim().parse::<f64>().map_err(|_| wrong())? * size;
    // Up to a thousand megawatts.
    if (1.0..=1e9).contains(&watts) { Ok(Power::from_w_f64(watts)) } else { Err(wrong()) }
}

/// Runs the command.
pub(crate) fn run(command: &Capacity) -> anyhow::Result<()> {
    let figure = command.figure.as_deref().map(AtomicFile::open).transpose()?;
    let jobs = command.trace.read()?;
    let options = SavingOptions {
        load: command.trace.load(),
        sizes: command.sizes,
        share: command.share,
        sleep: !command.no_sleep,
        seed: command.seed,
        threads: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        ..SavingOptions::default()
    };
    let mut progress = Progress::start("capacity".to_owned(), "simulation steps");
    let mut report = |ended: usize, of: usize| progress.update(ended, of);
    let estimate =
        capacity(&jobs.input(), command.limit, options, &mut report).map_err(usage_chain)?;
    drop(progress);
    jobs.print_notes();
    print(&if command.json { estimate.to_json() } else { estimate.to_screen() })?;
    figure.map_or(Ok(()), |file| file.write(&capacity_figure(&estimate)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_power_has_a_unit() {
        let watts = |text: &str| parse_power(text).map(Power::as_w);
        assert_eq!(watts("56kW"), Ok(56_000.0));
        assert_eq!(watts("1.5 MW"), Ok(1.5e6));
        assert_eq!(watts("850W"), Ok(850.0));
        for wrong in ["", "56", "kW", "-1kW", "0W", "NaNkW", "infkW", "56kV", "1e99MW"] {
            assert!(watts(wrong).unwrap_err().contains("56kW"), "{wrong}");
        }
    }
}
