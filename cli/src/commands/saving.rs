//! `wattle saving`: what Wattle would have saved on the jobs of a trace.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use wattle_common::aim::parse_slowdown;
use wattle_common::duration::parse_span;
use wattle_common::job::Sharing;
use wattle_common::topology::ClusterShape;
use wattle_saving::estimate::{Grouping, SavingEstimate, SavingInput, SavingOptions, estimate};
use wattle_saving::report::saving_page;
use wattle_simulator::{CarbonSeries, PriceSeries, input_file, text, trace};

use crate::atomic_file::AtomicFile;
use crate::inputs::{inferred_cluster, restartable, world_of};
use crate::output::{note, print, usage, usage_chain};
use crate::progress::Progress;
use crate::quantity::number;
use crate::sacct;

/// Estimate what Wattle would have saved on the jobs of a trace.
///
/// The baseline is the trace's own schedule where it records starts and ends, as `sacct` does,
/// otherwise FIFO. Wattle is simulated with its predictor.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  wattle saving --trace sacct.txt\n  wattle saving --sacct 7d --by day\n  wattle saving --trace deploy/demo/sacct.txt --cluster 4x8:a100\n  wattle saving --trace sacct.txt --cluster 4x8:a100 --price-kwh 0.21 --currency EUR --intensity 380\n  wattle saving --trace sacct.txt --prices day-ahead.xml\n  wattle saving --trace sacct.txt --cluster 4x8:a100 --restartable all --share any --report saving.html"
)]
pub(crate) struct Saving {
    /// Trace of `sacct -P` or `sacct --json`, Philly, Helios, Acme, PAI, Tiresias, Gavel, ElasticFlow or Chronus,
    /// also as .gz
    #[arg(long, value_name = "FILE", required_unless_present = "sacct")]
    trace: Option<PathBuf>,
    /// The jobs of Slurm's accounting over the last SPAN, read with `sacct`: 7d, 12h
    #[arg(long, value_name = "SPAN", value_parser = parse_span, conflicts_with_all = ["trace", "trace_format"])]
    sacct: Option<Duration>,
    /// Format of the trace: philly, tiresias, gavel, elasticflow, chronus, sacct, helios, acme, pai2020, pai2023
    /// [default: detected]
    #[arg(long, value_name = "NAME")]
    trace_format: Option<String>,
    /// Only the first jobs of the trace [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    jobs: Option<u64>,
    /// The cluster that ran the jobs, or a TOML file [default: inferred from the nodes of a trace that
    /// names them (`sacct`)]
    #[arg(long, value_name = "NODESxGPUS:TYPE|FILE.toml", value_parser = crate::cluster_file::cluster)]
    cluster: Option<ClusterShape>,
    /// Folder with measured files, searched recursively; needed for the A100 jobs of ElasticFlow's trace
    #[arg(long, value_name = "DIR", env = "WATTLE_DATA")]
    data: Option<PathBuf>,
    /// Bound on the mean completion time, relative to Wattle with free energy on the same jobs: 5% or 0.05
    #[arg(long, value_name = "SHARE", default_value = "5%", value_parser = parse_slowdown)]
    max_slowdown: f64,
    /// Constant price of energy, per kWh
    #[arg(long, value_name = "PRICE", conflicts_with = "prices", value_parser = |text: &str| number::<f64>(text, "currency units per kWh"))]
    price_kwh: Option<f64>,
    /// Currency of the constant price
    #[arg(
        long,
        value_name = "NAME",
        default_value = "EUR",
        requires = "price_kwh",
        conflicts_with = "prices"
    )]
    currency: String,
    /// Prices over time: ENTSO-E's day-ahead prices (XML) or a table at,eur_per_mwh, in any currency
    #[arg(long, value_name = "FILE")]
    prices: Option<PathBuf>,
    /// Carbon intensity series: at,g_per_kwh or at_s,g_per_kwh (or EIA's or WattTime's columns)
    #[arg(long, value_name = "FILE", conflicts_with = "intensity")]
    carbon: Option<PathBuf>,
    /// Constant carbon intensity, g/kWh
    #[arg(long, value_name = "G_PER_KWH", value_parser = |text: &str| number::<f64>(text, "g/kWh"))]
    intensity: Option<f64>,
    /// Which jobs may be stopped, moved and resized, where the trace does not state it: none, all, a
    /// file of job ids, or a share of the jobs such as 0.3, chosen by a hash of the id
    #[arg(long, value_name = "none|all|FILE|SHARE", default_value = "none")]
    restartable: String,
    /// Which jobs may share a GPU: never, consented, any; no job of a trace declares consent
    #[arg(long, value_name = "RULE", default_value_t = Sharing::Never)]
    share: Sharing,
    /// Keep unused nodes awake
    #[arg(long)]
    no_sleep: bool,
    /// Random seed of drawn workloads and measurement noise
    #[arg(long, default_value_t = 7)]
    seed: u64,
    /// Write a self-contained page to this file
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Write the jobs and nodes of the schedules to this file, as CSV
    #[arg(long, value_name = "FILE")]
    jobs_csv: Option<PathBuf>,
    /// Also print the saving of each job, or of the jobs of each day
    #[arg(long, value_name = "job|day", value_parser = parse_grouping)]
    by: Option<Grouping>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn parse_grouping(text: &str) -> Result<Grouping, String> {
    match text {
        "job" => Ok(Grouping::Job),
        "day" => Ok(Grouping::Day),
        _ => Err("give job or day".to_owned()),
    }
}

impl Saving {
    fn check(&self) -> anyhow::Result<()> {
        for (name, value) in [("--price-kwh", self.price_kwh), ("--intensity", self.intensity)] {
            if let Some(value) = value.filter(|value| !(*value >= 0.0 && value.is_finite())) {
                return Err(usage(format!("{name} {value}: give a number of at least 0")));
            }
        }
        Ok(())
    }

    fn estimate(&self, prices: Option<&PriceSeries>) -> anyhow::Result<SavingEstimate> {
        let restartable = restartable(&self.restartable)?;
        let format = self.trace_format.as_deref();
        let mut trace = match (&self.trace, self.sacct) {
            (Some(path), _) => trace::read_as(path, format).map_err(usage_chain)?,
            (None, span) => {
                let span = span.unwrap_or_default();
                let exported =
                    sacct::export(OsStr::new("sacct"), span, input_file::TRACE_BYTES_MAX)?;
                trace::parse_as("sacct", &exported, Some("sacct")).map_err(usage_chain)?
            }
        };
        trace.keep_first(self.jobs.map_or(usize::MAX, |jobs| jobs as usize));
        let (world, notes) = world_of(&trace, self.data.as_deref())?;
        let (cluster, assumptions) = match &self.cluster {
            Some(cluster) => (cluster.clone(), Vec::new()),
            None => inferred_cluster(&world, &mut trace)?,
        };
        let carbon =
            self.carbon.as_deref().map(CarbonSeries::read).transpose().map_err(usage_chain)?;
        let input = SavingInput {
            world: &world,
            trace: &trace,
            cluster: &cluster,
            carbon: carbon.as_ref(),
            prices,
            restartable: &restartable,
        };
        let options = SavingOptions {
            max_slowdown: self.max_slowdown,
            share: self.share,
            sleep: !self.no_sleep,
            seed: self.seed,
            threads: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            ..SavingOptions::default()
        };
        let mut progress = Progress::start("saving".to_owned(), "simulation steps");
        let mut report = |ended: usize, of: usize| progress.update(ended, of);
        let estimate = estimate(&input, options, &mut report).map_err(usage_chain)?;
        drop(progress);
        let trace_notes = trace.notes.iter().map(ToString::to_string);
        for text in assumptions.into_iter().chain(trace_notes).chain(notes) {
            note(&text::note(&text));
        }
        for (name, _, schedule) in estimate.schedules.iter().take(2) {
            for text in &schedule.notes {
                note(&text::note(&format!("{name}: {text}")));
            }
        }
        Ok(estimate.priced(self.price_kwh, self.intensity))
    }
}

/// Runs the command.
pub(crate) fn run(command: Saving) -> anyhow::Result<()> {
    command.check()?;
    let open = |path: &Option<PathBuf>| path.as_deref().map(AtomicFile::open).transpose();
    let (report, csv) = (open(&command.report)?, open(&command.jobs_csv)?);
    let prices =
        command.prices.as_deref().map(PriceSeries::read).transpose().map_err(usage_chain)?;
    let currency = prices.as_ref().map_or(&command.currency, |prices| &prices.currency);
    let estimate = command.estimate(prices.as_ref())?;
    if command.json {
        print(&estimate.to_json(command.by))?;
    } else {
        if let Some(by) = command.by {
            print(&format!("{}\n", estimate.to_groups(by)))?;
        }
        print(&estimate.to_screen(currency))?;
    }
    if let Some(csv) = csv {
        csv.write(&estimate.to_csv())?;
    }
    report.map_or(Ok(()), |file| file.write(&saving_page(&estimate, currency)))
}
