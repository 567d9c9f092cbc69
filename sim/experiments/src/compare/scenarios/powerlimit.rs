//! `powerlimit-16`: power limits on 16 nodes of 8 GPUs, at load 0.76. On A100s the 876 jobs of `powerflow-16`; on
//! V100s, whose caps were measured, jobs generated as in `builtin`. Each with the requested GPUs (`fixed`), on any
//! power of two of GPUs (`elastic`), and on one that each job keeps from its start to its end, because it cannot stop
//! (`elastic-nonstop`); with nodes that sleep while unused and with nodes always awake.

use std::sync::Arc;

use wattle_common::topology::ClusterShape;
use wattle_world::World;

use super::super::options::{Accounting, Neighbours};
use super::{Case, CaseFilter, CompareError, JobSequences, SEED, Worlds, in_steps, powerflow};
use wattle_simulator::Scenario;
use wattle_simulator::generator;

pub(super) const NAME: &str = "powerlimit-16";

/// Number of generated jobs.
const JOBS: usize = 600;
/// For a quick look.
const FEW_JOBS: usize = 200;
const LOADS: [f64; 1] = [0.76];
const ACCOUNTINGS: [Accounting; 2] = [Accounting::SleepAll, Accounting::SleepNone];

/// The variants: name, GPU type, and the sizes of jobs.
const VARIANTS: [(&str, &str, Sizes); 6] = [
    ("a100-fixed", "a100", Sizes::Requested),
    ("a100-elastic", "a100", Sizes::Any),
    ("a100-elastic-nonstop", "a100", Sizes::AnyKept),
    ("v100-fixed", "v100", Sizes::Requested),
    ("v100-elastic", "v100", Sizes::Any),
    ("v100-elastic-nonstop", "v100", Sizes::AnyKept),
];

/// The numbers of GPUs that a job may have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sizes {
    /// The requested one.
    Requested,
    /// Any power of two, changed while the job runs.
    Any,
    /// Any power of two, kept to the end: the job cannot stop.
    AnyKept,
}

pub(super) fn cases(filter: &CaseFilter<'_>) -> Result<(Worlds, Vec<Case>), CompareError> {
    let variants = || VARIANTS.iter().filter(|variant| filter.includes(variant.0));
    let measured = if variants().any(|variant| variant.1 == "a100") {
        Some(powerflow::natural(NAME, filter)?)
    } else {
        None
    };
    let builtin = World::builtin();
    let world = measured.as_ref().map_or(&builtin, |(world, _)| world);
    let mut cases = Vec::new();
    for &load in filter.loads(&LOADS) {
        for &(workload, gpu_type, sizes) in variants() {
            let mut orders = match &measured {
                Some((world, natural)) if gpu_type == "a100" => {
                    let mut scenario = natural.clone();
                    scenario.set_load(world, load)?;
                    filter.permuted(&scenario)
                }
                _ => filter.permuted(&generated(world, gpu_type, load, filter.quick)?),
            };
            if sizes == Sizes::AnyKept {
                let jobs = orders.iter_mut().flat_map(|scenario| &mut scenario.jobs);
                jobs.for_each(|job| job.can_stop = false);
            }
            let jobs = match sizes {
                Sizes::Requested => JobSequences::rigid(orders),
                Sizes::Any | Sizes::AnyKept => JobSequences::open(orders),
            };
            let jobs = Arc::new(jobs);
            for &accounting in filter.accountings(&ACCOUNTINGS) {
                for world in filter.worlds(&[Neighbours::Alone]) {
                    let (scenario, deadlines, jobs) = (NAME, false, jobs.clone());
                    cases.push(Case {
                        scenario,
                        load,
                        accounting,
                        world,
                        workload,
                        deadlines,
                        jobs,
                    });
                }
            }
        }
    }
    Ok((Worlds::new(world.clone()), cases))
}

fn generated(
    world: &World,
    gpu_type: &str,
    load: f64,
    quick: bool,
) -> Result<Scenario, CompareError> {
    let cluster: ClusterShape =
        format!("16x8:{gpu_type}").parse().expect("a cluster is written so");
    let trace = generator::generate(if quick { FEW_JOBS } else { JOBS }, SEED);
    let mut scenario = Scenario::from_trace(world, &trace, &cluster, SEED)?;
    in_steps(world, &mut scenario);
    scenario.set_load(world, load)?;
    Ok(scenario)
}
