//! `greenflow-16`: the jobs and cluster of `powerflow-16` on grids whose carbon intensity changes
//! by the hour: California, Arizona, Texas and Washington in 2022 (US EIA), from the first of
//! January, April, July or October on.
//!
//! Every job declares a quarter of its exclusive run time as slack. Only policies called
//! `NAME+defer` use it, so that the effects of the carbon price and of deferral are separate.

use std::time::Duration;

use wattle_common::time::{scaled, span_s};
use wattle_world::World;

use super::{Case, CaseFilter, CompareError, Worlds, powerflow};
use wattle_simulator::carbon::CarbonSeries;
use wattle_simulator::{Scenario, Work};

pub(super) const NAME: &str = "greenflow-16";

const LOADS: [f64; 2] = [0.30, 0.76];
/// First day of each season, from the start of 2022.
const SEASONS: [u64; 4] = [0, 90, 181, 273];
/// The grids' files, and the names of their seasons' variants.
const GRIDS: [(&str, [&str; 4]); 4] = [
    ("US-CA_2022_hourly.csv", ["CA-winter", "CA-spring", "CA-summer", "CA-autumn"]),
    ("US-AZ_2022_hourly.csv", ["AZ-winter", "AZ-spring", "AZ-summer", "AZ-autumn"]),
    ("US-TX_2022_hourly.csv", ["TX-winter", "TX-spring", "TX-summer", "TX-autumn"]),
    ("US-WA_2022_hourly.csv", ["WA-winter", "WA-spring", "WA-summer", "WA-autumn"]),
];
/// A job's slack, relative to its exclusive run time.
const SLACK: f64 = 0.25;

pub(super) fn cases(filter: &CaseFilter<'_>) -> Result<(Worlds, Vec<Case>), CompareError> {
    let (world, mut natural) = powerflow::natural(NAME, filter)?;
    declare_slack(&world, &mut natural);
    let mut cases = Vec::new();
    for (file, variants) in GRIDS {
        if !variants.iter().any(|variant| filter.includes(variant)) {
            continue;
        }
        let year = CarbonSeries::read(&filter.file(NAME, file)?)?;
        for (variant, day) in variants.into_iter().zip(SEASONS) {
            if !filter.includes(variant) {
                continue;
            }
            let carbon = year.starting(Duration::from_secs(day * 86_400));
            for &load in filter.loads(&LOADS) {
                let mut scenario = Scenario { carbon: Some(carbon.clone()), ..natural.clone() };
                scenario.set_load(&world, load)?;
                cases.extend(filter.of_elastic_jobs(
                    NAME,
                    load,
                    variant,
                    filter.permuted(&scenario),
                ));
            }
        }
    }
    Ok((Worlds::new(world), cases))
}

fn declare_slack(world: &World, scenario: &mut Scenario) {
    let Some(group) = scenario.cluster.groups().first() else { return };
    let Some(gpu) = world.gpu(&group.gpu_type) else { return };
    for job in &mut scenario.jobs {
        let Some(workload) = world.workload(job.workload.as_str()) else { continue };
        let nodes = job.gpus.min.div_ceil(group.gpus_per_node.max(1));
        let alone = match job.work {
            Work::Lasts(span) => span,
            Work::Steps(steps) => {
                let rate = workload.steps_per_s(gpu, job.gpus.min, nodes);
                span_s(steps as f64 / rate)
            }
        };
        job.slack = Some(scaled(alone, SLACK));
    }
}
