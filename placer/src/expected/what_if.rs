//! What the jobs that are present would use, and when they would complete, at other settings.
//!
//! At a price `p` of energy, s/J, each job has the setting with the least `(1 + p P) / v` on the number of GPUs that it
//! has or waits for, with power `P` and speed `v`. The plan is run forward with these settings ([`super::outlook`]): a
//! queued job starts once slower jobs before it have ended. With rising prices jobs complete later and use less energy;
//! at price 0 all have the default setting, with which the others are compared.
//!
//! Assumed is what expected times assume ([`crate::expected`]). Sizes, co-tenants and the order of service stay as they
//! are, and neither a budget nor a power limit binds. Energy is that of the GPUs while they have jobs; co-tenants share
//! it equally.

use std::collections::BTreeMap;

use wattle_common::messages::{TradeOff, WhatIf};
use wattle_common::{Energy, Timestamp};

use super::outlook::{Scheduled, Settings, point_of, scheduled};
use crate::pipeline::StageReports;
use crate::plan::capabilities::Capabilities;
use crate::plan::input::PlanningInput;
use crate::state::cluster::ClusterState;
use crate::state::gpu_set::{GpuSet, JobKey};
use crate::state::job::Job;

/// Most jobs that are present: each takes about 0.1 ms of processor time for all points.
pub(crate) const JOBS_MAX: usize = 2_000;
/// Prices at which the mean job pays this for its energy, relative to the time that it takes.
const RELATIVE_PRICES: [f64; 8] = [0.03, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 12.8];
/// Least energy that a further point saves, a share.
const STEP_MIN: f64 = 0.002;

/// The expected end of a job, and what its GPUs use from now on.
#[derive(Clone, Copy, Debug)]
struct Rest {
    end: Timestamp,
    run_s: f64,
    energy_j: f64,
}

/// The trade of energy for completion time; `None` without jobs whose ends and power are predicted, or among more than
/// [`JOBS_MAX`].
pub(crate) fn what_if(
    input: PlanningInput<'_>,
    can: Capabilities,
    reports: &StageReports,
) -> Option<WhatIf> {
    let state = input.state;
    let present = state.job_count();
    if present > JOBS_MAX {
        return None;
    }
    let rests = |settings| -> BTreeMap<JobKey, Rest> {
        let all = scheduled(input, can, reports, None, settings);
        all.iter().filter_map(|one| Some((one.job, rest(state, one, settings)?))).collect()
    };
    let at_default = rests(Settings::Priced(0.0));
    let (mut base, mut run_s) = (Sums::default(), 0.0);
    for (key, rest) in &at_default {
        base.add(state.job(*key)?, rest);
        run_s += rest.run_s;
    }
    if base.energy_j <= 0.0 || base.completion_s <= 0.0 || run_s <= 0.0 {
        return None;
    }
    let trade_off = |settings| -> Option<TradeOff> {
        let rests = rests(settings);
        let mut sums = Sums::default();
        for key in at_default.keys() {
            sums.add(state.job(*key)?, rests.get(key)?);
        }
        let later = sums.completion_s / base.completion_s - 1.0;
        Some(TradeOff { later, saved: 1.0 - sums.energy_j / base.energy_j })
    };
    let mean_w = base.energy_j / run_s;
    let mut points = vec![TradeOff::default()];
    for relative in RELATIVE_PRICES {
        let last = points.last().copied().unwrap_or_default();
        let next = trade_off(Settings::Priced(relative / mean_w))?;
        if next.saved >= last.saved + STEP_MIN && next.later >= last.later {
            points.push(next);
        }
    }
    Some(WhatIf {
        at_us: input.now(),
        jobs: at_default.len() as u32,
        not_counted: (present - at_default.len()) as u32,
        completion_s: base.completion_s / at_default.len() as f64,
        energy_mj: Energy::from_mj((base.energy_j * 1e3) as u64),
        planned: trade_off(Settings::Planned)?,
        points,
    })
}

/// Sums over jobs: the time from submission to the end, s, and energy, J.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    completion_s: f64,
    energy_j: f64,
}

impl Sums {
    fn add(&mut self, job: &Job, rest: &Rest) {
        self.completion_s += rest.end.since(job.facts.submitted_at).as_secs_f64();
        self.energy_j += rest.energy_j;
    }
}

fn rest(state: &ClusterState, one: &Scheduled, settings: Settings) -> Option<Rest> {
    let job = state.job(one.job)?;
    let (end, _) = one.end?;
    let point = point_of(state, job, settings)?;
    let run_s = end.since(one.start.unwrap_or(state.now())).as_secs_f64();
    let tenants = job.state.gpus().map_or(1, |on| tenants(state, on)).max(1);
    let power_w = point.gpu_power_w * f64::from(point.gpus) / tenants as f64;
    Some(Rest { end, run_s, energy_j: power_w * run_s })
}

/// The most jobs on one of these GPUs.
fn tenants(state: &ClusterState, on: &GpuSet) -> usize {
    on.gpus().map(|(node, gpu)| state.node(node).tenants(gpu).len()).max().unwrap_or(0)
}
