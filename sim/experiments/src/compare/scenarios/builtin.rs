//! `builtin`: generated jobs ([`wattle_simulator::generator`]) on 16 nodes of 8 V100, without data
//! files. Workloads are drawn from the catalog; the number of steps follows from the duration on
//! the requested GPUs. Each order is a new draw.

use wattle_common::topology::ClusterShape;
use wattle_world::World;

use super::{Case, CaseFilter, CompareError, SEED, Worlds, in_steps};
use wattle_simulator::Scenario;
use wattle_simulator::generator;

pub(super) const NAME: &str = "builtin";

const JOBS: usize = 2_000;
/// For a quick look.
const FEW_JOBS: usize = 500;
const CLUSTER: &str = "16x8:v100";
const LOADS: [f64; 3] = [0.5, 0.8, 1.1];

pub(super) fn cases(filter: &CaseFilter<'_>) -> Result<(Worlds, Vec<Case>), CompareError> {
    let world = World::builtin();
    let cluster: ClusterShape = CLUSTER.parse().expect("a cluster is written so");
    let jobs = if filter.quick { FEW_JOBS } else { JOBS };
    let mut cases = Vec::new();
    for &load in filter.loads(&LOADS) {
        let in_order = |order: u64| {
            let trace = generator::generate(jobs, SEED + order);
            let mut scenario = Scenario::from_trace(&world, &trace, &cluster, SEED + order)?;
            in_steps(&world, &mut scenario);
            scenario.set_load(&world, load)?;
            Ok::<_, CompareError>(scenario)
        };
        let orders: Result<Vec<_>, _> = (0..filter.orders).map(in_order).collect();
        cases.extend(filter.of_elastic_jobs(NAME, load, "", orders?));
    }
    Ok((Worlds::new(world), cases))
}
