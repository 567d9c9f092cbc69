//! `powerflow-16`: the 876 jobs of ElasticFlow's Philly trace on 16 nodes of 8 A100, the set-up of
//! PowerFlow's own simulation as far as it is known. The natural load is 0.15, at which queues are
//! rare, so arrivals are compressed; job lengths are unchanged. Loads above 1 are marked: there,
//! ratios to a first-come policy grow with the length of the trace.

use wattle_world::World;

use super::{Case, CaseFilter, CompareError, Worlds};
use wattle_simulator::Scenario;
use wattle_simulator::measured::Measured;
use wattle_simulator::trace;

pub(super) const NAME: &str = "powerflow-16";

/// ElasticFlow's trace in the data folder.
const ELASTICFLOW: &str = "elasticflow_philly_103959.csv";
/// The loads of the study of the published claims; 0.76 is the main one, 1.07 is over-subscribed.
const LOADS: [f64; 5] = [0.15, 0.46, 0.76, 0.91, 1.07];

pub(super) fn cases(filter: &CaseFilter<'_>) -> Result<(Worlds, Vec<Case>), CompareError> {
    let (world, natural) = natural(NAME, filter)?;
    let mut cases = Vec::new();
    for &load in filter.loads(&LOADS) {
        let mut scenario = natural.clone();
        scenario.set_load(&world, load)?;
        cases.extend(filter.of_elastic_jobs(NAME, load, "", filter.permuted(&scenario)));
    }
    Ok((Worlds::new(world), cases))
}

/// The jobs at their natural load, and their world.
pub(super) fn natural(
    scenario: &'static str,
    filter: &CaseFilter<'_>,
) -> Result<(World, Scenario), CompareError> {
    let world = Measured::find(filter.data(scenario)?)?.world()?;
    let file = filter.file(scenario, ELASTICFLOW)?;
    let cluster = "16x8:a100".parse().expect("a valid cluster");
    let mut natural = Scenario::from_trace(&world, &trace::read(&file)?, &cluster, super::SEED)?;
    // The trace's deadlines are removed: few policies use them.
    for job in &mut natural.jobs {
        (job.deadline, job.duration_estimate) = (None, None);
    }
    Ok((world, natural))
}
