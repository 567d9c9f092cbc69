//! `wattle-lab compare`: compares policies at equal energy with each other and with a lower bound.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use wattle_baselines::policy;
use wattle_experiments::bound::PricedSearch;
use wattle_experiments::compare::{
    Accounting, Case, CaseFilter, CompareOptions, Comparer, Comparison, Form, Knobs, NAMES,
    Neighbours, POWER_LIMITS, Surfaces, cases, limits_table, policy_of, side_by_side, to_table,
    waterfall_table,
};
use wattle_experiments::report::{
    comparison_figure, comparison_page, limits_figure, limits_page, record,
};
use wattle_experiments::{field_trial, grid_caiso, grid_srp};
use wattle_simulator::{Forecast, Lengths};

use wattle_cli::atomic_file::AtomicFile;
use wattle_cli::budget::BudgetOptions;
use wattle_cli::event_file::SimulatedEvents;
use wattle_cli::output::{note, print, usage, usage_chain};

/// Compare policies at equal energy on a fixed scenario
///
/// Each policy runs at several settings of its parameter, which gives a frontier of completion time over
/// energy; under powerlimit-16 it runs below several power limits, under grid-srp and
/// grid-caiso during grid events. docs/comparing.md describes the scenarios and the files they need.
#[derive(Args)]
#[command(
    after_help = "Scenarios: powerflow-16, powerlimit-16, greenflow-16, eaco-28, eaco-64, philly, builtin, grid-srp, grid-caiso\n\nJCT is the job completion time, from submission to completion.\n\nExamples:\n  wattle-lab compare powerflow-16 --data measurements --load 0.76 --world alone --quick --oracle\n  wattle-lab compare powerflow-16 --data measurements --surfaces smooth:0.1 --lengths unknown --json\n  wattle-lab compare eaco-28 --oracle --policy fifo,fifo-packed,eaco --load 0.7 --report out.html\n  wattle-lab compare powerlimit-16 --oracle --workload v100-elastic --orders 1 --report limits.html\n\nA full comparison takes hours, one with --quick about a minute."
)]
pub(crate) struct Compare {
    /// The scenario: powerflow-16, powerlimit-16, greenflow-16, eaco-28, eaco-64, philly, builtin, grid-srp, grid-caiso
    scenario: String,
    /// Folder with the measured files, searched recursively
    #[arg(long, value_name = "DIR", env = "WATTLE_DATA")]
    data: Option<PathBuf>,
    /// Policies, separated by commas; NAME+zeus selects caps by Zeus, NAME+defer defers jobs with slack
    /// [default: those of the scenario]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    policy: Vec<String>,
    /// Loads, separated by commas [default: all of the scenario, its middle one with --quick]
    #[arg(long, value_name = "LOADS", value_delimiter = ',')]
    load: Vec<f64>,
    /// Energy accounting: above-idle, sleep-all, sleep-none, sleep-packing [default: those of the
    /// scenario, its first one with --quick]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    accounting: Vec<String>,
    /// Interference between co-tenants: alone (no sharing), pairs, mild [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    world: Vec<String>,
    /// Variants of the scenario: published, compute-bound; a100-fixed, a100-elastic,
    /// a100-elastic-nonstop, also of v100; CA-winter, AZ-spring, TX-summer, WA-autumn and so on
    /// [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    workload: Vec<String>,
    /// Number of arrival orders or random draws of the jobs, of the noise of measurements in
    /// grid-srp and grid-caiso [default: 5, 3 of powerlimit-16, 1 of these and with --quick]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=100))]
    orders: Option<u64>,
    /// Predictions: oracle, predicted, or exact ones with errors as independent:SHARE, smooth:SHARE
    #[arg(long, value_name = "WHICH", default_value = "predicted")]
    surfaces: String,
    /// The same as --surfaces oracle
    #[arg(long, conflicts_with = "surfaces")]
    oracle: bool,
    /// Knowledge of job durations: known, reported (from the first report), unknown, past (unknown, with
    /// a history of similar jobs) [default: known with exact, reported with learned predictions]
    #[arg(long, value_name = "WHEN")]
    lengths: Option<String>,
    /// Use every third setting of each policy
    #[arg(long)]
    few_settings: bool,
    /// A quick look: --few-settings, one load, accounting and order, 500 generated jobs, looser bounds
    #[arg(long)]
    quick: bool,
    /// Write a self-contained page with plots, node maps and reasons to this file; if its name ends in .svg,
    /// the plot of completion time over energy of the first case alone
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    #[command(flatten)]
    budget: BudgetOptions,
    #[command(flatten)]
    events: SimulatedEvents,
    /// Forecast of the carbon intensity: persistence (the previous day), perfect (the actual values)
    #[arg(long, value_name = "HOW", default_value = "persistence")]
    forecast: String,
    /// Also attribute the distance of these policies to the bound to its causes; needs three to five
    /// times the runs
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    waterfall: Vec<String>,
    /// Print all columns with their ranges, about 160 columns wide
    #[arg(long)]
    wide: bool,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

/// The number of orders of a complete comparison.
const ORDERS: u64 = 5;
/// The same below power limits, where each order has its own bound.
const ORDERS_BELOW_LIMITS: u64 = 3;

/// Runs the command.
pub(crate) fn run(command: &Compare) -> anyhow::Result<()> {
    if [grid_srp::NAME, grid_caiso::NAME].contains(&command.scenario.as_str()) {
        return during_events(command);
    }
    if !NAMES.contains(&command.scenario.as_str()) {
        let names = [&NAMES[..], &[grid_srp::NAME, grid_caiso::NAME]].concat().join(", ");
        let scenario = &command.scenario;
        return Err(usage(format!("unknown scenario `{scenario}`: expected one of {names}")));
    }
    for name in command.policy.iter().chain(&command.waterfall) {
        policy(policy_of(name).0).map_err(usage_chain)?;
    }
    reject_duplicates("--policy", &command.policy)?;
    reject_duplicates("--load", &command.load)?;
    reject_duplicates("--accounting", &command.accounting)?;
    reject_duplicates("--world", &command.world)?;
    reject_duplicates("--workload", &command.workload)?;
    reject_duplicates("--waterfall", &command.waterfall)?;
    command.check_limits()?;
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
        orders: command.orders.unwrap_or_else(|| command.orders_default()),
        quick: command.quick,
    };
    let report = command.report.as_deref().map(AtomicFile::open).transpose()?;
    let (worlds, cases) = cases(&command.scenario, &wanted).map_err(usage_chain)?;
    let has_grid =
        cases.iter().any(|case| case.jobs.rigid.iter().any(|jobs| jobs.carbon.is_some()));
    if !has_grid && let Some(option) = command.needs_a_grid() {
        return Err(usage(format!(
            "{option} needs a carbon intensity, but {} has none: use greenflow-16, or omit the option",
            command.scenario
        )));
    }
    let form = if command.wide { Form::Wide } else { Form::Narrow };
    let mut comparer = Comparer::new(&worlds, options);
    if command.is_below_limits() {
        return below_limits(command, &comparer, &cases, form, report);
    }
    let mut comparisons: Vec<Comparison> = Vec::new();
    let mut together_from = 0;
    for (number, case) in cases.iter().enumerate() {
        let what = format!("{} of {}: {}", number + 1, cases.len(), case_name(case));
        let comparison = comparer.compare(case, &mut |done, of| progress(&what, done, of));
        let mut comparison = comparison.map_err(usage_chain)?;
        for family in &command.waterfall {
            let what = format!("{what}, distance of {family} to the bound");
            let waterfall =
                comparer.waterfall(case, family, &mut |done, of| progress(&what, done, of));
            comparison.waterfalls.push(waterfall.map_err(usage_chain)?);
        }
        if !command.json {
            print(&to_table(&comparison, form))?;
            print("")?;
            for waterfall in &comparison.waterfalls {
                print(&waterfall_table(waterfall, form))?;
                print("")?;
            }
        }
        comparisons.push(comparison);
        // Cases that differ only in energy accounting share one table.
        if cases.get(number + 1).is_none_or(|next| !differ_in_accounting(case, next)) {
            let table = side_by_side(&comparisons[together_from..], form);
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
        if file.is_svg() {
            return file.write(&comparison_figure(first));
        }
        let recorded = record(worlds.of(case.world), case, first).map_err(usage_chain)?;
        file.write(&comparison_page(&comparisons, &recorded))?;
    }
    Ok(())
}

/// Compares policies during the grid events of a field trial.
fn during_events(command: &Compare) -> anyhow::Result<()> {
    let policies = match &command.policy[..] {
        [] => field_trial::POLICIES.map(str::to_owned).to_vec(),
        given => given.to_vec(),
    };
    for name in &policies {
        policy(name).map_err(usage_chain)?;
    }
    let draws = command.orders.unwrap_or(1);
    let rows = match command.scenario.as_str() {
        grid_caiso::NAME => grid_caiso::compare(&policies, draws),
        _ => grid_srp::compare(&grid_srp::DEPTHS, &policies, draws),
    };
    let rows = rows.map_err(usage_chain)?;
    if command.json {
        return print(&serde_json::to_string_pretty(&rows).context("the comparison as JSON")?);
    }
    print(&field_trial::table(&rows))
}

/// Compares below power limits.
fn below_limits(
    command: &Compare,
    comparer: &Comparer<'_>,
    cases: &[Case],
    form: Form,
    report: Option<AtomicFile>,
) -> anyhow::Result<()> {
    let mut comparisons = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        let what = format!("{} of {}: {}", number + 1, cases.len(), case_name(case));
        let comparison = comparer.compare_limits(case, &mut |done, of| progress(&what, done, of));
        let comparison = comparison.map_err(usage_chain)?;
        if !command.json {
            print(&limits_table(&comparison, form))?;
            print("")?;
        }
        comparisons.push(comparison);
    }
    if command.json {
        print(&serde_json::to_string_pretty(&comparisons).context("the comparison as JSON")?)?;
    }
    match (report, comparisons.first()) {
        (Some(file), Some(first)) if file.is_svg() => file.write(&limits_figure(first)),
        (Some(file), _) => file.write(&limits_page(&comparisons)),
        (None, _) => Ok(()),
    }
}

impl Compare {
    /// Whether policies are compared below power limits.
    fn is_below_limits(&self) -> bool {
        self.scenario == POWER_LIMITS
    }

    fn orders_default(&self) -> u64 {
        match (self.quick, self.is_below_limits()) {
            (true, _) => 1,
            (false, true) => ORDERS_BELOW_LIMITS,
            (false, false) => ORDERS,
        }
    }

    /// Refuses options that do not apply below power limits.
    fn check_limits(&self) -> anyhow::Result<()> {
        if !self.is_below_limits() {
            return Ok(());
        }
        if self.budget.in_simulation()?.is_some() || !self.events.is_empty() {
            return Err(usage(format!(
                "{POWER_LIMITS} sets the power limits itself; omit the budget and the events"
            )));
        }
        if !self.waterfall.is_empty() {
            return Err(usage(format!(
                "--waterfall compares at equal energy, {POWER_LIMITS} at equal power limits; omit it, or use powerflow-16"
            )));
        }
        Ok(())
    }

    /// The first option that requires a carbon intensity.
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
                "--policy {policy}: `compare` varies the clocks itself; give `{plain}`"
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
            knobs: if self.quick || self.few_settings { Knobs::Few } else { Knobs::Full },
            forecast: match self.forecast.as_str() {
                "persistence" => Forecast::Persistence,
                "perfect" => Forecast::Perfect,
                other => {
                    return Err(usage(format!("--forecast {other}: use persistence or perfect")));
                }
            },
            budget: self.budget.in_simulation()?,
            events: self.events.read()?,
            bound: self.quick.then(PricedSearch::coarse),
            threads: std::thread::available_parallelism().map_or(1, usize::from),
        })
    }
}

/// The name of a case in progress lines.
fn case_name(case: &Case) -> String {
    let (load, accounting, world) = (case.load, case.accounting.as_str(), case.world.as_str());
    let workload = if case.workload.is_empty() { "jobs" } else { case.workload };
    let deadlines = if case.deadlines { " with deadlines" } else { "" };
    format!("load {load:.2}, {accounting}, interference {world}, {workload}{deadlines}")
}

fn differ_in_accounting(a: &Case, b: &Case) -> bool {
    std::sync::Arc::ptr_eq(&a.jobs, &b.jobs) && a.world == b.world
}

/// Refuses duplicates in a list option.
fn reject_duplicates<T: PartialEq + std::fmt::Display>(
    option: &str,
    named: &[T],
) -> anyhow::Result<()> {
    match named.iter().enumerate().find(|(i, one)| named[..*i].contains(one)) {
        Some((_, one)) => Err(usage(format!("{option} names {one} twice; name it once"))),
        None => Ok(()),
    }
}

/// Prints the progress of a case in tenths.
fn progress(what: &str, done: usize, of: usize) {
    let step = (of / 10).max(1);
    if done.is_multiple_of(step) || done == of {
        note(&format!("{what}: {done} of {of} runs"));
    }
}

/// The values with these names.
fn named<T: Copy, const N: usize>(
    names: &[String],
    what: &str,
    all: [T; N],
    name_of: fn(T) -> &'static str,
) -> anyhow::Result<Vec<T>> {
    let one = |name: &String| {
        all.into_iter().find(|known| name_of(*known) == name).ok_or_else(|| {
            let known = all.map(name_of).join(", ");
            usage(format!("unknown {what} `{name}`: expected one of {known}"))
        })
    };
    names.iter().map(one).collect()
}
