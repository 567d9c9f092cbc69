//! `eaco-28`, `eaco-64`: 28 and 64 nodes of 8 V100, 600 jobs of EaCO's four workloads, each on a
//! whole node (arXiv 2412.08294, section 6).
//!
//! The clusters, the four workloads and whole nodes are the paper's. It names no trace, so the
//! following are our own choices: equal shares of the workloads, lengths of 0.25, 0.5, 1 or 1.5
//! times the published ones, Poisson arrivals, and deadlines at 1.1 and 1.5 times a job's exclusive
//! run time for half of the jobs, or none. `published` are the four workloads as measured, with low
//! GPU utilization; `compute-bound` is a hypothetical variant with 1.9 times the utilization, in
//! which co-located jobs slow each other by the mild curve. GPU counts are fixed for every policy.

use std::sync::Arc;
use std::time::Duration;

use wattle_common::JobId;
use wattle_common::rng::Stream;
use wattle_common::time::{scaled, span_s};
use wattle_common::topology::ClusterShape;
use wattle_world::World;

use super::{Case, CaseFilter, CompareError, JobSequences, SEED, Worlds};
use crate::compare::options::{Accounting, Neighbours};
use wattle_simulator::{Scenario, SimJob, Work};

/// The scenarios and their clusters.
pub(super) const CLUSTERS: [(&str, &str); 2] = [("eaco-28", "28x8:v100"), ("eaco-64", "64x8:v100")];

const JOBS: usize = 600;
const LOADS: [f64; 4] = [0.5, 0.7, 0.97, 1.1];
const WORKLOADS: [&str; 4] = ["eaco-alexnet", "eaco-resnet18", "eaco-resnet50", "eaco-vgg16"];
const LENGTHS: [f64; 4] = [0.25, 0.5, 1.0, 1.5];
const SLACKS: [f64; 2] = [1.1, 1.5];
const GPUS: u32 = 8;
/// The variants: name, suffix of the workload ids, and co-location models.
const VARIANTS: [(&str, &str, &[Neighbours]); 2] = [
    ("published", "", &[Neighbours::Pairs, Neighbours::Mild]),
    ("compute-bound", "-compute-bound", &[Neighbours::Mild]),
];
const ACCOUNTINGS: [Accounting; 3] =
    [Accounting::SleepAll, Accounting::SleepNone, Accounting::SleepPacking];

pub(super) fn cases(
    name: &'static str,
    cluster: &str,
    filter: &CaseFilter<'_>,
) -> Result<(Worlds, Vec<Case>), CompareError> {
    let world = World::builtin();
    let cluster: ClusterShape = cluster.parse().expect("a valid cluster");
    let mut cases = Vec::new();
    for (workload, suffix, judged_in) in VARIANTS {
        if !filter.includes(workload) {
            continue;
        }
        for &load in filter.loads(&LOADS) {
            for deadlines in [false, true] {
                let in_order = |order: u64| {
                    let mut scenario = drawn(&world, &cluster, suffix, deadlines, SEED + order)?;
                    scenario.set_load(&world, load)?;
                    Ok::<_, CompareError>(scenario)
                };
                let orders: Result<Vec<_>, _> = (0..filter.orders).map(in_order).collect();
                let jobs = Arc::new(JobSequences::rigid(orders?));
                for world in filter.worlds(judged_in) {
                    for &accounting in filter.accountings(&ACCOUNTINGS) {
                        let (scenario, jobs) = (name, jobs.clone());
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
    }
    Ok((Worlds::new(world), cases))
}

/// The jobs drawn from `seed`, the same in every variant.
fn drawn(
    world: &World,
    cluster: &ClusterShape,
    suffix: &str,
    deadlines: bool,
    seed: u64,
) -> Result<Scenario, CompareError> {
    let gpu = world.gpu("v100").expect("the catalog has it");
    let mut stream = Stream::new(seed, "eaco jobs");
    let mut submit = Duration::ZERO;
    let mut jobs = Vec::with_capacity(JOBS);
    for index in 0..JOBS {
        let base = *stream.pick(&WORKLOADS).expect("there are four");
        let length = *stream.pick(&LENGTHS).expect("there are four");
        let (has_deadline, slack) = (stream.below(2) == 0, stream.pick(&SLACKS).copied());
        let id = format!("{base}{suffix}");
        let workload = world.workload(&id).expect("the catalog has it");
        let steps = (f64::from(workload.epochs) * workload.steps_per_epoch as f64 * length).round();
        let alone = span_s(steps / workload.steps_per_s(gpu, GPUS, 1));
        let slack = slack.filter(|_| deadlines && has_deadline);
        let id = JobId::new(&index.to_string()).expect("digits are an id");
        let workload = workload.id.clone();
        jobs.push(SimJob {
            deadline: slack.map(|slack| submit + scaled(alone, slack)),
            duration_estimate: slack.map(|_| alone),
            ..SimJob::new(id, submit, GPUS, workload, Work::Steps(steps as u64))
        });
        // An hour on average; setting the load scales it.
        submit += span_s(-3_600.0 * (1.0 - stream.unit()).ln());
    }
    Ok(Scenario::new("eaco", cluster.clone(), jobs, seed))
}
