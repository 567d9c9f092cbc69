//! Inputs of simulations: catalog, cluster, trace, carbon series and restartable jobs.

use std::path::Path;

use wattle_common::topology::ClusterShape;
use wattle_runtime::shell::chain;
use wattle_simulator::gavel;
use wattle_simulator::measured::{self, Measured};
use wattle_simulator::trace::{self, Trace, TraceJob};
use wattle_simulator::{CarbonSeries, Restartable, Scenario};
use wattle_world::World;

use crate::output::{usage, usage_chain};

/// The catalog that a trace needs, with notes. `data` is a folder with measured files.
pub(crate) fn world_of(trace: &Trace, data: Option<&Path>) -> anyhow::Result<(World, Vec<String>)> {
    if trace.jobs.iter().any(|job| job.measured_as.is_some()) {
        return Ok((gavel::world(), Vec::new()));
    }
    let is_measured = |job: &TraceJob| {
        let named = job.model.as_deref().zip(job.batch);
        named.is_some_and(|named| measured::jobs().any(|measured| measured == named))
    };
    let named = trace.jobs.iter().filter(|job| is_measured(job)).count();
    match data {
        Some(dir) if named > 0 => {
            let measured = Measured::find(dir).map_err(usage_chain)?;
            let notes = measured.problems.iter().map(ToString::to_string).collect();
            Ok((measured.world().map_err(usage_chain)?, notes))
        }
        None if named > 0 => Ok((
            World::builtin(),
            vec![format!(
                "{named} jobs are of models and batches that were measured on A100s; with --data, \
                 the folder of those files, they are simulated as such"
            )],
        )),
        _ => Ok((World::builtin(), Vec::new())),
    }
}

/// Reads a trace and a carbon series; their errors are usage errors.
pub(crate) fn scenario(
    world: &World,
    trace: &Path,
    cluster: &ClusterShape,
    carbon: Option<&Path>,
    seed: u64,
) -> anyhow::Result<Scenario> {
    let trace = trace::read(trace).map_err(usage_chain)?;
    scenario_of(world, &trace, cluster, carbon, seed)
}

/// Reads `--restartable`.
pub(crate) fn restartable(text: &str) -> anyhow::Result<Restartable> {
    Restartable::read(text).map_err(|error| usage(format!("--restartable: {}", chain(&error))))
}

/// The cluster of a trace, inferred from its nodes, with notes on each assumption. Jobs without a
/// GPU type get that of the nodes they ran on.
pub(crate) fn inferred_cluster(
    world: &World,
    trace: &mut Trace,
) -> anyhow::Result<(ClusterShape, Vec<String>)> {
    let inferred = trace::infer(world, trace).map_err(usage_chain)?;
    let assigned = inferred.assign_types(trace);
    let shape = &inferred.shape;
    let mut notes =
        vec![format!("cluster {shape} inferred from the trace; --cluster gives another one")];
    notes.extend(inferred.assumptions);
    if assigned > 0 {
        notes.push(format!("{assigned} jobs without a GPU type keep that of their node"));
    }
    Ok((inferred.shape, notes))
}

/// A trace's jobs on a cluster, with a carbon series.
pub(crate) fn scenario_of(
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
