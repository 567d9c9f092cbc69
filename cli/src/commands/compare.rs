//! `wattle compare`: policies against each other at equal energy, and against the limit.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use wattle_experiments::compare::{
    Accounting, Case, CaseFilter, CompareOptions, Comparer, Comparison, Knobs, NAMES, Neighbours,
    Surfaces, cases, policy_of, side_by_side, to_table, waterfall_table,
};
use wattle_experiments::report::{comparison_page, record};
use wattle_simulator::{Forecast, Lengths};

use super::simulate::usage_chain;
use crate::atomic_file::AtomicFile;
use crate::budget::BudgetOptions;
use crate::output::{note, print, usage};

/// Compare policies at equal energy on a fixed scenario
///
/// Each policy is run over its own knob and stands on its own frontier of completion time over
/// energy. docs/comparing.md says what the scenarios are, and which of them need which files.
#[derive(Args)]
#[command(
    after_help = "Scenarios: powerflow-16, greenflow-16, eaco-28, eaco-64, philly, builtin\n\nExamples:\n  wattle compare powerflow-16 --data measurements --load 0.76 --world alone --orders 1 --quick --oracle\n  wattle compare powerflow-16 --data measurements --surfaces smooth:0.1 --lengths unknown --json\n  wattle compare eaco-28 --oracle --policy fifo,fifo-packed,eaco --load 0.7 --report out.html\n\nA full comparison takes hours, one load in one world with --orders 1 --quick a minute or two."
)]
pub(crate) struct Compare {
    /// The scenario: powerflow-16, greenflow-16, eaco-28, eaco-64, philly, builtin
    scenario: String,
    /// The folder with the measured files, at any depth
    #[arg(long, value_name = "DIR", env = "WATTLE_DATA")]
    data: Option<PathBuf>,
    /// Policies, separated by commas, as NAME+zeus with the caps that Zeus chooses, as NAME+defer where
    /// jobs may wait for a cleaner grid; those that the scenario asks about where none is given
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    policy: Vec<String>,
    /// Offered loads, separated by commas; all of the scenario's where none is given
    #[arg(long, value_name = "LOADS", value_delimiter = ',')]
    load: Vec<f64>,
    /// What counts as spent: above-idle, sleep-all, sleep-none, sleep-packing; the scenario's where
    /// none is given
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    accounting: Vec<String>,
    /// How jobs on one GPU slow each other: alone (nobody shares), pairs, mild; all where none is
    /// given
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    world: Vec<String>,
    /// Variants of a scenario: published, compute-bound; CA-winter, AZ-spring, TX-summer, WA-autumn
    /// and so on; all where none is given
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    workload: Vec<String>,
    /// In how many orders the jobs arrive, or how many draws of them there are
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=100))]
    orders: u64,
    /// What policies see: oracle, predicted, independent:SHARE, smooth:SHARE
    #[arg(long, value_name = "WHICH", default_value = "predicted")]
    surfaces: String,
    /// The same as --surfaces oracle
    #[arg(long, conflicts_with = "surfaces")]
    oracle: bool,
    /// From when on a job's length is known: known, reported (from its first report), unknown, past
    /// (unknown, but like jobs have ended before); known with surfaces of the world, reported with
    /// predicted ones
    #[arg(long, value_name = "WHEN")]
    lengths: Option<String>,
    /// Turn knobs coarsely: to look at a scenario, not to quote it
    #[arg(long)]
    quick: bool,
    /// Write one page with plots, node maps and reasons to this file; it needs no network
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    #[command(flatten)]
    budget: BudgetOptions,
    /// What is expected of the carbon intensity: persistence (the last day again), perfect (what
    /// will be)
    #[arg(long, value_name = "HOW", default_value = "persistence")]
    forecast: String,
    /// Also tell for these policies, separated by commas, what keeps them from the bound, cause by
    /// cause: each takes three to five times the runs
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    waterfall: Vec<String>,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(command: &Compare) -> anyhow::Result<()> {
    if !NAMES.contains(&command.scenario.as_str()) {
        let names = NAMES.join(", ");
        let asked = &command.scenario;
        return Err(usage(format!("no scenario is called `{asked}`; use one of {names}")));
    }
    for name in command.policy.iter().chain(&command.waterfall) {
        wattle_placer::policy(policy_of(name).0).map_err(usage_chain)?;
    }
    nothing_twice("--policy", &command.policy)?;
    nothing_twice("--load", &command.load)?;
    nothing_twice("--accounting", &command.accounting)?;
    nothing_twice("--world", &command.world)?;
    nothing_twice("--workload", &command.workload)?;
    nothing_twice("--waterfall", &command.waterfall)?;
    let options = command.options()?;
    let accountings =
        named(&command.accounting, "accounting", Accounting::ALL, Accounting::as_str)?;
    let in_worlds = named(&command.world, "world", Neighbours::ALL, Neighbours::as_str)?;
    let wanted = CaseFilter {
        data: command.data.as_deref(),
        loads: &command.load,
        accountings: &accountings,
        worlds: &in_worlds,
        workloads: &command.workload,
        orders: command.orders,
    };
    let report = command.report.as_deref().map(AtomicFile::open).transpose()?;
    let (worlds, cases) = cases(&command.scenario, &wanted).map_err(usage_chain)?;
    let on_a_grid =
        cases.iter().any(|case| case.jobs.rigid.iter().any(|jobs| jobs.carbon.is_some()));
    if !on_a_grid && let Some(option) = command.needs_a_grid() {
        return Err(usage(format!(
            "{option} needs a carbon intensity, and {} has none: use greenflow-16, or leave it out",
            command.scenario
        )));
    }
    let mut comparer = Comparer::new(&worlds, options);
    let mut comparisons: Vec<Comparison> = Vec::new();
    let mut together_from = 0;
    for (number, case) in cases.iter().enumerate() {
        let what = format!("{} of {}: {}", number + 1, cases.len(), told(case));
        let comparison = comparer.compare(case, &mut |done, of| progress(&what, done, of));
        let mut comparison = comparison.map_err(usage_chain)?;
        for family in &command.waterfall {
            let what = format!("{what}, what keeps {family} from the bound");
            let fallen =
                comparer.waterfall(case, family, &mut |done, of| progress(&what, done, of));
            comparison.waterfalls.push(fallen.map_err(usage_chain)?);
        }
        if !command.json {
            print(&to_table(&comparison))?;
            print("")?;
            for waterfall in &comparison.waterfalls {
                print(&waterfall_table(waterfall))?;
                print("")?;
            }
        }
        comparisons.push(comparison);
        // Cases of the same jobs that are counted in different ways stand beside each other.
        if cases.get(number + 1).is_none_or(|next| !differ_in_accounting(case, next)) {
            let table = side_by_side(&comparisons[together_from..]);
            if !command.json && !table.is_empty() {
                print(&table)?;
                print("")?;
            }
            if !command.json && report.is_none() {
                comparisons.clear();
            }
            together_from = comparisons.len();
        }
    }
    if command.json {
        print(&serde_json::to_string_pretty(&comparisons).context("the comparison as JSON")?)?;
    }
    if let (Some(file), Some(case), Some(first)) = (report, cases.first(), comparisons.first()) {
        let recorded = record(worlds.of(case.world), case, first).map_err(usage_chain)?;
        file.write(&comparison_page(&comparisons, &recorded))?;
    }
    Ok(())
}

impl Compare {
    /// What was asked for that means nothing without a grid's carbon intensity.
    fn needs_a_grid(&self) -> Option<String> {
        let defers = self.policy.iter().find(|policy| policy.ends_with("+defer"));
        let forecast = (self.forecast != "persistence").then(|| "--forecast".to_owned());
        let carbon = self.budget.carbon_kg.map(|_| "--carbon-kg".to_owned());
        carbon.or(forecast).or_else(|| defers.map(|policy| format!("--policy {policy}")))
    }

    fn options(&self) -> anyhow::Result<CompareOptions> {
        let set = |policy: &&String| policy.contains('@');
        if let Some(policy) = self.policy.iter().find(set) {
            let plain = policy.split('@').next().unwrap_or_default();
            return Err(usage(format!(
                "--policy {policy}: `compare` turns clocks itself; give `{plain}`"
            )));
        }
        let surfaces = if self.oracle {
            Surfaces::Oracle
        } else {
            self.surfaces.parse().map_err(usage_chain)?
        };
        let lengths = match self.lengths.as_deref() {
            None if surfaces.are_of_the_world() => Lengths::Known,
            None | Some("reported") => Lengths::Reported,
            Some("known") => Lengths::Known,
            Some("unknown") => Lengths::Unknown,
            Some("past") => Lengths::Past,
            Some(other) => {
                return Err(usage(format!(
                    "--lengths {other}: use one of known, reported, unknown, past"
                )));
            }
        };
        Ok(CompareOptions {
            policies: self.policy.clone(),
            surfaces,
            lengths,
            knobs: if self.quick { Knobs::Quick } else { Knobs::Full },
            forecast: match self.forecast.as_str() {
                "persistence" => Forecast::Persistence,
                "perfect" => Forecast::Perfect,
                other => {
                    return Err(usage(format!("--forecast {other}: use persistence or perfect")));
                }
            },
            budget: self.budget.budget()?,
            bound: None,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
        })
    }
}

/// What a case is, in a line of progress.
fn told(case: &Case) -> String {
    let (load, accounting, world) = (case.load, case.accounting.as_str(), case.world.as_str());
    let workload = if case.workload.is_empty() { "jobs" } else { case.workload };
    let deadlines = if case.deadlines { " with deadlines" } else { "" };
    format!("load {load:.2}, {accounting}, neighbours {world}, {workload}{deadlines}")
}

fn differ_in_accounting(a: &Case, b: &Case) -> bool {
    std::sync::Arc::ptr_eq(&a.jobs, &b.jobs) && a.world == b.world
}

/// What is named twice would be run twice and stand beside itself.
fn nothing_twice<T: PartialEq + std::fmt::Display>(
    option: &str,
    named: &[T],
) -> anyhow::Result<()> {
    match named.iter().enumerate().find(|(i, one)| named[..*i].contains(one)) {
        Some((_, one)) => Err(usage(format!("{option} names {one} twice; name it once"))),
        None => Ok(()),
    }
}

/// Says now and then how far a case is.
fn progress(what: &str, done: usize, of: usize) {
    let step = (of / 10).max(1);
    if done.is_multiple_of(step) || done == of {
        note(&format!("{what}: {done} of {of} runs"));
    }
}

/// Each of `names` as what is called so.
fn named<T: Copy, const N: usize>(
    names: &[String],
    what: &str,
    all: [T; N],
    name_of: fn(T) -> &'static str,
) -> anyhow::Result<Vec<T>> {
    let one = |name: &String| {
        all.into_iter().find(|known| name_of(*known) == name).ok_or_else(|| {
            let known = all.map(name_of).join(", ");
            usage(format!("no {what} is called `{name}`; use one of {known}"))
        })
    };
    names.iter().map(one).collect()
}
