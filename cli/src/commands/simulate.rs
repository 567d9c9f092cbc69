//! `wattle simulate`: simulates a trace under one or more policies, without server or GPU.

mod runs;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use wattle_common::aim::Baseline;
use wattle_common::duration::parse_span;
use wattle_common::job::Sharing;
use wattle_common::topology::ClusterShape;
use wattle_placer::UnknownPolicy;
use wattle_placer::policies::{POLICIES, PolicySet};
use wattle_runtime::shell::chain;
use wattle_saving::estimate::Sample;
use wattle_saving::report::{simulation_figure, simulation_page};
use wattle_saving::seeds::{SeedStudy, changes};
use wattle_simulator::trace::{self, Trace};
use wattle_simulator::{
    CarbonSeries, EVERY_JOB_MAX, Forecast, Learning, LoadError, PolicyOutcome, Restartable,
    RunOptions, Scenario, gather, generator, run_with,
};
use wattle_world::World;

use crate::aim::{AimOptions, NoLaterOptions, SimulationBound};
use crate::atomic_file::AtomicFile;
use crate::budget::{BudgetOptions, limits};
use crate::event_file::SimulatedEvents;
use crate::inputs::{inferred_cluster, restartable, scenario_of, world_of};
use crate::output::{note, print, usage, usage_chain};
use crate::policies::{names_help, table};

use self::runs::{Ran, Runs, timed};

/// Default number of generated jobs.
const JOBS: usize = 2_000;
/// Default load and cluster of generated jobs.
const LOAD: f64 = 0.8;
const CLUSTER: &str = "16x8:v100";
/// Most jobs of the sample on which the search of an energy aim begins, and least nodes of each group.
const SAMPLE_JOBS_MAX: usize = 4_000;
const SAMPLE_NODES_MIN: u32 = 8;
/// Largest number of seeds.
const SEEDS_MAX: u64 = 1_000;

const POLICIES_HELP: &str = "Policies, separated by commas";

fn after_help(program: &str, policies: &PolicySet) -> String {
    let table = table(policies);
    format!(
        "{table}\n\nJCT is the job completion time, from submission to completion; wait is its part without GPUs,\nnodes the mean number of nodes with a job, busy the mean utilisation of all GPUs.\n\nExamples:\n  {program} simulate --report out.html\n  {program} simulate --jobs 5000 --load 1.1 --cluster 28x8:v100 --policy fifo,fifo-packed,eaco\n  {program} simulate --trace deploy/demo/trace.csv --cluster 2x4:v100 --policy fifo-packed,eaco --oracle\n  {program} simulate --trace philly.csv.gz --cluster 320x8:a100 --policy fifo --json\n  {program} simulate --trace sacct.txt --cluster 16x8:a100 --seeds 10"
    )
}

/// The help of the command in `program`, whose policies are `policies`.
#[must_use]
pub fn describe(command: clap::Command, program: &str, policies: &PolicySet) -> clap::Command {
    let help = names_help(POLICIES_HELP, policies);
    command.mut_arg("policy", |arg| arg.help(help)).after_help(after_help(program, policies))
}

/// Simulate a trace or generated jobs under one or more policies, without server or GPU.
#[derive(Args)]
#[command(
    after_help = after_help("wattle", &POLICIES)
)]
pub struct Simulate {
    /// Trace of `sacct -P` or `sacct --json`, Philly, Helios, Acme, PAI, Tiresias, Gavel, ElasticFlow or Chronus,
    /// also as .gz; or `builtin`:
    /// jobs generated from the distributions of Microsoft's Philly traces
    #[arg(long, value_name = "FILE", default_value = generator::NAME)]
    trace: PathBuf,
    /// Format of the trace: philly, tiresias, gavel, elasticflow, chronus, sacct, helios, acme, pai2020, pai2023
    /// [default: detected]
    #[arg(long, value_name = "NAME")]
    trace_format: Option<String>,
    /// Number of jobs: the first of the trace, or generated ones [default: all, or 2000 generated]
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Rescale the arrival times to this load: exclusive GPU time of the jobs divided by that of the
    /// cluster from the first to the last arrival [default: that of the trace, or 0.8]
    #[arg(long, value_name = "SHARE")]
    load: Option<f64>,
    /// Permutation of the jobs over the arrival times: 1, 2, ...; 0 keeps the order of the trace
    #[arg(long, value_name = "K", default_value_t = 0)]
    order: u64,
    /// Folder with measured files, searched recursively; needed for the A100 jobs of ElasticFlow's trace
    #[arg(long, value_name = "DIR", env = "WATTLE_DATA")]
    data: Option<PathBuf>,
    /// The cluster, optionally with /N nodes per leaf switch, or a TOML file [default: inferred from the
    /// nodes of a trace that names them (`sacct`), 16x8:v100 for generated jobs]
    #[arg(long, value_name = "NODESxGPUS:TYPE|FILE.toml", value_parser = crate::cluster_file::cluster)]
    cluster: Option<ClusterShape>,
    #[arg(
        long, value_name = "NAMES", value_delimiter = ',', default_value = "fifo,wattle",
        help = names_help(POLICIES_HELP, &POLICIES)
    )]
    policy: Vec<String>,
    /// Carbon intensity series: at,g_per_kwh or at_s,g_per_kwh (or EIA's or WattTime's columns)
    #[arg(long, value_name = "FILE")]
    carbon: Option<PathBuf>,
    #[command(flatten)]
    budget: BudgetOptions,
    #[command(flatten)]
    events: SimulatedEvents,
    /// Forecast of the carbon intensity: persistence (the previous day), perfect (the actual values), or
    /// a file with day-ahead values
    #[arg(long, value_name = "HOW|FILE", default_value = "persistence")]
    forecast: String,
    /// Slack of every job for carbon deferral; needs --carbon
    #[arg(long, value_name = "SPAN", value_parser = parse_span)]
    slack: Option<Duration>,
    /// Feeders with power limits and the nodes on them, n0, n1 and so on: [[feeder]] and [[node]] as in placer.toml
    #[arg(long, value_name = "FILE.toml")]
    feeders: Option<PathBuf>,
    #[command(flatten)]
    aim: AimOptions,
    #[command(flatten)]
    no_later: NoLaterOptions,
    /// A constant energy price in the unit of the policy, in place of an aim; 0: energy is free
    #[arg(long, value_name = "PRICE", conflicts_with_all = ["aim", "max_slowdown"])]
    price: Option<f64>,
    /// Let the controller of the live placer hold the energy aim's bound from predictions, in place of the
    /// search with complete simulations
    #[arg(long)]
    aim_by_controller: bool,
    /// Run this scheduler as the twin of each policy, as a live placer does: backfill, fifo
    #[arg(long, value_name = "backfill|fifo")]
    twin: Option<Baseline>,
    /// Compute when jobs are expected to start and end, as a live placer does, and print the errors
    #[arg(long)]
    expected_times: bool,
    /// Let unused nodes sleep
    #[arg(long)]
    sleep: bool,
    /// Which jobs may be stopped, moved and resized, where the trace does not state it: none, all, a
    /// file of job ids, or a share of the jobs such as 0.3, chosen by a hash of the id
    #[arg(long, value_name = "none|all|FILE|SHARE", default_value = "all")]
    restartable: String,
    /// Sizes of the jobs under policies that change sizes: as the trace states them, or any power of two of GPUs up to 64,
    /// which a job that is not restartable keeps. Other policies, and the schedules of --no-later-than, keep those of the
    /// trace
    #[arg(long, value_name = "trace|any", default_value = "trace", value_parser = ["trace", "any"])]
    sizes: String,
    /// Which jobs may share a GPU: never, consented, any; no job of a trace declares consent
    #[arg(long, value_name = "RULE", default_value_t = Sharing::Any)]
    share: Sharing,
    /// Most jobs on one GPU, under policies that share GPUs [default: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    tenants_max: Option<u32>,
    /// Most restarts of a job by plans within 24 hours; above 32 no bound [default: 4, of elastic jobs 24]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    restarts_per_day: Option<u32>,
    /// Jobs that the predictor learns from: all, or a sample whose surfaces the others share [default: all
    /// up to 10000 jobs, otherwise sample]
    #[arg(long, value_name = "all|sample", value_parser = learning)]
    learn_from: Option<Learning>,
    /// Random seed
    #[arg(long, default_value_t = 7)]
    seed: u64,
    /// Number of consecutive seeds; with several, print the saving of each policy against the first one
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=SEEDS_MAX))]
    seeds: u64,
    /// Also run each policy with exact predictions, and print the prediction regret
    #[arg(long)]
    oracle: bool,
    /// Write a self-contained page with plots, node maps and reasons to this file; if its name ends in .svg,
    /// the node maps alone
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Simulate {
    /// Whether the jobs are generated.
    fn is_builtin(&self) -> bool {
        self.trace == Path::new(generator::NAME)
    }

    /// The jobs under this seed; those of a file do not depend on it.
    fn jobs(&self, seed: u64) -> anyhow::Result<Trace> {
        if self.jobs == Some(0) {
            return Err(usage("--jobs 0: give at least 1"));
        }
        if self.is_builtin() {
            if let Some(format) = &self.trace_format {
                return Err(usage(format!(
                    "--trace-format {format} needs a file: give it with --trace"
                )));
            }
            let jobs = self.jobs.unwrap_or(JOBS);
            if jobs > generator::JOBS_MAX {
                return Err(usage(format!(
                    "--jobs {jobs}: at most {} can be generated",
                    generator::JOBS_MAX
                )));
            }
            return Ok(generator::generate(jobs, seed));
        }
        let format = self.trace_format.as_deref();
        let mut trace = trace::read_as(&self.trace, format).map_err(usage_chain)?;
        trace.keep_first(self.jobs.unwrap_or(usize::MAX));
        Ok(trace)
    }

    /// The catalog that the trace needs, with notes.
    fn world(&self, trace: &Trace) -> anyhow::Result<(World, Vec<String>)> {
        world_of(trace, self.data.as_deref())
    }

    /// The cluster, and how it was inferred where `--cluster` does not give it.
    fn cluster(
        &self,
        world: &World,
        trace: &mut Trace,
    ) -> anyhow::Result<(ClusterShape, Vec<String>)> {
        match &self.cluster {
            Some(cluster) => Ok((cluster.clone(), Vec::new())),
            None if self.is_builtin() => Ok((CLUSTER.parse().map_err(usage_chain)?, Vec::new())),
            None => inferred_cluster(world, trace),
        }
    }

    /// The scenario of these jobs under this seed.
    fn scenario(
        &self,
        world: &World,
        trace: &Trace,
        cluster: &ClusterShape,
        seed: u64,
    ) -> anyhow::Result<Scenario> {
        let mut scenario = scenario_of(world, trace, cluster, self.carbon.as_deref(), seed)?;
        self.set_grid(&mut scenario)?;
        if let Some(path) = &self.feeders {
            crate::feeders_file::read(path, world, &mut scenario)?;
        }
        restartable(&self.restartable)?.apply(&mut scenario, trace);
        scenario.set_order(self.order);
        if let Some(load) = self.load.or(self.is_builtin().then_some(LOAD)) {
            match scenario.set_load(world, load) {
                // One job has no load, which matters only if a load was requested.
                Err(LoadError::AllAtOnce) if self.load.is_none() => {}
                other => other.map_err(usage_chain)?,
            }
        }
        Ok(scenario)
    }

    /// A sample of the jobs of a large scenario on a part of its nodes, from whose price the search of an energy aim
    /// begins; `None` where limits of energy or power are those of the whole cluster.
    fn sample(
        &self,
        world: &World,
        trace: &Trace,
        scenario: &Scenario,
        seed: u64,
    ) -> anyhow::Result<Option<Scenario>> {
        let is_limited =
            self.feeders.is_some() || !self.events.is_empty() || self.options()?.budget.is_some();
        let has_search = self.bound()?.is_some() && !self.aim_by_controller;
        if is_limited || !has_search || trace.jobs.len() <= EVERY_JOB_MAX {
            return Ok(None);
        }
        let sample = Sample::of(trace, &scenario.cluster, SAMPLE_JOBS_MAX, SAMPLE_NODES_MIN, seed);
        sample.map(|sample| self.scenario(world, &sample.trace, &sample.cluster, seed)).transpose()
    }

    /// The forecast of the carbon intensity, and the slack of the jobs.
    fn set_grid(&self, scenario: &mut Scenario) -> anyhow::Result<()> {
        if self.carbon.is_none() && (self.budget.carbon_kg.is_some() || self.slack.is_some()) {
            let what = if self.slack.is_some() { "--slack" } else { "--carbon-kg" };
            return Err(usage(format!(
                "{what} needs the grid's carbon intensity; name its file with --carbon"
            )));
        }
        if self.forecast_kind() == Forecast::DayAhead {
            let day_ahead = CarbonSeries::read(Path::new(&self.forecast)).map_err(|error| {
                let file = &self.forecast;
                let why = chain(&error);
                usage(format!(
                    "--forecast {file} is neither persistence, perfect nor a file: {why}"
                ))
            })?;
            scenario.day_ahead = Some(day_ahead);
        }
        for job in &mut scenario.jobs {
            job.slack = self.slack.or(job.slack);
        }
        Ok(())
    }

    /// Validates the policies and their options before any file is read.
    fn check_policies(&self, known: &PolicySet, others: Option<&str>) -> anyhow::Result<()> {
        let mut prices = false;
        for (i, name) in self.policy.iter().enumerate() {
            let policy = known.policy(name).map_err(|error| match (&error, others) {
                (UnknownPolicy::Name { .. }, Some(others)) => usage(format!("{error}; {others}")),
                _ => usage_chain(error),
            })?;
            prices |= policy.capabilities().prices.is_some();
            if self.policy[..i].contains(name) {
                return Err(usage(format!("--policy names {name} twice; name it once")));
            }
        }
        if let Some(price) = self.price.filter(|price| *price > 0.0 && !prices) {
            return Err(usage(format!(
                "--price {price}: none of these policies reads a price; powerflow, greenflow and wattle do"
            )));
        }
        if self.aim.is_given() && !prices {
            return Err(usage(
                "--aim: none of these policies reads an energy price; powerflow, greenflow and wattle do",
            ));
        }
        let bound = self.bound()?;
        if self.no_later.is_given() && !prices {
            return Err(usage(
                "--no-later-than: none of these policies reads an energy price; powerflow, greenflow and wattle do",
            ));
        }
        if self.no_later.is_recorded() && (self.load.is_some() || self.order > 0) {
            return Err(usage(
                "--no-later-than recorded: the recorded schedule is of the trace's own arrivals; omit --load and --order",
            ));
        }
        if self.aim_by_controller && bound.is_none() {
            return Err(usage("--aim-by-controller is of the energy aim; give --aim energy"));
        }
        if self.seeds > 1 && self.policy.len() < 2 {
            return Err(usage(
                "--seeds compares policies with the first one: give at least two with \
                 --policy",
            ));
        }
        if self.carbon.is_none() && self.forecast_kind() != Forecast::Persistence {
            return Err(usage("--forecast is of the grid; name its intensity with --carbon"));
        }
        Ok(())
    }

    /// Validates that some GPU of the cluster supports the fixed clock of each policy.
    fn check_clocks(&self, world: &World, scenario: &Scenario) -> anyhow::Result<()> {
        let kinds = || scenario.cluster.groups().iter().filter_map(|g| world.gpu(&g.gpu_type));
        let most = kinds().map(|gpu| gpu.clock_max().as_mhz()).max().unwrap_or_default();
        let least = kinds().filter_map(|gpu| gpu.clocks.iter().min()).map(|mhz| mhz.as_mhz()).min();
        let least = least.unwrap_or_default();
        for name in &self.policy {
            let mhz = name.split_once('@').and_then(|(_, mhz)| mhz.parse::<u32>().ok());
            if let Some(mhz) = mhz.filter(|mhz| !(least..=most).contains(mhz)) {
                return Err(usage(format!(
                    "{name}: no GPU of this cluster runs at {mhz} MHz; give {least} to {most}"
                )));
            }
        }
        Ok(())
    }

    fn forecast_kind(&self) -> Forecast {
        match self.forecast.as_str() {
            "persistence" => Forecast::Persistence,
            "perfect" => Forecast::Perfect,
            _ => Forecast::DayAhead,
        }
    }

    /// The bound of the energy aim, if that is the aim.
    fn bound(&self) -> anyhow::Result<Option<SimulationBound>> {
        if self.price.is_some() {
            return Ok(None);
        }
        self.no_later.bound(&self.aim, self.has_window()?)
    }

    /// Whether policies that change sizes may choose any.
    fn opens_sizes(&self) -> bool {
        self.sizes == "any"
    }

    fn has_window(&self) -> anyhow::Result<bool> {
        Ok(self.budget.in_simulation()?.is_some_and(|budget| budget.has_window()))
    }

    fn options(&self) -> anyhow::Result<RunOptions> {
        let price = self.price.unwrap_or(0.0);
        if !(price >= 0.0 && price.is_finite()) {
            return Err(usage(format!("--price {price}: give a number of at least 0")));
        }
        Ok(RunOptions {
            price,
            aim: match self.bound()?.filter(|_| self.aim_by_controller) {
                Some(bound) => Some(bound.of_controller()?),
                None => None,
            },
            twin: self.twin,
            expected_times: self.expected_times,
            nodes_sleep: self.sleep,
            tenants_max: self.tenants_max,
            restarts_per_day_max: self.restarts_per_day,
            share: self.share,
            budget: self.budget.in_simulation()?,
            events: self.events.read()?,
            forecast: self.forecast_kind(),
            learning: self.learn_from.unwrap_or_default(),
            ..RunOptions::default()
        })
    }
}

impl Simulate {
    /// The limits of the runs as text.
    fn under(&self) -> anyhow::Result<Vec<String>> {
        let mut under: Vec<String> = self.budget.in_simulation()?.iter().map(limits).collect();
        under.extend(self.events.name());
        let feeders = self.feeders.as_deref().and_then(Path::file_name);
        under.extend(feeders.map(|file| format!("feeders of {}", file.to_string_lossy())));
        under.extend(self.sleep.then(|| "unused nodes sleep".to_owned()));
        let restartable = restartable(&self.restartable)?;
        under.extend((restartable != Restartable::All).then(|| restartable.to_string()));
        under.extend(self.opens_sizes().then(|| "sizes up to 64 GPUs".to_owned()));
        under.extend((self.share != Sharing::Any).then(|| format!("GPU sharing: {}", self.share)));
        let price = self.price.filter(|price| *price > 0.0);
        under.extend(price.map(|price| format!("energy at a price of {price}")));
        under.extend(self.bound()?.map(|bound| bound.to_string()));
        let carbon = self.carbon.as_deref().and_then(Path::file_name);
        under.extend(carbon.map(|file| format!("the grid of {}", file.to_string_lossy())));
        Ok(under)
    }
}

/// Reads `--learn-from`.
fn learning(text: &str) -> Result<Learning, &'static str> {
    match text {
        "all" => Ok(Learning::Every),
        "sample" => Ok(Learning::Sampled),
        _ => Err("expected all or sample"),
    }
}

/// Simulates one policy, and how long that took. The controller of the live placer holds the bound of the
/// energy aim.
pub(crate) fn one(
    world: &World,
    scenario: &Scenario,
    policy: &str,
    options: &RunOptions,
) -> anyhow::Result<PolicyOutcome> {
    let policy = wattle_placer::policy(policy).map_err(usage_chain)?;
    let (mut outcome, wall_s) = timed(|| run_with(world, scenario, policy.as_ref(), options))?;
    outcome.wall_s = wall_s;
    Ok(outcome)
}

/// Runs the command with these policies; `others` states where a policy with another name may be.
///
/// # Errors
/// On wrong usage ([`crate::output::UsageError`]), and if a file cannot be read or written.
pub fn run(command: Simulate, policies: &PolicySet, others: Option<&str>) -> anyhow::Result<()> {
    let known = policies;
    command.check_policies(known, others)?;
    let mut trace = command.jobs(command.seed)?;
    let (world, notes) = command.world(&trace)?;
    let (cluster, assumptions) = command.cluster(&world, &mut trace)?;
    let mut scenario = command.scenario(&world, &trace, &cluster, command.seed)?;
    command.check_clocks(&world, &scenario)?;
    scenario.notes.splice(0..0, assumptions);
    scenario.notes.extend(notes);
    let report = command.report.as_deref().map(AtomicFile::open).transpose()?;
    let sample = command.sample(&world, &trace, &scenario, command.seed)?;
    let of = (known, &world);
    let open = command.opens_sizes();
    let first = Runs::new(of, &trace, &scenario, sample.as_ref(), open);
    let Ran { policies, baseline, recorded } =
        command.runs(&first, command.oracle, report.is_some())?;
    let mut study = SeedStudy::from(gather(&scenario, policies.clone()));
    study.outcome.baseline = baseline;
    if command.seeds > 1 {
        let mut seeds = vec![policies];
        for seed in (1..command.seeds).map(|more| command.seed.wrapping_add(more)) {
            note(&format!("seed {seed}, {} of {}", seeds.len() + 1, command.seeds));
            if command.is_builtin() {
                trace = command.jobs(seed)?;
            }
            let scenario = command.scenario(&world, &trace, &cluster, seed)?;
            let sample = command.sample(&world, &trace, &scenario, seed)?;
            let further = Runs::new(of, &trace, &scenario, sample.as_ref(), open);
            seeds.push(command.runs(&further, false, false)?.policies);
        }
        study.changes = changes(&seeds);
    }
    // The result is printed first, so a failure to write the page does not lose it.
    if command.json {
        print(&study.to_json())?;
    } else {
        print(&study.to_table())?;
    }
    let under = command.under()?;
    let Some(file) = report else { return Ok(()) };
    let drawn = if file.is_svg() {
        simulation_figure(&study, &recorded)
    } else {
        simulation_page(&study, &recorded, &under)
    };
    file.write(&drawn)
}
