//! `wattle compare`: policies against each other at equal energy, and against the limit.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use wattle_simulator::Lengths;
use wattle_simulator::compare::{Accounting, CompareOptions, Knobs, cases, compare_case, to_table};
use wattle_simulator::report::{comparison_page, record};

use super::simulate::usage_chain;
use crate::output::{LateFile, note, print, usage};

/// Compare policies at equal energy on a fixed scenario
///
/// Each policy is run over its own knob and stands on its own frontier of completion time over
/// energy. The jobs and curves are measured ones, read from a folder: docs/comparing.md says which
/// files, and where they are published.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  wattle compare powerflow-16 --data measurements --oracle --policy powerflow,wattle,fifo,srtf,tiresias,afs\n  wattle compare powerflow-16 --data measurements --load 0.76 --orders 1 --quick --report out.html\n\nA full comparison takes hours, one load with --orders 1 --quick a minute or two."
)]
pub(crate) struct Compare {
    /// The scenario: powerflow-16
    scenario: String,
    /// The folder with the measured files, at any depth
    #[arg(long, value_name = "DIR", env = "WATTLE_DATA")]
    data: Option<PathBuf>,
    /// Policies, separated by commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "powerflow")]
    policy: Vec<String>,
    /// Offered loads, separated by commas; all of the scenario's where none is given
    #[arg(long, value_name = "LOADS", value_delimiter = ',')]
    load: Vec<f64>,
    /// What counts as spent: above-idle, sleep-all; both where none is given
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    accounting: Vec<String>,
    /// In how many orders the jobs arrive
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=100))]
    orders: u64,
    /// Policies see true surfaces, and how long each job is
    #[arg(long)]
    oracle: bool,
    /// Turn knobs coarsely: to look at a scenario, not to quote it
    #[arg(long)]
    quick: bool,
    /// Write one page with plots, node maps and reasons to this file; it needs no network
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(command: &Compare) -> anyhow::Result<()> {
    let Some(data) = &command.data else {
        return Err(usage(
            "no folder with measured files; give --data DIR, or set WATTLE_DATA (docs/comparing.md \
             says which files)"
                .to_owned(),
        ));
    };
    for name in &command.policy {
        wattle_placer::policy(name).map_err(usage_chain)?;
    }
    let accountings: Vec<Accounting> =
        command.accounting.iter().map(|name| accounting(name)).collect::<Result<_, _>>()?;
    let (world, cases) =
        cases(&command.scenario, data, &command.load, &accountings).map_err(usage_chain)?;
    let options = CompareOptions {
        policies: command.policy.clone(),
        orders: command.orders,
        oracle: command.oracle,
        lengths: if command.oracle { Lengths::Known } else { Lengths::Reported },
        knobs: if command.quick { Knobs::Quick } else { Knobs::Full },
    };
    let report = command.report.as_deref().map(LateFile::open).transpose()?;
    let mut comparisons = Vec::new();
    for case in &cases {
        let (load, name) = (case.load, case.accounting.as_str());
        let mut progress = |run: usize, of: usize, policy: &str| {
            if run % 10 == 1 {
                note(&format!("load {load} {name}: run {run} of {of}, {policy}"));
            }
        };
        let comparison =
            compare_case(&world, case, &options, &mut progress).map_err(usage_chain)?;
        if !command.json {
            print(&to_table(&comparison))?;
        }
        comparisons.push(comparison);
    }
    if let (Some(file), Some(case), Some(first)) = (report, cases.first(), comparisons.first()) {
        let recorded = record(&world, case, first).map_err(usage_chain)?;
        file.write(&comparison_page(&comparisons, &recorded))?;
    }
    if command.json {
        print(&serde_json::to_string_pretty(&comparisons).context("the comparison as JSON")?)?;
    }
    Ok(())
}

fn accounting(name: &str) -> anyhow::Result<Accounting> {
    let known = Accounting::ALL.into_iter().find(|accounting| accounting.as_str() == name);
    known.ok_or_else(|| {
        let names = Accounting::ALL.map(Accounting::as_str).join(", ");
        usage(format!("no accounting is called `{name}`; use one of {names}"))
    })
}
