//! `wattle simulate`: replays a trace under one or more policies, with no server and no GPU.

use std::path::{Path, PathBuf};

use clap::Args;
use wattle_common::topology::ClusterShape;
use wattle_runtime::shell::chain;
use wattle_simulator::{
    CarbonSeries, PolicyOutcome, Scenario, SimulationError, gather, run_oracle, run_policy,
    trace::{self, Trace},
};
use wattle_world::World;

use crate::output::{note, print, usage};

/// Replay a trace under one or more policies; needs no server and no GPU.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  wattle simulate --trace deploy/demo/trace.csv --cluster 2x4:v100 --policy fifo,eaco\n  wattle simulate --trace sacct.txt --cluster 16x8:a100 --load 0.8\n  wattle simulate --trace philly.csv.gz --cluster 28x8:v100 --policy fifo,fifo-packed,eaco --json\n  wattle simulate --trace deploy/demo/trace.csv --cluster 2x4:v100 --policy fifo-packed,eaco --oracle"
)]
pub(crate) struct Simulate {
    /// The trace: Philly, Tiresias, Gavel, ElasticFlow, Chronus or `sacct -P`, also as .gz
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,
    /// Read the trace as of this format, not as of the one it looks like: philly, tiresias, gavel,
    /// elasticflow, chronus, sacct
    #[arg(long, value_name = "NAME")]
    trace_format: Option<String>,
    /// Compress or stretch the arrivals until the jobs offer this load: their GPU time alone, of
    /// the cluster's from the first arrival to the last
    #[arg(long, value_name = "SHARE")]
    load: Option<f64>,
    /// Give the same arrivals to the jobs in another order: 1, 2, ...; 0 is the trace's own
    #[arg(long, value_name = "K", default_value_t = 0)]
    order: u64,
    /// The cluster
    #[arg(long, value_name = "NODESxGPUS:KIND")]
    cluster: ClusterShape,
    /// Policies, separated by commas: fifo, fifo-packed, eaco
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "fifo,eaco")]
    policy: Vec<String>,
    /// Carbon intensity over time: at_s,g_per_kwh (or EIA's or WattTime's columns)
    #[arg(long, value_name = "FILE")]
    carbon: Option<PathBuf>,
    /// Everything that is drawn follows from it
    #[arg(long, default_value_t = 7)]
    seed: u64,
    /// Run each policy once more with true predictions, and tell the price of not knowing
    #[arg(long)]
    oracle: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Reads a trace and a carbon series; what is wrong with them is the user's to mend.
pub(crate) fn scenario(
    world: &World,
    trace: &Path,
    cluster: &ClusterShape,
    carbon: Option<&Path>,
    seed: u64,
) -> anyhow::Result<Scenario> {
    let trace = trace::read(trace).map_err(usage_chain)?;
    of_trace(world, &trace, cluster, carbon, seed)
}

/// A trace's jobs on a cluster, with a carbon series.
fn of_trace(
    world: &World,
    trace: &Trace,
    cluster: &ClusterShape,
    carbon: Option<&Path>,
    seed: u64,
) -> anyhow::Result<Scenario> {
    let mut scenario = Scenario::from_trace(world, trace, cluster, seed).map_err(usage_chain)?;
    scenario.carbon = carbon.map(CarbonSeries::read).transpose().map_err(usage_chain)?;
    Ok(scenario)
}

/// An error of the user's input, with what led to it.
pub(crate) fn usage_chain(error: impl std::error::Error) -> anyhow::Error {
    usage(chain(&error))
}

/// Simulates one policy, and how long that took.
pub(crate) fn one(
    world: &World,
    scenario: &Scenario,
    policy: &str,
) -> anyhow::Result<PolicyOutcome> {
    let outcome = timed(|| run_policy(world, scenario, policy).map(Some))?;
    Ok(outcome.expect("a policy's own run has an outcome"))
}

/// A run, with how long it took.
fn timed(
    run: impl FnOnce() -> Result<Option<PolicyOutcome>, SimulationError>,
) -> anyhow::Result<Option<PolicyOutcome>> {
    let began = wattle_runtime::clock::wall_now();
    let mut outcome = run().map_err(usage_chain)?;
    if let Some(outcome) = &mut outcome {
        outcome.wall_s = wattle_runtime::clock::wall_now().since(began).as_secs_f64();
    }
    Ok(outcome)
}

/// Runs the command.
pub(crate) fn run(command: Simulate) -> anyhow::Result<()> {
    let world = World::builtin();
    for policy in &command.policy {
        wattle_placer::policy(policy).map_err(usage_chain)?;
    }
    let carbon = command.carbon.as_deref();
    let format = command.trace_format.as_deref();
    let trace = trace::read_as(&command.trace, format).map_err(usage_chain)?;
    let mut scenario = of_trace(&world, &trace, &command.cluster, carbon, command.seed)?;
    scenario.set_order(command.order);
    if let Some(load) = command.load {
        scenario.set_load(&world, load).map_err(usage_chain)?;
    }
    let mut policies = Vec::new();
    for policy in &command.policy {
        policies.push(one(&world, &scenario, policy)?);
        if command.oracle {
            policies.extend(timed(|| run_oracle(&world, &scenario, policy))?);
        }
    }
    let outcome = gather(&scenario, policies);
    if command.json {
        return print(&outcome.to_json());
    }
    print(&outcome.to_table())?;
    for said in &outcome.notes {
        note(&format!("note: {said}"));
    }
    Ok(())
}
