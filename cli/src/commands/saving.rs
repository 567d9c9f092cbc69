//! `wattle saving`: what Wattle would have saved on the jobs of a trace.

use std::path::PathBuf;

use clap::Args;
use wattle_common::aim::parse_slowdown;
use wattle_common::job::Sharing;
use wattle_saving::estimate::{
    Grouping, SavingBound, SavingEstimate, SavingInput, SavingOptions, estimate,
};
use wattle_saving::report::saving_page;
use wattle_simulator::{CarbonSeries, PriceSeries, text};

use crate::atomic_file::AtomicFile;
use crate::output::{note, print, usage, usage_chain};
use crate::progress::Progress;
use crate::quantity::number;
use crate::trace_options::TraceOptions;

/// Estimate what Wattle would have saved on the jobs of a trace.
///
/// The baseline is the trace's own schedule where it records starts and ends, as `sacct` does,
/// otherwise EASY backfilling. Wattle is simulated with its predictor, at the least energy with which jobs
/// complete on average no later than under the baseline, or later by a given share.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  wattle saving --trace sacct.txt\n  wattle saving --sacct 7d --per day\n  wattle saving --trace deploy/demo/sacct.txt --cluster 4x8:a100\n  wattle saving --trace sacct.txt --cluster 4x8:a100 --price-kwh 0.21 --currency EUR --intensity 380\n  wattle saving --trace sacct.txt --by 5% --prices day-ahead.xml\n  wattle saving --trace sacct.txt --cluster 4x8:a100 --restartable all --share any --report saving.html"
)]
pub(crate) struct Saving {
    #[command(flatten)]
    trace: TraceOptions,
    /// Share by which jobs may complete later on average than under the baseline, for the table, the parts, the page
    /// and the CSV; the curve has 0%, 5% and 10% too
    #[arg(long, value_name = "SHARE", default_value = "0%", value_parser = later_by)]
    by: f64,
    /// In place of --by, the bound relates to Wattle with free energy on the same jobs: 5% or 0.05; without the curve
    #[arg(long, value_name = "SHARE", conflicts_with = "by", value_parser = parse_slowdown)]
    max_slowdown: Option<f64>,
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
    per: Option<Grouping>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Reads `--by`.
fn later_by(text: &str) -> Result<f64, String> {
    match text {
        "job" | "day" => {
            Err(format!("give a share, as in 5%; the saving of each {text} is --per {text}"))
        }
        share => parse_slowdown(share).map_err(|error| error.to_string()),
    }
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
        let jobs = self.trace.read()?;
        let carbon =
            self.carbon.as_deref().map(CarbonSeries::read).transpose().map_err(usage_chain)?;
        let input = SavingInput { carbon: carbon.as_ref(), prices, ..jobs.input() };
        let options = SavingOptions {
            bound: self.max_slowdown.map_or(SavingBound::Later(self.by), SavingBound::MaxSlowdown),
            load: self.trace.load(),
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
        jobs.print_notes();
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
        print(&estimate.to_json(command.per))?;
    } else {
        if let Some(per) = command.per {
            print(&format!("{}\n", estimate.to_groups(per)))?;
        }
        print(&estimate.to_screen(currency))?;
    }
    if let Some(csv) = csv {
        csv.write(&estimate.to_csv())?;
    }
    report.map_or(Ok(()), |file| file.write(&saving_page(&estimate, currency)))
}
