//! `philly`: all 82,247 jobs of Microsoft's Philly table on 320 nodes of 8 A100, at their natural
//! load. The table has no models: workloads are drawn from the catalog's mix, and the number of
//! steps follows from the duration on the requested GPUs.

use wattle_common::topology::ClusterShape;
use wattle_world::World;

use super::{Case, CaseFilter, CompareError, SEED, Worlds, in_steps};
use wattle_simulator::Scenario;
use wattle_simulator::trace;

pub(super) const NAME: &str = "philly";

/// The table in the data folder.
const TABLE: &str = "philly_jobs.csv.gz";
const CLUSTER: &str = "320x8:a100";

pub(super) fn cases(filter: &CaseFilter<'_>) -> Result<(Worlds, Vec<Case>), CompareError> {
    let world = World::builtin();
    let cluster: ClusterShape = CLUSTER.parse().expect("a valid cluster");
    let file = filter.file(NAME, TABLE)?;
    let mut natural = Scenario::from_trace(&world, &trace::read(&file)?, &cluster, SEED)?;
    in_steps(&world, &mut natural);
    natural.load = natural.offered_load(&world);
    let own = natural.load.unwrap_or_default();
    let mut cases = Vec::new();
    for &load in filter.loads(&[own]) {
        let mut scenario = natural.clone();
        if load.to_bits() != own.to_bits() {
            scenario.set_load(&world, load)?;
        }
        cases.extend(filter.of_elastic_jobs(NAME, load, "", filter.permuted(&scenario)));
    }
    Ok((Worlds::new(world), cases))
}
